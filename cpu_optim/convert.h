// Number formats, whole arrays at a time: bf16, fp16, split master weights, sums of fp32 rows. All
// instruction sets give the same bits, NaN included. bf16, fp16 and the split weight are carried as
// their 16 bits.
#pragma once

#include <cstdint>

#include "cpu_optim/dispatch.h"

namespace zinf::optim {

// fp32 -> bf16, nearest even. NaN stays NaN (made quiet).
void fp32_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements,
                  Isa isa = best_isa());
// fp32 master -> bf16 working weight: nearest, ties away from zero. NaN stays NaN.
void master_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements,
                    Isa isa = best_isa());
void bf16_to_fp32(const std::uint16_t* from, float* to, std::int64_t elements,
                  Isa isa = best_isa());

// fp32 -> fp16, nearest even, overflow to infinity, denormals kept. NaN stays NaN.
void fp32_to_fp16(const float* from, std::uint16_t* to, std::int64_t elements,
                  Isa isa = best_isa());
void fp16_to_fp32(const std::uint16_t* from, float* to, std::int64_t elements,
                  Isa isa = best_isa());

// master = (weight << 16) + remainder, as bits, where weight is master_to_bf16's. The pair rebuilds
// the master exactly. One exception, as there are more fp32 NaNs than pairs whose weight is a NaN:
// the 131,070 NaNs whose weight would round to infinity or zero (0x7F800001-0x7F807FFF,
// 0x7FFF8000-0x7FFFFFFF, either sign) come back as another NaN. Arithmetic never makes the former
// from numbers.
void split_master(const float* master, std::uint16_t* weight, std::int16_t* remainder,
                  std::int64_t elements, Isa isa = best_isa());
void join_master(const std::uint16_t* weight, const std::int16_t* remainder, float* master,
                 std::int64_t elements, Isa isa = best_isa());

// sum[i] += row[i].
void add_rows(float* sum, const float* row, std::int64_t elements, Isa isa = best_isa());

}  // namespace zinf::optim
