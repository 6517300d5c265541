// The gradient of a range, as the norm and the update take it: fp32, or bf16 as its 16 bits, which
// is widened a tile at a time on its way in.
#pragma once

#include <cstdint>

namespace zinf::optim {

class Gradient {
 public:
  Gradient(const float* values) : fp32_(values) {}
  Gradient(const std::uint16_t* bf16) : bf16_(bf16) {}

  // Elements [first, first + elements) in fp32: where they are, or widened into `room` by `widen`,
  // which is KernelTable::bf16_to_fp32.
  const float* values(std::int64_t first, std::int64_t elements, float* room,
                      void (*widen)(const std::uint16_t*, float*, std::int64_t)) const {
    if (bf16_ == nullptr) return fp32_ + first;
    widen(bf16_ + first, room, elements);
    return room;
  }

 private:
  const float* fp32_ = nullptr;
  const std::uint16_t* bf16_ = nullptr;
};

}  // namespace zinf::optim
