#include "cpu_optim/convert.h"

#include "cpu_optim/float_mode.h"
#include "cpu_optim/kernel_table.h"

namespace zinf::optim {

void fp32_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements, Isa isa) {
  kernels(isa).fp32_to_bf16(from, to, elements);
}

void master_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements, Isa isa) {
  kernels(isa).master_to_bf16(from, to, elements);
}

void bf16_to_fp32(const std::uint16_t* from, float* to, std::int64_t elements, Isa isa) {
  kernels(isa).bf16_to_fp32(from, to, elements);
}

void fp32_to_fp16(const float* from, std::uint16_t* to, std::int64_t elements, Isa isa) {
  const DefaultFloatMode mode;
  kernels(isa).fp32_to_fp16(from, to, elements);
}

void fp16_to_fp32(const std::uint16_t* from, float* to, std::int64_t elements, Isa isa) {
  const DefaultFloatMode mode;
  kernels(isa).fp16_to_fp32(from, to, elements);
}

void split_master(const float* master, std::uint16_t* weight, std::int16_t* remainder,
                  std::int64_t elements, Isa isa) {
  kernels(isa).split(master, weight, remainder, elements);
}

void join_master(const std::uint16_t* weight, const std::int16_t* remainder, float* master,
                 std::int64_t elements, Isa isa) {
  kernels(isa).join(weight, remainder, master, elements);
}

void add_rows(float* sum, const float* row, std::int64_t elements, Isa isa) {
  const DefaultFloatMode mode;
  kernels(isa).add(sum, row, elements);
}

}  // namespace zinf::optim
