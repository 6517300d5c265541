#include "nvme/bench.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "nvme/huge_buffer.h"
#include "nvme/io_lane.h"
#include "nvme/thread_engine.h"

namespace zinf::nvme {

namespace {

double cpu_seconds(int who) {
  rusage use{};
  ::getrusage(who, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// Streams over memory as an optimizer does: reads and writes in place, on one core, until it goes
// away.
class MemoryLoad {
 public:
  MemoryLoad() : buffer_(64 * kMiB), thread_([this] { run(); }) {}
  ~MemoryLoad() {
    stop_ = true;
    thread_.join();
  }
  double cpu() const { return cpu_; }  // of the last pass begun; read it before the end

 private:
  void run() {
    auto* values = reinterpret_cast<float*>(buffer_.data());
    const std::size_t count = buffer_.size() / sizeof(float);
    while (!stop_) {
      for (std::size_t i = 0; i < count; ++i) values[i] = values[i] * 0.5f + 1.0f;
      cpu_ = cpu_seconds(RUSAGE_THREAD);
    }
  }
  HugeBuffer buffer_;
  std::atomic<bool> stop_ = false;
  std::atomic<double> cpu_ = 0;
  std::thread thread_;
};

// Keeps `depth` requests of one block each in flight until the time is up. After start() all calls
// come from the lane's thread, so the members need no lock.
class Pump {
 public:
  // The buffer has a block for each request in flight and outlives the lane.
  Pump(IoLane& lane, FileId file, Bytes file_bytes, const BenchOptions& options,
       const HugeBuffer& buffer)
      : lane_(lane),
        file_(file),
        options_(options),
        buffer_(buffer),
        submitted_(static_cast<std::size_t>(options.depth)) {
    lane_.add_memory({buffer_.data(), buffer_.size()});
    const bool mixed = options.traffic == Traffic::kMixed;
    blocks_ = file_bytes / options.block_size / (mixed ? 2 : 1);
    // Mixed traffic reads the first half of the file and writes the second.
    write_start_ = mixed ? blocks_ : 0;
  }

  // Moves blocks for `seconds`, or exactly `most` of them.
  void run(double seconds, std::uint64_t most) {
    most_ = most;
    seconds_ = seconds;
    in_flight_ = options_.depth;
    for (int slot = 0; slot < options_.depth; ++slot) {
      // The lane's thread must not see half of the start: the first requests go through it too.
      lane_.submit({file_, 0, nullptr, 0, false, [this, slot](const IoResult&) { next(slot); }});
    }
    finished_.get_future().wait();
  }

  void fill(BenchResult& result) {
    if (failure_) throw failure_->to_error();
    result.huge_pages = buffer_.huge();
    result.bytes_read = read_;
    result.bytes_written = written_;
    result.seconds = last_ - start_;
    result.gb_per_second = static_cast<double>(read_ + written_) / result.seconds / 1e9;
    std::sort(latencies_.begin(), latencies_.end());
    if (latencies_.empty()) return;
    result.p50_ms = 1e3 * latencies_[latencies_.size() / 2];
    result.p99_ms = 1e3 * latencies_[(latencies_.size() - 1) * 99 / 100];
  }

 private:
  bool next_is_write() {
    if (options_.traffic != Traffic::kMixed) return options_.traffic == Traffic::kWrite;
    // The direction that is furthest behind its share.
    const double due =
        static_cast<double>(issued_reads_ + issued_writes_ + 1) * options_.read_share;
    return static_cast<double>(issued_reads_) >= due;
  }

  void next(int slot) {
    // The clock starts with the lane's thread: until that has a core and a ring (tens of
    // milliseconds on a busy machine) nothing is asked of the drive.
    if (!started_) {
      started_ = true;
      start_ = options_.clock();
      end_ = start_ + seconds_;
    }
    const std::uint64_t issued = issued_reads_ + issued_writes_;
    // A full depth at least, however long this thread had to wait for a core.
    const bool over =
        issued >= static_cast<std::uint64_t>(options_.depth) && options_.clock() >= end_;
    if (failure_ || over || issued >= most_) {
      if (--in_flight_ == 0) finished_.set_value();
      return;
    }
    const bool write = next_is_write();
    const std::uint64_t number = write ? issued_writes_++ : issued_reads_++;
    const std::uint64_t block = number % blocks_ + (write ? write_start_ : 0);
    submitted_[static_cast<std::size_t>(slot)] = options_.clock();
    lane_.submit({file_, block * options_.block_size,
                  buffer_.data() + options_.block_size * static_cast<Bytes>(slot),
                  options_.block_size, write,
                  [this, slot, write](const IoResult& result) { done(slot, write, result); }});
  }

  void done(int slot, bool write, const IoResult& result) {
    last_ = options_.clock();
    if (result.failure) failure_ = result.failure;
    (write ? written_ : read_) += options_.block_size;
    latencies_.push_back(last_ - submitted_[static_cast<std::size_t>(slot)]);
    next(slot);
  }

  IoLane& lane_;
  const FileId file_;
  const BenchOptions options_;
  const HugeBuffer& buffer_;
  std::vector<double> submitted_;
  std::vector<double> latencies_;
  std::uint64_t blocks_ = 0, write_start_ = 0, most_ = 0;
  std::uint64_t issued_reads_ = 0, issued_writes_ = 0;
  Bytes read_ = 0, written_ = 0;
  double seconds_ = 0, start_ = 0, end_ = 0, last_ = 0;
  int in_flight_ = 0;
  bool started_ = false;
  std::shared_ptr<const IoFailure> failure_;
  std::promise<void> finished_;
};

HugeBuffer buffer_for(const BenchOptions& options) {
  return HugeBuffer(options.block_size * static_cast<Bytes>(options.depth), options.huge_pages);
}

void check(const BenchOptions& options, Bytes alignment, Bytes file_bytes) {
  const auto require = [](bool good, const std::string& text) {
    if (!good) throw Error(ErrorKind::kUsage, text);
  };
  require(options.block_size >= alignment && options.block_size <= kGiB &&
              options.block_size % alignment == 0,
          fmt::format("block size {} bytes; expected a multiple of {} up to 1 GiB",
                      options.block_size, alignment));
  require(options.depth >= 1 && options.depth <= 4096,
          fmt::format("depth {}; expected 1 to 4096", options.depth));
  require(2 * options.block_size <= file_bytes,
          fmt::format("block size {} does not fit twice into a file of {}",
                      format_bytes(options.block_size), format_bytes(file_bytes)));
}

}  // namespace

DriveBench::DriveBench(const std::string& directory, Bytes file_bytes, bool keep_file,
                       const EngineWrapper& wrap_engine)
    : facts_(probe_directory(directory)), keep_file_(keep_file) {
  const Bytes bytes = round_up(file_bytes, facts_.alignment);
  if (keep_file) {
    const std::string kept = directory + "/" + kKeptFile;
    struct stat info {};
    if (::lstat(kept.c_str(), &info) == 0) {
      file_.emplace(SwapFile::reopen(kept, facts_));
      if (file_->bytes() == bytes) return;
      file_.reset();
    }
    file_.emplace(SwapFile::create(kept, bytes, facts_, true));
  } else {
    file_.emplace(SwapFile::create(fmt::format("{}/zinf-bench-{}.tmp", directory, ::getpid()),
                                   bytes, facts_, true));
    file_->remove();  // it has no name from here on, so that whatever ends us ends it
  }
  try {
    BenchOptions options;
    options.traffic = Traffic::kWrite;
    options.block_size = std::min<Bytes>(kMiB, file_->bytes());
    options.depth = 16;
    const HugeBuffer buffer = buffer_for(options);
    LaneOptions lane_options;
    lane_options.engine.quiet = true;
    lane_options.wrap_engine = wrap_engine;
    IoLane lane(lane_options);
    const FileId id = lane.add_file({file_->descriptor(), file_->path(), facts_.alignment});
    Pump pump(lane, id, file_->bytes(), options, buffer);
    pump.run(1e9, file_->bytes() / options.block_size);
    BenchResult result;
    pump.fill(result);
    bytes_written_ += result.bytes_written;
  } catch (...) {
    if (keep_file_) file_->remove();
    throw;
  }
}

std::string DriveBench::open_path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), file_->descriptor());
}

