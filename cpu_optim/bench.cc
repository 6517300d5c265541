#include "cpu_optim/bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu_optim/kernel_table.h"
#include "cpu_optim/norm.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::optim {

namespace {

// Pages of its own, huge where the system gives them, near the pool's threads; touched, so that no
// fault is timed.
class Memory {
 public:
  Memory(const Pool& pool, Bytes bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      throw Error(ErrorKind::kDoesNotFit,
                  str("optimizer benchmark: no memory for ", format_bytes(bytes)),
                  "measure fewer elements");
    }
    madvise(data_, bytes, MADV_HUGEPAGE);  // best effort
    pool.place(static_cast<std::byte*>(data_), bytes);
    std::memset(data_, 0, bytes);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
  Bytes bytes_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void fill_gradient(float* gradient, std::int64_t elements, Pool& pool) {
  pool.for_ranges(elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      gradient[i] = 1e-3f * static_cast<float>((i * 7919) % 2001 - 1000);
  });
}

// Times them in turn. What is prepared belongs to the phase, not to the work.
template <typename Prepare, typename Work, typename Limit>
void measure(BenchRow& row, int repetitions, Prepare prepare, Work work, Limit limit) {
  ZINF_CHECK(repetitions >= 1, "a benchmark needs repetitions");
  std::vector<double> seconds, limits;
  for (int r = 0; r <= repetitions; ++r) {
    const double begin = now_seconds();
    prepare();
    const double start = now_seconds();
    work(r);
    const double middle = now_seconds();
    limit();
    const double end = now_seconds();
    if (r == 0) continue;  // warm-up
    seconds.push_back(middle - start);
    limits.push_back(end - middle);
    row.shares.push_back((end - middle) / (middle - start));
    row.phase_seconds.push_back(middle - begin);
  }
  row.seconds = median(seconds);
  row.limit_seconds = median(limits);
  row.share_of_bandwidth = median(row.shares);
  row.elements_per_second = static_cast<double>(row.elements) / row.seconds;
  row.gb_per_second = row.elements_per_second * row.bytes_per_element / 1e9;
}

BenchRow row_of(const Format& format, Isa isa, const Pool& pool, std::int64_t elements) {
  BenchRow row;
  row.format = format;
  row.isa = isa;
  row.threads = pool.threads();
  row.elements = (elements + kTile - 1) / kTile * kTile;
  return row;
}

// A master in fp32 makes the 16-bit weight a copy that is only written.
bool weight_is_only_written(const Format& format) {
  return format.weight != WeightDtype::kFp32 && format.master == MasterWeights::kFp32;
}

}  // namespace

