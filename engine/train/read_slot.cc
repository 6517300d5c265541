#include "engine/train/read_slot.h"

#include <algorithm>
#include <future>

#include "engine/base/error.h"
#include "engine/plan/compile.h"
#include "gpu/host_memory.h"

namespace zinf::train {

namespace {

// Aligned for direct I/O whatever the state's format: a page of 8-bit moments is 65 KiB.
constexpr Bytes kPagesAtOnce = 16;

}  // namespace

void wait_for_io(const std::function<void(nvme::IoCallback)>& start) {
  std::promise<nvme::IoResult> done;
  start([&done](const nvme::IoResult& result) { done.set_value(result); });
  done.get_future().get().throw_if_failed();
}

void read_slot(swap::Tiers& tiers, int slot, int extents,
               const std::function<void(int extent, Bytes at, std::byte* memory, Bytes bytes)>& use,
               const std::function<bool()>& go_on) {
  Bytes widest = 0;
  for (int extent = 0; extent < extents; ++extent)
    widest = std::max(widest, kPagesAtOnce * tiers.page_bytes(extent));
  const gpu::HostMemory buffer(widest, "reading a commit");
  for (int extent = 0; extent < extents; ++extent) {
    const Bytes part = kPagesAtOnce * tiers.page_bytes(extent);
    const Bytes all = tiers.extent_bytes(extent);
    ZINF_CHECK(part % plan::kPage == 0, "parts that direct I/O can read");
    for (Bytes at = 0; at < all; at += part) {
      if (go_on && !go_on()) return;
      const Bytes bytes = std::min(part, all - at);
      wait_for_io([&](nvme::IoCallback done) {
        tiers.read(extent, slot, at, buffer.data(), bytes, std::move(done));
      });
      use(extent, at, buffer.data(), bytes);
    }
  }
}

}  // namespace zinf::train
