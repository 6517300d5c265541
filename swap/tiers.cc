#include "swap/tiers.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "nvme/page_checksums.h"

namespace zinf::swap {

Tiers::Tiers(const TierOptions& options)
    : device_budget_("device", options.device_budget), host_budget_("host", options.host_budget) {
  verify_ = options.verify;
  device_reservation_ = device_budget_.reserve("the device arena", options.device_arena);
  base_reservation_ = host_budget_.reserve("runtime base", options.host_base);
  host_reservation_ = host_budget_.reserve("the host arena", options.host_arena);
  ZINF_CHECK(options.nvme.has_value() || options.extents.empty(), "extents need a drive");
  for (const ExtentSpec& extent : options.extents) {
    std::unique_ptr<nvme::Store>& store = extent.scratch ? scratch_store_ : state_store_;
    if (!store) {
      nvme::StoreOptions of_area = *options.nvme;
      of_area.verify = options.verify;
      if (extent.scratch) of_area.area += options.scratch_ending;
      store = std::make_unique<nvme::Store>(of_area);
    }
    std::vector<nvme::ExtentId> slots;
    for (int slot = 0; slot < extent.slots; ++slot)
      slots.push_back(store->allocate(extent.bytes, extent.page_bytes));
    slots_.push_back(std::move(slots));
    scratch_.push_back(extent.scratch);
    page_bytes_.push_back(extent.page_bytes);
  }
  if (state_store_) state_store_->open(options.open_mode);
  if (scratch_store_) scratch_store_->open(nvme::OpenMode::kReplace);
  // A reader's needs no name, so that nothing is left of it however it ends.
  if (scratch_store_ && options.open_mode == nvme::OpenMode::kRead) scratch_store_->remove();
  host_ = gpu::HostMemory(options.host_arena, "the host arena");
  if (options.place_host) options.place_host(host_.data());
  for (nvme::Store* store : {state_store_.get(), scratch_store_.get()}) {
    if (store && options.pin) store->add_memory({host_.data(), host_.size()});
  }
  device_ = gpu::make_host_device({options.device_arena, options.copy_bytes_per_second});
}

nvme::ExtentId Tiers::id_of(int extent, int slot) const {
  const auto& slots = slots_[static_cast<std::size_t>(extent)];
  return slots[static_cast<std::size_t>(slot) % slots.size()];
}

void Tiers::read(int extent, int slot, Bytes offset, std::byte* memory, Bytes bytes,
                 nvme::IoCallback on_done) {
  store_of(extent).read(id_of(extent, slot), offset, memory, bytes, std::move(on_done));
}

void Tiers::write(int extent, int slot, Bytes offset, const std::byte* memory, Bytes bytes,
                  nvme::IoCallback on_done) {
  store_of(extent).write(id_of(extent, slot), offset, memory, bytes, std::move(on_done));
}

std::size_t Tiers::page_count(int extent) const {
  return nvme::page_count(extent_bytes(extent), page_bytes(extent));
}

Bytes Tiers::extent_bytes(int extent) const {
  const nvme::Store& store =
      scratch_[static_cast<std::size_t>(extent)] ? *scratch_store_ : *state_store_;
  return store.extent_bytes(id_of(extent, 0));
}

void Tiers::read_unverified(int extent, int slot, Bytes offset, std::byte* memory, Bytes bytes,
                            nvme::IoCallback on_done) {
  store_of(extent).read_unverified(id_of(extent, slot), offset, memory, bytes, std::move(on_done));
}

void Tiers::check_pages(int extent, int slot, Bytes offset, Bytes bytes,
                        std::span<const std::uint64_t> sums) {
  store_of(extent).check_pages(id_of(extent, slot), offset, bytes, sums);
}

void Tiers::write_hashed(int extent, int slot, Bytes offset, const std::byte* memory, Bytes bytes,
                         std::vector<std::uint64_t> sums, nvme::IoCallback on_done) {
  store_of(extent).write_hashed(id_of(extent, slot), offset, memory, bytes, std::move(sums),
                                std::move(on_done));
}

namespace {
constexpr std::string_view kPagesMagic = "zinf-pages-v1\n  ";
}

std::string Tiers::save_pages(int slot, int extents) const {
  if (!state_store_ || !verify_) return "";
  std::string out(kPagesMagic);
  for (int extent = 0; extent < extents; ++extent) {
    const std::vector<std::uint64_t> pages = state_store_->page_checksums(id_of(extent, slot));
    out.append(reinterpret_cast<const char*>(pages.data()), pages.size() * sizeof(std::uint64_t));
  }
  return out;
}

void Tiers::load_pages(int slot, int extents, const std::string& table, const std::string& whose) {
  if (!state_store_ || !verify_) return;
  std::size_t expected = kPagesMagic.size();
  for (int extent = 0; extent < extents; ++extent) {
    expected += page_count(extent) * sizeof(std::uint64_t);
  }
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorKind::kFailed, str("the page table of ", whose, ": ", why),
                "use the zinf that wrote it, or set io.verify: false to read without checksums");
  };
  if (!table.starts_with(kPagesMagic)) {
    const std::string found = table.substr(0, table.substr(0, kPagesMagic.size()).find('\n'));
    fail(str("format \"", found, "\", this zinf reads zinf-pages-v1"));
  }
  if (table.size() != expected)
    fail(str("of another layout: expected ", expected, " bytes, found ", table.size()));
  const char* at = table.data() + kPagesMagic.size();
  for (int extent = 0; extent < extents; ++extent) {
    std::vector<std::uint64_t> pages(page_count(extent));
    std::memcpy(pages.data(), at, pages.size() * sizeof(std::uint64_t));
    at += pages.size() * sizeof(std::uint64_t);
    state_store_->restore_page_checksums(id_of(extent, slot), pages);
  }
}

