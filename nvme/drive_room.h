// Which part of a new area each drive takes: by its weight, as far as it has room.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/store.h"

namespace zinf::nvme {

// Stripe counts for an area of `total` bytes. `files`: the area's, one per drive; with `replace`
// the space that they take already is room too. A drive that gets less than its weight asks for is
// said once.
std::vector<std::uint32_t> stripe_counts_with_room(const StoreOptions& options,
                                                   const std::vector<std::string>& files,
                                                   Bytes total, bool replace);

// Shares of the bytes, adding up to 1, that the drives of an area of about `total` bytes will have:
// those of the area that is there, if it stays, else as above.
std::vector<double> planned_shares(const StoreOptions& options, Bytes total, bool stays);

}  // namespace zinf::nvme
