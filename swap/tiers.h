// The three tiers as the executor holds them: a device arena, a host arena, and extents with slots
// on NVMe. Every byte is reserved against its tier's budget before it is allocated; nothing is
// allocated afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/host_memory.h"
#include "nvme/page_checksums.h"
#include "nvme/store.h"
#include "swap/budget.h"

namespace zinf::swap {

struct ExtentSpec {
  Bytes bytes = 0;
  int slots = 1;
  bool scratch = false;  // worth nothing once the process ends: lies in an area of its own
  Bytes page_bytes = nvme::kChecksumPage;
};

struct TierOptions {
  Bytes device_arena = 0;
  Bytes host_arena = 0;
  std::vector<ExtentSpec> extents;
  Bytes device_budget = 0;
  // All that the process keeps in RAM. What it holds beside the arenas (libraries, heap, the device
  // arena where the device is host memory) is reserved first as `host_base`.
  Bytes host_budget = 0;
  Bytes host_base = 0;
  bool verify = true;                // checksums of written pages are checked at every read
  bool pin = true;                   // best effort: the host arena's pages are locked once, for I/O
  double copy_bytes_per_second = 0;  // throttles host <-> device; 0: no
  std::optional<nvme::StoreOptions> nvme;   // absent: no extents
  std::string scratch_ending = "-scratch";  // what the scratch area's name has after the area's
  // Given the host arena, whose pages are not there yet.
  std::function<void(std::byte*)> place_host;
  nvme::OpenMode open_mode =
      nvme::OpenMode::kCreate;  // of the state area; the scratch area is always made anew
};

class Tiers {
 public:
  explicit Tiers(const TierOptions& options);
  ~Tiers();  // completes what is in flight; removes the scratch area
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  gpu::Device& device() { return *device_; }
  std::byte* device_arena() { return device_->arena(); }
  std::byte* host_arena() { return host_.data(); }
  const Budget& device_budget() const { return device_budget_; }
  const Budget& host_budget() const { return host_budget_; }

  // Asynchronous, see nvme/store.h. Extents with a single slot ignore `slot`.
  void read(int extent, int slot, Bytes offset, std::byte* memory, Bytes bytes,
            nvme::IoCallback on_done);
  void write(int extent, int slot, Bytes offset, const std::byte* memory, Bytes bytes,
             nvme::IoCallback on_done);
  // For state extents whose pages the caller verifies and hashes itself, see nvme/store.h.
  Bytes extent_bytes(int extent) const;
  Bytes page_bytes(int extent) const { return page_bytes_[static_cast<std::size_t>(extent)]; }
  bool verifies() const { return verify_ && state_store_ != nullptr; }
  void read_unverified(int extent, int slot, Bytes offset, std::byte* memory, Bytes bytes,
                       nvme::IoCallback on_done);
  void check_pages(int extent, int slot, Bytes offset, Bytes bytes,
                   std::span<const std::uint64_t> sums);
  void write_hashed(int extent, int slot, Bytes offset, const std::byte* memory, Bytes bytes,
                    std::vector<std::uint64_t> sums, nvme::IoCallback on_done);
  void sync(nvme::IoCallback on_done);

  // The checksums by which reads of the state extents [0, extents) are verified, of one slot, for a
  // commit; empty without `verify`. No write to that slot may be in flight.
  std::string save_pages(int slot, int extents) const;
  // The inverse. whose: "step 4", for the Error(kFailed) about a table of another version or
  // layout. Nothing without `verify`.
  void load_pages(int slot, int extents, const std::string& table, const std::string& whose);
  // Where the slot's bytes lie in the drives' files, of all state extents [0, extents).
  std::vector<nvme::FileRange> file_ranges(int slot, int extents) const;
  nvme::Store* store() { return state_store_.get(); }
  Bytes nvme_bytes() const;
  // Of the host arena: what is locked now, and by any of the drives' engines.
  Bytes pinned_bytes() const;
  // Of both areas, one entry per drive.
  std::vector<nvme::DriveCounters> counters() const;

 private:
  std::size_t page_count(int extent) const;
  nvme::ExtentId id_of(int extent, int slot) const;
  nvme::Store& store_of(int extent) {
    return scratch_[static_cast<std::size_t>(extent)] ? *scratch_store_ : *state_store_;
  }
  Budget device_budget_;
  Budget host_budget_;
  Reservation device_reservation_, base_reservation_, host_reservation_;
  std::vector<std::vector<nvme::ExtentId>> slots_;
  std::vector<char> scratch_;
  std::vector<Bytes> page_bytes_;
  bool verify_ = true;
  // The stores go first: their lanes must end before the memory that their requests point to.
  gpu::HostMemory host_;
  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<nvme::Store> state_store_, scratch_store_;
};

}  // namespace zinf::swap