std::vector<nvme::FileRange> Tiers::file_ranges(int slot, int extents) const {
  std::vector<nvme::FileRange> all;
  for (int extent = 0; extent < extents; ++extent) {
    for (const nvme::FileRange& range : state_store_->file_ranges(id_of(extent, slot)))
      all.push_back(range);
  }
  return all;
}

Tiers::~Tiers() {
  if (!scratch_store_) return;
  try {
    scratch_store_->remove();
  } catch (const std::exception& error) {
    log::warning(str("the scratch area could not be removed: ", error.what()));
  }
}

void Tiers::sync(nvme::IoCallback on_done) {
  if (state_store_) {
    state_store_->sync(std::move(on_done));
  } else {
    on_done({});
  }
}

Bytes Tiers::nvme_bytes() const {
  return (state_store_ ? state_store_->allocated_bytes() : 0) +
         (scratch_store_ ? scratch_store_->allocated_bytes() : 0);
}

Bytes Tiers::pinned_bytes() const {
  Bytes most = 0;
  for (const nvme::Store* store : {state_store_.get(), scratch_store_.get()}) {
    if (!store) continue;
    for (const nvme::DriveCounters& drive : store->counters())
      most = std::max(most, drive.lane.pinned_bytes);
  }
  return most;
}

std::vector<nvme::DriveCounters> Tiers::counters() const {
  std::vector<nvme::DriveCounters> sum;
  if (state_store_) sum = state_store_->counters();
  if (!scratch_store_) return sum;
  const std::vector<nvme::DriveCounters> scratch = scratch_store_->counters();
  if (sum.empty()) return scratch;
  for (std::size_t drive = 0; drive < sum.size(); ++drive) {
    sum[drive].lane.bytes_read += scratch[drive].lane.bytes_read;
    sum[drive].lane.bytes_written += scratch[drive].lane.bytes_written;
  }
  return sum;
}

}  // namespace zinf::swap
