// Random requests through an engine full of faults, beside a model in memory: each seed ends with
// the exact bytes or with an error that names the fault; none hangs.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/str.h"
#include "nvme/fault_engine.h"
#include "nvme/page_checksums.h"
#include "nvme/store.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

// Ends the process, naming the seed, when a test does not end: a hang must not look like slowness.
class Watchdog {
 public:
  explicit Watchdog(double seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (!over_cv_.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [this] { return over_; })) {
            std::fprintf(stderr, "hang at seed %llu\n", static_cast<unsigned long long>(seed_));
            std::abort();
          }
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    over_cv_.notify_one();
    thread_.join();
  }
  void at(std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    seed_ = seed;
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_cv_;
  std::uint64_t seed_ = 0;
  bool over_ = false;
  std::thread thread_;
};

constexpr Bytes kExtent = 128 * kKiB;
constexpr Bytes kPiece = 8 * kKiB;
constexpr std::size_t kExtents = 3;
constexpr std::size_t kPieces = kExtents * kExtent / kPiece;

struct Draw {
  std::uint64_t key;
  std::uint64_t count = 0;
  std::uint64_t below(std::uint64_t bound) { return random_below(key, count++, bound); }
};

// One round: disjoint ranges of pieces, each read or written, all in flight together.
class Round {
 public:
  Round(Store& store, std::vector<std::byte>& model, std::vector<bool>& known, Draw& draw)
      : store_(store), model_(model), known_(known), draw_(draw), memory_(kPieces * kPiece) {}

  void run() {
    std::size_t piece = draw_.below(4);
    while (piece < kPieces) {
      const std::size_t in_extent = kExtent / kPiece - piece % (kExtent / kPiece);
      const std::size_t count = 1 + draw_.below(std::min<std::size_t>(in_extent, 8));
      start(piece, count, draw_.below(2) == 0);
      piece += count + draw_.below(3);
    }
    std::unique_lock lock(mutex_);
    done_cv_.wait(lock, [this] { return waiting_ == 0; });
  }

  int good = 0, failed = 0;
  std::string wrong;  // what should not have happened

 private:
  void start(std::size_t piece, std::size_t count, bool write) {
    {
      const std::lock_guard lock(mutex_);
      ++waiting_;
    }
    std::byte* at = memory_.data() + piece * kPiece;
    const auto extent = static_cast<ExtentId>(piece * kPiece / kExtent);
    const Bytes offset = piece * kPiece % kExtent;
    if (write) {
      const std::uint64_t seed = draw_.below(1u << 30);
      for (std::size_t i = 0; i < count * kPiece; i += 8) {
        const std::uint64_t word = random_bits(seed, i);
        std::memcpy(at + i, &word, 8);
      }
    }
    auto done = [this, piece, count, write](const IoResult& result) {
      finish(piece, count, write, result);
    };
    write ? store_.write(extent, offset, at, count * kPiece, std::move(done))
          : store_.read(extent, offset, at, count * kPiece, std::move(done));
  }

  void finish(std::size_t piece, std::size_t count, bool write, const IoResult& result) {
    const std::lock_guard lock(mutex_);
    const std::size_t from = piece * kPiece, bytes = count * kPiece;
    const std::byte* at = memory_.data() + from;
    if (!result.ok()) {
      ++failed;
      if (result.failure->message.find(".zinf-area") == std::string::npos)
        wrong = "no path: " + result.failure->message;
      // What a failed write left behind is not known until it is written again.
      if (write) std::fill_n(known_.begin() + static_cast<std::ptrdiff_t>(piece), count, false);
    } else {
      ++good;
      if (write) {
        std::copy(at, at + bytes, model_.begin() + static_cast<std::ptrdiff_t>(from));
        std::fill_n(known_.begin() + static_cast<std::ptrdiff_t>(piece), count, true);
      }
      for (std::size_t p = piece; !write && p < piece + count; ++p) {
        if (known_[p] &&
            std::memcmp(memory_.data() + p * kPiece, model_.data() + p * kPiece, kPiece) != 0) {
          wrong = str("piece ", p, " differs");
        }
      }
    }
    if (--waiting_ == 0) done_cv_.notify_one();
  }

  Store& store_;
  std::vector<std::byte>& model_;
  std::vector<bool>& known_;
  Draw& draw_;
  Memory memory_;
  std::mutex mutex_;
  std::condition_variable done_cv_;
  int waiting_ = 0;
};

struct Tally {
  int good = 0, failed = 0, seeds_with_failures = 0;
  std::uint64_t faults = 0;
};

