// What LibTorch does with bf16 in several passes, with temporaries or slowly, in one pass. bf16 as
// its bits. On all of LibTorch's threads, but for single rows; bits do not depend on their number.
#pragma once

#include <cstdint>

namespace zinf::model {

// to = to x keep + from x scale, keep being 0 or 1.
void accumulate(float* to, const std::uint16_t* from, std::int64_t count, bool keep,
                float scale = 1);

// Rounded to nearest even; NaN stays NaN.
void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t count);

// One row of a matrix, on the calling thread.
void widen_row(const std::uint16_t* from, float* to, std::int64_t count);
void round_row(const float* from, std::uint16_t* to, std::int64_t count);

// to = to x keep + the sums of the columns of `rows` rows, `stride` elements apart; rows are added
// in order.
void accumulate_columns(float* to, const std::uint16_t* from, std::int64_t stride,
                        std::int64_t rows, std::int64_t columns, bool keep);

// GELU in its tanh form, x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), and its derivative times
// `gradient`; computed in fp32, rounded to nearest even.
void gelu_tanh(const std::uint16_t* x, std::uint16_t* y, std::int64_t count);
void gelu_tanh_backward(const std::uint16_t* gradient, const std::uint16_t* x, std::uint16_t* to_x,
                        std::int64_t count);

}  // namespace zinf::model
