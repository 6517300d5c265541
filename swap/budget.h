// Bytes are reserved before they are allocated. A budget never gives out more than its limit.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "engine/base/bytes.h"

namespace zinf::swap {

class Budget;

// Move-only; gives its bytes back when it goes. The budget must outlive it.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation() { release(); }
  Reservation(Reservation&& other) noexcept { *this = static_cast<Reservation&&>(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  Bytes bytes() const { return bytes_; }

 private:
  friend class Budget;
  void release();
  Budget* budget_ = nullptr;
  std::string tag_;
  Bytes bytes_ = 0;
};

// One tier's budget. Thread-safe.
class Budget {
 public:
  Budget(std::string tier, Bytes limit) : tier_(std::move(tier)), limit_(limit) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Error(kDoesNotFit) names the tag, used / limit, and the largest holders.
  Reservation reserve(const std::string& tag, Bytes bytes);

  Bytes limit() const { return limit_; }
  Bytes used() const;
  Bytes peak() const;

 private:
  friend class Reservation;
  void give_back(const std::string& tag, Bytes bytes);
  std::string tier_;
  Bytes limit_;
  mutable std::mutex mutex_;
  Bytes used_ = 0;
  Bytes peak_ = 0;
  std::map<std::string, Bytes> holders_;
};

}  // namespace zinf::swap
