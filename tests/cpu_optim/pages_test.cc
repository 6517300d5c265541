// The checksums that the update takes in passing are those of the naive way: every page hashed on
// its own, before and after.
#include "cpu_optim/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/base/hash.h"
#include "engine/base/str.h"
#include "tests/cpu_optim/piece.h"

namespace zinf::optim {
namespace {

constexpr Bytes kPage = 256 * kKiB;

// Whole pages of [offset, offset + bytes) of an extent.
std::vector<std::uint64_t> naive(const std::vector<std::byte>& memory, const StatePages& state) {
  std::vector<std::uint64_t> sums;
  for (Bytes from = 0; from < state.extent_bytes; from += state.page_bytes) {
    const Bytes to = std::min(from + state.page_bytes, state.extent_bytes);
    if (from >= state.offset && to <= state.offset + state.bytes)
      sums.push_back(xxh3_64(memory.data() + (from - state.offset), to - from));
  }
  return sums;
}

struct Place {
  std::int64_t first = 0;     // element of the piece
  std::int64_t elements = 0;  // of the range
  std::int64_t total = 0;     // of the piece
};

// The states as slots of a staging ring hold them: padded to 4 KiB, with leftovers in the padding.
void check(const Format& format, const Place& place, int threads, bool equal_pages) {
  const std::string what =
      str(describe(format, best_isa()), ", first ", place.first, ", ", place.elements, " of ",
          place.total, ", threads ", threads, equal_pages ? ", equal pages" : "");
  const std::vector<StateSpec> specs = schema(format);
  Piece piece(format, place.elements);
  std::vector<float> numbers(static_cast<std::size_t>(place.elements));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 0.01f * static_cast<float>(static_cast<int>(i * 7919 % 2001) - 1000);
  piece.set_weights(numbers);
  UpdatePages pages;
  StateView view;
  std::vector<std::vector<std::byte>> memory;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    const Bytes used = specs[s].bytes(place.elements);
    memory.emplace_back(round_up(used, 4096), std::byte{0x5A});
    std::memcpy(memory[s].data(), piece.state(s), used);
    view.state[s] = memory[s].data();
    StatePages& state = pages.state[s];
    state.offset = specs[s].bytes(place.first);
    state.bytes = memory[s].size();
    state.extent_bytes = round_up(specs[s].bytes(place.total), 4096);
    state.page_bytes = equal_pages ? specs[s].quantum_bytes * 256 : kPage;
    state.sum_before = state.sum_after = true;
  }
  pages.state[0].sum_before = false;
  const auto plain_memory = memory;
  const std::vector<float>& gradient = numbers;
  const Optimizer optimizer(format, hyper_of(format));
  const GroupRange range{0, place.total, 0};
  const Group group{1.0, 0.01};
  StepScalars scalars = scalars_of(2);
  Pool pool(threads);
  optimizer.update(pool, view, gradient.data(), place.first, place.elements, {&range, 1},
                   {&group, 1}, scalars, &pages);
  std::size_t count = 0;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    const std::vector<std::uint64_t> before = naive(plain_memory[s], pages.state[s]);
    const std::vector<std::uint64_t> after = naive(memory[s], pages.state[s]);
    EXPECT_EQ(s == 0 ? std::vector<std::uint64_t>{} : before, pages.state[s].before)
        << what << ", state " << s;
    EXPECT_EQ(after, pages.state[s].after) << what << ", state " << s;
    EXPECT_EQ(after.size(), whole_pages(pages.state[s]).count) << what;
    EXPECT_TRUE(after.empty() || before != after) << what;
    count += after.size();
    // And the update is the one without pages.
    view.state[s] = memory.emplace_back(plain_memory[s]).data();
  }
  EXPECT_GT(count, 0u) << what;
  optimizer.update(pool, view, gradient.data(), place.first, place.elements, {&range, 1},
                   {&group, 1}, scalars);
  for (std::size_t s = 0; s < specs.size(); ++s) {
    EXPECT_EQ(0, std::memcmp(memory[s].data(), view.state[s], memory[s].size())) << what;
  }
}

TEST(Pages, SumsAreThoseOfTheNaiveWay) {
  const Place places[] = {
      {0, 5 * 131072 + 3 * 4096 + 256, 5 * 131072 + 3 * 4096 + 256},  // the whole piece, short page
      {131072, 262144, 1 << 20},                                      // page borders at both ends
      {65536, 262144, 1 << 20},            // starts within the 16-bit states' pages
      {262144, 4096 * 70, 1 << 20},        // ends within pages
      {0, 4096 * 3 + 256, 4096 * 3 + 256}  // less than a page: the extent's only one
  };
  for (const Format& format : formats_of(Algorithm::kAdamW)) {
    for (const Place& place : places) {
      for (const int threads : {1, 2, 16}) {
        check(format, place, threads, false);
        check(format, place, threads, true);  // 65,536 elements in every state
      }
    }
  }
}

TEST(Pages, RangesWithoutAWholePageHaveNoSums) {
  StatePages state;
  state.offset = 4096;
  state.bytes = kPage;
  state.extent_bytes = 4 * kPage;
  EXPECT_EQ(0u, whole_pages(state).count);
  state.bytes = 2 * kPage - 4096;
  EXPECT_EQ(1u, whole_pages(state).count);
  EXPECT_EQ(1u, whole_pages(state).first);
  state.extent_bytes = 2 * kPage + 512;
  state.bytes = state.extent_bytes - state.offset;
  EXPECT_EQ(2u, whole_pages(state).count);
}

}  // namespace
}  // namespace zinf::optim