BenchResult DriveBench::run(const BenchOptions& options) {
  check(options, facts_.alignment, file_->bytes());
  const HugeBuffer buffer = buffer_for(options);
  LaneOptions lane_options;
  lane_options.engine = {options.engine, options.depth};
  lane_options.engine.quiet = true;
  lane_options.block_size = options.block_size;
  lane_options.wrap_engine = options.wrap_engine;
  IoLane lane(lane_options);
  const FileId id = lane.add_file({file_->descriptor(), file_->path(), facts_.alignment});
  BenchResult result;
  result.engine = lane.engine_name();
  result.direct = facts_.direct;
  result.block_size = options.block_size;
  result.depth = options.depth;
  Pump pump(lane, id, file_->bytes(), options, buffer);
  std::unique_ptr<MemoryLoad> load = options.memory_load ? std::make_unique<MemoryLoad>() : nullptr;
  const double load_before = load ? load->cpu() : 0;
  const double cpu_before = cpu_seconds(RUSAGE_SELF);
  pump.run(options.seconds, ~std::uint64_t{0});
  const double cpu = cpu_seconds(RUSAGE_SELF) - cpu_before - (load ? load->cpu() - load_before : 0);
  pump.fill(result);
  bytes_written_ += result.bytes_written;
  const double gb = static_cast<double>(result.bytes_read + result.bytes_written) / 1e9;
  result.cpu_seconds_per_gb = gb > 0 ? std::max(0.0, cpu) / gb : 0;
  return result;
}

