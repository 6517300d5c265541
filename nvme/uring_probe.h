// What this kernel's io_uring can do beyond the least that the engine needs, found out by trying.
#pragma once

#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::nvme {

struct UringFeature {
  std::string name;
  std::string refusal;  // empty: it works
};

// Deferred task work, registered files, registered buffers, a polling kernel thread (SQPOLL). Empty
// when there is no io_uring at all.
std::vector<UringFeature> uring_features();

// Registers so many bytes of buffers and lets them go again: empty when that works (also where the
// limit of locked memory is lower but does not bind this process) and where there is no io_uring.
std::string registration_refusal(Bytes bytes);

// Polled completions (IOPOLL) on the directory's drive: empty when they work, else why not. `sysfs`
// is replaced in tests.
std::string polling_refusal(const std::string& directory, const std::string& sysfs = "/sys");

}  // namespace zinf::nvme