BenchRow bench_update(const Format& format, Isa isa, Pool& pool, std::int64_t elements,
                      int repetitions, bool checksums) {
  BenchRow row = row_of(format, isa, pool, elements);
  const std::vector<StateSpec> specs = schema(format);
  const Memory gradient(pool, static_cast<Bytes>(row.elements) * sizeof(float));
  fill_gradient(static_cast<float*>(gradient.data()), row.elements, pool);
  std::vector<std::unique_ptr<Memory>> memory;
  StateView view;
  TouchArgs touch{};
  row.bytes_per_element = sizeof(float);
  for (std::size_t s = 0; s < specs.size(); ++s) {
    memory.push_back(std::make_unique<Memory>(pool, specs[s].bytes(row.elements)));
    view.state[s] = memory.back()->data();
    const bool only_written = s == 0 && weight_is_only_written(format);
    touch.quantum_bytes[s] = static_cast<std::int64_t>(specs[s].quantum_bytes);
    touch.is_loaded[s] = !only_written;
    row.bytes_per_element +=
        static_cast<double>(specs[s].quantum_bytes) / kQuantum * (only_written ? 1 : 2);
  }
  touch.count = static_cast<int>(specs.size());
  Hyper hyper;
  if (format.algorithm == Algorithm::kSgd && format.has_momentum) hyper.momentum = 0.9;
  const Optimizer optimizer(format, hyper, isa);
  const GroupRange range{0, row.elements, 0};
  const Group group{1.0, 0.01};
  const KernelTable& table = kernels(isa);
  std::vector<double> sums(static_cast<std::size_t>(tile_count(row.elements)));
  double factor = 1;
  const auto norm = [&] {
    tile_sums(pool, static_cast<const float*>(gradient.data()), row.elements, sums.data(), isa);
    factor = clip_factor(norm_from_sums(sums), 1.0);
  };
  const auto update = [&](int repetition, UpdatePages* pages) {
    StepScalars scalars;
    scalars.step = repetition + 1;
    scalars.gradient_factor = factor;
    scalars.lr = 1e-4;
    scalars.moments_are_zero = repetition == 0;
    optimizer.update(pool, view, static_cast<const float*>(gradient.data()), 0, row.elements,
                     {&range, 1}, {&group, 1}, scalars, pages);
  };
  const auto work = [&](int repetition) { update(repetition, nullptr); };
  const auto limit = [&] {
    pool.for_ranges(row.elements, [&](std::int64_t begin, std::int64_t end) {
      TouchArgs args = touch;
      args.gradient = static_cast<const float*>(gradient.data()) + begin;
      args.quanta = (end - begin) / kQuantum;
      for (int s = 0; s < args.count; ++s) {
        args.state[s] = static_cast<unsigned char*>(view.state[static_cast<std::size_t>(s)]) +
                        begin / kQuantum * args.quantum_bytes[s];
      }
      table.touch(args);
    });
  };
  measure(row, repetitions, norm, work, limit);
  for (int r = 1; checksums && r <= repetitions; ++r) {
    UpdatePages pages;
    for (std::size_t s = 0; s < specs.size(); ++s) {
      const Bytes bytes = specs[s].bytes(row.elements);
      StatePages& state = pages.state[s];
      state.bytes = state.extent_bytes = bytes;
      state.page_bytes = specs[s].bytes(kPageElements);
      state.sum_before = touch.is_loaded[s];
      state.sum_after = true;
    }
    const double start = now_seconds();
    update(repetitions + r, nullptr);
    const double middle = now_seconds();
    update(repetitions + r, &pages);
    row.checksum_ratios.push_back((now_seconds() - middle) / (middle - start));
  }
  return row;
}

BenchRow bench_norm(Isa isa, Pool& pool, std::int64_t elements, int repetitions) {
  BenchRow row = row_of({}, isa, pool, elements);
  row.bytes_per_element = sizeof(float);
  const Memory memory(pool, static_cast<Bytes>(row.elements) * sizeof(float));
  auto* gradient = static_cast<float*>(memory.data());
  fill_gradient(gradient, row.elements, pool);
  std::vector<double> sums(static_cast<std::size_t>(tile_count(row.elements)));
  const KernelTable& table = kernels(isa);
  const auto limit = [&] {
    pool.for_ranges(row.elements, [&](std::int64_t begin, std::int64_t end) {
      TouchArgs args{};
      args.gradient = gradient + begin;
      args.quanta = (end - begin) / kQuantum;
      table.touch(args);
    });
  };
  measure(
      row, repetitions, [] {},
      [&](int) { tile_sums(pool, gradient, row.elements, sums.data(), isa); }, limit);
  return row;
}

std::string format_name(const Format& format) {
  return str(name(format.weight), "/", name(format.moments), "/", name(format.master));
}

std::vector<Format> bench_formats() {
  std::vector<Format> formats = {{}};
  for (const StateDtype moments : {StateDtype::kFp32, StateDtype::kBf16, StateDtype::kInt8}) {
    for (const MasterWeights master :
         {MasterWeights::kFp32, MasterWeights::kSplit, MasterWeights::kBf16Sr}) {
      formats.push_back({Algorithm::kAdamW, WeightDtype::kBf16, master, moments});
    }
  }
  return formats;
}

Bytes bench_bytes(const Format& format, std::int64_t elements) {
  const std::int64_t whole = (elements + kTile - 1) / kTile * kTile;
  Bytes sum = static_cast<Bytes>(whole) * sizeof(float);
  for (const StateSpec& spec : schema(format)) sum += spec.bytes(whole);
  return sum;
}

}  // namespace zinf::optim