namespace {

// Buffers that begin within a huge page, or are smaller than one, would lie on 4 KiB pages.
constexpr const char* kFioHugePages = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

// fio takes ':' for the border between two files.
std::string for_fio(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == ':' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

std::vector<std::string> fio_arguments(const DriveBench& bench, const BenchOptions& options,
                                       const std::string& file) {
  // Threads move one block each, each in its own part of the file.
  const bool threads = options.engine == EngineKind::kThreads;
  const int jobs = threads ? std::min(options.depth, kMostThreads) : 1;
  const Bytes blocks = bench.file_bytes() / static_cast<Bytes>(jobs) / options.block_size;
  const Bytes part = std::max<Bytes>(blocks, 1) * options.block_size;
  std::vector<std::string> arguments = {"fio", "--name=zinf", "--filename=" + for_fio(file)};
  const auto add = [&](std::string argument) { arguments.push_back(std::move(argument)); };
  const auto rw = options.traffic == Traffic::kRead    ? "read"
                  : options.traffic == Traffic::kWrite ? "write"
                                                       : "rw";
  add(fmt::format("--rw={}", rw));
  if (options.traffic == Traffic::kMixed)
    add(fmt::format("--rwmixread={:.0f}", options.read_share * 100));
  if (threads) {
    add("--ioengine=psync");
    add(fmt::format("--numjobs={}", jobs));
    add(fmt::format("--offset_increment={}", part));
    add("--group_reporting");
  } else {
    add(options.engine == EngineKind::kLibaio ? "--ioengine=libaio" : "--ioengine=io_uring");
    add(fmt::format("--iodepth={}", options.depth));
  }
  add(fmt::format("--bs={}", options.block_size));
  add(fmt::format("--direct={}", bench.facts().direct ? 1 : 0));
  add(fmt::format("--size={}", part));
  add("--time_based");
  add(fmt::format("--runtime={:.3g}", std::max(1.0, options.seconds)));
  add("--scramble_buffers=0");
  add(fmt::format("--iomem_align={}", 2 * kMiB));
  add("--thread");
  return arguments;
}

// As a shell takes it.
std::string quoted(const std::string& argument) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,";
  if (argument.find_first_not_of(plain) == std::string::npos) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string fio_command(const DriveBench& bench, const BenchOptions& options) {
  std::string line = kFioHugePages;
  for (const std::string& argument : fio_arguments(bench, options, bench.path()))
    line += ' ' + quoted(argument);
  return line;
}

FioResult run_fio(const DriveBench& bench, const BenchOptions& options) {
  std::vector<std::string> arguments = fio_arguments(bench, options, bench.open_path());
  arguments.push_back("--output-format=json");
  arguments.insert(arguments.begin(), {"/usr/bin/env", kFioHugePages});
  const ChildResult result = run_child(arguments);
  if (result.exit_code == 127) return {0, "fio is not installed"};  // says env
  if (result.exit_code != 0) return {0, fmt::format("fio ended with status {}", result.exit_code)};
  // "read" and "write" each carry one bw_bytes; the first two of the output are those of our only
  // job.
  const std::string& text = result.output;
  double sum = 0;
  int found = 0;
  for (std::size_t at = 0; found < 2 && (at = text.find("\"bw_bytes\"", at)) != std::string::npos;
       ++at, ++found) {
    sum += std::strtod(text.c_str() + text.find(':', at) + 1, nullptr);
  }
  if (found != 2 || sum <= 0) return {0, "fio's output holds no rate"};
  return {sum / 1e9, ""};
}

}  // namespace zinf::nvme
