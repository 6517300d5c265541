#include "swap/budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::swap {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  release();
  budget_ = std::exchange(other.budget_, nullptr);
  tag_ = std::move(other.tag_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Reservation::release() {
  if (budget_ != nullptr) budget_->give_back(tag_, bytes_);
  budget_ = nullptr;
  bytes_ = 0;
}

Reservation Budget::reserve(const std::string& tag, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > limit_ - used_) {
    std::vector<std::pair<Bytes, std::string>> largest;
    for (const auto& [holder, held] : holders_) largest.emplace_back(held, holder);
    std::sort(largest.rbegin(), largest.rend());
    std::string holders;
    for (std::size_t i = 0; i < largest.size() && i < 3; ++i) {
      holders += str(i == 0 ? "; largest holders: " : ", ", largest[i].second, " ",
                     format_bytes(largest[i].first));
    }
    throw Error(
        ErrorKind::kDoesNotFit,
        str("the ", tier_, " budget is too small for ", tag, ": needs ", format_bytes(bytes),
            ", used ", format_bytes(used_), " of ", format_bytes(limit_), holders),
        str("raise memory.", tier_, " to at least ", format_bytes(used_ + bytes)));
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  holders_[tag] += bytes;
  Reservation reservation;
  reservation.budget_ = this;
  reservation.tag_ = tag;
  reservation.bytes_ = bytes;
  return reservation;
}

Bytes Budget::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

Bytes Budget::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void Budget::give_back(const std::string& tag, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
  const auto holder = holders_.find(tag);
  holder->second -= bytes;
  if (holder->second == 0) holders_.erase(holder);
}

}  // namespace zinf::swap
