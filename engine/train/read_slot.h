// All bytes of one slot of a run's area, every page verified.
#pragma once

#include <cstddef>
#include <functional>

#include "engine/base/bytes.h"
#include "nvme/io_request.h"
#include "swap/tiers.h"

namespace zinf::train {

// Starts a transfer and waits for it. Throws Error as it failed.
void wait_for_io(const std::function<void(nvme::IoCallback)>& start);

// The state extents [0, extents), in order, part by part, as long as go_on() says (empty: to the
// end). A part holds whole pages, else none would be compared. Throws what I/O throws, a damaged
// page included.
void read_slot(swap::Tiers& tiers, int slot, int extents,
               const std::function<void(int extent, Bytes at, std::byte* memory, Bytes bytes)>& use,
               const std::function<bool()>& go_on = {});

}  // namespace zinf::train