FaultOptions faults_of(std::uint64_t seed, Draw& draw) {
  FaultOptions faults;
  faults.seed = seed;
  faults.short_share = 0.1 * static_cast<double>(draw.below(4));
  faults.again_share = 0.05 * static_cast<double>(draw.below(4));
  faults.delay_share = 0.2 * static_cast<double>(draw.below(4));
  if (draw.below(3) == 0) faults.fail_block = 1 + draw.below(200);
  if (draw.below(8) == 0) faults.error_share = 0.05;
  if (draw.below(16) == 0) faults.drop_share = 0.02;
  constexpr int kErrors[] = {EIO, ENOSPC, EFBIG, ENODEV, ETIMEDOUT};
  faults.error_number = kErrors[draw.below(5)];
  return faults;
}

std::string run_seed(const std::string& path, std::uint64_t seed, Tally& tally) {
  Draw draw{random_key(seed, 0xF022)};
  const auto faults = std::make_shared<FaultControl>(faults_of(seed, draw));
  StoreOptions options;
  options.drives = {{path}};
  if (draw.below(2) == 0)
    options.drives.push_back({path + "/second", 0, 0.5 + static_cast<double>(draw.below(3))});
  options.stripe_unit = 16 * kKiB;
  options.block_size = Bytes{4096} << draw.below(5);
  options.depth = 1 + static_cast<int>(draw.below(12));
  // libaio rarely: taking its context apart costs the kernel some 30 ms.
  options.engine = draw.below(16) == 0
                       ? EngineKind::kLibaio
                       : (draw.below(2) == 0 ? EngineKind::kIoUring : EngineKind::kThreads);
  options.stall_seconds = faults->options().drop_share > 0 ? 0.05 : 0;
  options.wrap_engine = faults->wrapper();
  Store store(options);
  for (std::size_t i = 0; i < kExtents; ++i) store.allocate(kExtent);
  store.open(OpenMode::kReplace);
  std::vector<std::byte> model(kPieces * kPiece);
  std::vector<bool> known(kPieces, true);  // a fresh area reads as zeros
  int failed = 0;
  for (int round = 0; round < 4; ++round) {
    Round requests(store, model, known, draw);
    requests.run();
    if (!requests.wrong.empty()) return requests.wrong;
    tally.good += requests.good;
    failed += requests.failed;
    if (draw.below(2) == 0) wait_for([&](IoCallback done) { store.sync(done); });
  }
  tally.failed += failed;
  tally.seeds_with_failures += failed > 0;
  tally.faults += faults->injected();
  const FaultOptions& used = faults->options();
  const bool may_fail = used.fail_block > 0 || used.error_share > 0 || used.drop_share > 0;
  if (failed > 0 && !may_fail) return "failed without a fault";
  return "";
}

TEST(StoreFuzz, AThousandSeedsGiveTheExactBytesOrAnError) {
  const std::string shared = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  TestDirectory directory(shared);
  std::filesystem::create_directory(directory.path() + "/second");
  Watchdog watchdog(300);
  Tally tally;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    watchdog.at(seed);
    const std::string wrong = run_seed(directory.path(), seed, tally);
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
  // The faults did strike, and most requests came through all the same.
  EXPECT_GT(tally.faults, 10000u);
  EXPECT_GT(tally.seeds_with_failures, 100);
  EXPECT_GT(tally.good, 10 * tally.failed);
}

// Faults that no return code shows: lost writes and flipped bits. Page checksums see every one of
// them.
TEST(StoreFuzz, ChecksumsFindWhatReturnCodesDoNotShow) {
  TestDirectory directory;
  Watchdog watchdog(120);
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    watchdog.at(seed);
    const auto faults = std::make_shared<FaultControl>(
        FaultOptions{.seed = seed, .lose_share = 0.05, .flip_share = 0.05});
    StoreOptions options;
    options.drives = {{directory.path()}};
    options.block_size = 64 * kKiB;
    options.wrap_engine = faults->wrapper();
    Store store(options);
    store.allocate(kMiB);
    store.open(OpenMode::kReplace);
    Memory out(kMiB), in(kMiB);
    out.fill(seed);
    wait_for([&](IoCallback done) { store.write(0, 0, out.data(), kMiB, done); }).throw_if_failed();
    const IoResult read =
        wait_for([&](IoCallback done) { store.read(0, 0, in.data(), kMiB, done); });
    const bool bad = !read.ok();
    EXPECT_EQ(bad, !(in == out)) << "seed " << seed;
    EXPECT_EQ(bad, faults->injected() > 0) << "seed " << seed;
    EXPECT_EQ(bad, bad && read.failure->message.find("is damaged") != std::string::npos);
    found += bad;
  }
  EXPECT_GT(found, 10);
}

}  // namespace
}  // namespace zinf::nvme
