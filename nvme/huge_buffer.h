// Memory for measurements: 2 MiB aligned, on reserved huge pages where they hold all of it, else on
// transparent ones where the kernel grants them. On some drives scattered 4 KiB pages cost two
// thirds of the rate, so a measurement must say which it had.
#pragma once

#include <cstddef>

#include "engine/base/bytes.h"

namespace zinf::nvme {

class HugeBuffer {
 public:
  // Touches all of it. Throws Error(kDoesNotFit). `want_huge`: false asks for small pages, for
  // comparison.
  explicit HugeBuffer(Bytes bytes, bool want_huge = true);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() const { return data_; }
  Bytes size() const { return bytes_; }
  // Whether all of it lies on huge pages; of transparent ones /proc/self/smaps tells.
  bool huge() const { return huge_; }

 private:
  void fill();
  Bytes bytes_ = 0;
  void* mapping_ = nullptr;
  Bytes mapped_ = 0;
  std::byte* data_ = nullptr;
  bool huge_ = false;
};

}  // namespace zinf::nvme
