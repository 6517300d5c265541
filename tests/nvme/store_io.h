// Whole extents, there and back.
#pragma once

#include "nvme/store.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {

inline void write_all(Store& store, ExtentId extent, const Memory& memory) {
  wait_for([&](IoCallback done) {
    store.write(extent, 0, memory.data(), memory.size(), done);
  }).throw_if_failed();
}

inline void read_all(Store& store, ExtentId extent, const Memory& memory) {
  wait_for([&](IoCallback done) {
    store.read(extent, 0, memory.data(), memory.size(), done);
  }).throw_if_failed();
}

}  // namespace zinf::nvme
