#include "engine/model/softmax_row.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/model/vector_math.h"

#if defined(__x86_64__)
#define ZINF_FOR_EACH_CPU __attribute__((target_clones("default", "avx2")))
#else
#define ZINF_FOR_EACH_CPU
#endif

namespace zinf::model {
namespace {

constexpr std::int64_t kLanes = 8;
using V = Vectors<kLanes>;
using Floats = V::Floats;

// Lanes are drained into double this often, so that long rows lose no accuracy.
constexpr std::int64_t kDrain = 4096;

// The rest of a row, filled up with values whose exponential is 0.
ZINF_INLINE void load_rest(const float* from, std::int64_t count, Floats& to) {
  float lanes[kLanes];
  for (std::int64_t lane = 0; lane < kLanes; ++lane)
    lanes[lane] = lane < count ? from[lane] : -HUGE_VALF;
  V::load(lanes, to);
}

ZINF_FOR_EACH_CPU float row_max(const float* row, std::int64_t count) {
  const Floats zero = {};
  Floats first = zero - HUGE_VALF, second = first, x, y;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    V::load(row + i, x);
    V::load(row + i + kLanes, y);
    first = x > first ? x : first;
    second = y > second ? y : second;
  }
  first = second > first ? second : first;
  float largest = first[0];
  for (std::int64_t lane = 1; lane < kLanes; ++lane) largest = std::max(largest, first[lane]);
  for (; i < count; ++i) largest = std::max(largest, row[i]);
  return largest;
}

template <bool kStore>
ZINF_INLINE double exp_sum(const float* row, float* out, std::int64_t count, float largest) {
  double sum = 0;
  for (std::int64_t start = 0; start < count; start += kDrain) {
    const std::int64_t end = std::min(count, start + kDrain);
    Floats lanes = {}, x;
    for (std::int64_t i = start; i < end; i += kLanes) {
      const bool whole = i + kLanes <= end;
      if (whole) {
        V::load(row + i, x);
      } else {
        load_rest(row + i, end - i, x);
      }
      x -= largest;
      V::exp_negative(x);
      lanes += x;
      if constexpr (kStore) std::memcpy(out + i, &x, 4 * (whole ? kLanes : end - i));
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  }
  return sum;
}

ZINF_FOR_EACH_CPU double exp_sum_only(const float* row, std::int64_t count, float largest) {
  return exp_sum<false>(row, nullptr, count, largest);
}

ZINF_FOR_EACH_CPU double exp_in_place(float* row, std::int64_t count, float largest) {
  return exp_sum<true>(row, row, count, largest);
}

ZINF_FOR_EACH_CPU void scale_row(float* row, std::int64_t count, float factor) {
  Floats x;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    V::load(row + i, x);
    x *= factor;
    V::store(x, row + i);
  }
  for (; i < count; ++i) row[i] *= factor;
}

// What turns exp(x - part's largest) into the row's softmax.
float share(float largest, const ExpSum& row) {
  return static_cast<float>(std::exp(static_cast<double>(largest) - row.largest) / row.sum);
}

ExpSum exp_part(float* part, std::int64_t count) {
  const float largest = row_max(part, count);
  return {largest, exp_in_place(part, count, largest)};
}

}  // namespace

void ExpSum::add(const ExpSum& part) {
  if (sum == 0) {  // the first part
    *this = part;
    return;
  }
  const double most = std::max(largest, part.largest);
  sum = sum * std::exp(largest - most) + part.sum * std::exp(part.largest - most);
  largest = static_cast<float>(most);
}

double ExpSum::log() const { return largest + std::log(sum); }

ExpSum exp_sum(const float* part, std::int64_t count) {
  const float largest = row_max(part, count);
  return {largest, exp_sum_only(part, count, largest)};
}

void softmax_part(float* part, std::int64_t count, const ExpSum& row) {
  const ExpSum own = exp_part(part, count);
  scale_row(part, count, share(own.largest, row));
}

ExpSum softmax_row(float* row, std::int64_t count, std::int64_t part) {
  ExpSum all;
  std::vector<float> largest;
  for (std::int64_t first = 0; first < count; first += part) {
    const ExpSum own = exp_part(row + first, std::min(part, count - first));
    largest.push_back(own.largest);
    all.add(own);
  }
  for (std::int64_t first = 0; first < count; first += part)
    scale_row(row + first, std::min(part, count - first),
              share(largest[static_cast<std::size_t>(first / part)], all));
  return all;
}

}  // namespace zinf::model
