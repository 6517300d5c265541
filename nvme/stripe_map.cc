#include "nvme/stripe_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/error.h"

namespace zinf::nvme {

namespace {

constexpr int kMostUnits = 128;
constexpr int kMostUnitsOfFull = 4096;  // what an area's header allows
constexpr double kGoodEnough = 0.005;

// Largest relative difference of a drive's share from what its weight asks for.
double share_error(const std::vector<std::uint32_t>& counts, const std::vector<double>& weights,
                   double sum, int units) {
  double worst = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    worst = std::max(worst, std::abs(counts[i] / (weights[i] / sum * units) - 1));
  }
  return worst;
}

}  // namespace

std::vector<std::uint32_t> stripe_counts(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::uint32_t> best;
  double best_error = std::numeric_limits<double>::infinity();
  for (int units = static_cast<int>(weights.size()); units <= kMostUnits; ++units) {
    std::vector<std::uint32_t> counts;
    for (const double weight : weights) {
      counts.push_back(static_cast<std::uint32_t>(std::max(1.0, std::round(weight / sum * units))));
    }
    const double error = share_error(
        counts, weights, sum, static_cast<int>(std::accumulate(counts.begin(), counts.end(), 0u)));
    if (error < best_error) {
      best = counts;
      best_error = error;
    }
    if (best_error < kGoodEnough) break;
  }
  return best;
}

namespace {

// How many of the bytes each drive gets; `full`: those that get all that they have room for.
struct Shares {
  std::vector<double> bytes;
  std::vector<bool> full;
};

Shares share_out(const std::vector<double>& weights, const std::vector<double>& room,
                 double total) {
  Shares shares{room, std::vector<bool>(weights.size(), false)};
  for (bool changed = true; changed;) {
    changed = false;
    double rest = total, sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (shares.full[i]) {
        rest -= shares.bytes[i] = room[i];
      } else {
        sum += weights[i];
      }
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (shares.full[i]) continue;
      shares.bytes[i] = rest * weights[i] / sum;
      if (shares.bytes[i] <= room[i]) continue;
      shares.full[i] = changed = true;
    }
  }
  return shares;
}

}  // namespace

std::vector<std::uint32_t> stripe_counts(const std::vector<double>& weights,
                                         const std::vector<Bytes>& room, Bytes total, Bytes unit) {
  const std::vector<std::uint32_t> wanted = stripe_counts(weights);
  const auto fits = [&](const std::vector<std::uint32_t>& counts) {
    const StripeMap map(counts, unit);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (map.drive_bytes(i, total) > room[i]) return false;
    }
    return true;
  };
  if (fits(wanted)) return wanted;
  // A cycle that is not complete may hold more of a drive's units than its share of it.
  std::vector<double> most;
  for (const Bytes bytes : room)
    most.push_back(static_cast<double>(bytes - std::min(bytes, 2 * unit)));
  const Shares shares = share_out(weights, most, static_cast<double>(total));
  // Full drives are rounded down, what they leave is rounded up.
  const double units = kMostUnitsOfFull - static_cast<double>(weights.size());
  double rest = units, rest_bytes = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!shares.full[i]) rest_bytes += shares.bytes[i];
    if (shares.full[i]) rest -= std::floor(shares.bytes[i] / static_cast<double>(total) * units);
  }
  std::vector<std::uint32_t> counts;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double count = shares.full[i]
                             ? std::floor(shares.bytes[i] / static_cast<double>(total) * units)
                             : std::ceil(shares.bytes[i] / rest_bytes * rest);
    counts.push_back(static_cast<std::uint32_t>(std::max(1.0, count)));
  }
  return fits(counts) ? counts : wanted;
}

StripeMap::StripeMap(std::vector<std::uint32_t> counts, Bytes unit)
    : counts_(std::move(counts)), unit_(unit) {
  ZINF_CHECK(!counts_.empty() && unit_ > 0, "stripes need drives and a unit");
  // The drive that is furthest behind its share gets the next unit: neighbours alternate as much as
  // they can.
  const std::uint32_t cycle = std::accumulate(counts_.begin(), counts_.end(), 0u);
  std::vector<std::uint32_t> given(counts_.size(), 0);
  for (std::uint32_t i = 0; i < cycle; ++i) {
    std::size_t next = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t d = 0; d < counts_.size(); ++d) {
      const double due = (given[d] + 0.5) / counts_[d];
      if (given[d] < counts_[d] && due < least) {
        least = due;
        next = d;
      }
    }
    order_.push_back(static_cast<std::uint32_t>(next));
    rank_.push_back(given[next]++);
  }
}

StripeSegment StripeMap::first(std::uint64_t offset, Bytes bytes) const {
  if (counts_.size() == 1) return {0, offset, 0, bytes};
  const std::uint64_t unit = offset / unit_, within = offset % unit_;
  const std::uint64_t cycle = unit / order_.size(), place = unit % order_.size();
  const std::size_t drive = order_[place];
  const std::uint64_t drive_unit = cycle * counts_[drive] + rank_[place];
  return {drive, drive_unit * unit_ + within, 0, std::min(bytes, unit_ - within)};
}

Bytes StripeMap::drive_bytes(std::size_t drive, Bytes total) const {
  if (counts_.size() == 1) return total;
  const std::uint64_t units = total / unit_, rest = total % unit_;
  Bytes bytes = units / order_.size() * counts_[drive] * unit_;
  for (std::uint64_t place = 0; place < units % order_.size(); ++place) {
    if (order_[place] == drive) bytes += unit_;
  }
  if (order_[units % order_.size()] == drive) bytes += rest;
  return bytes;
}

}  // namespace zinf::nvme
