// What a micro-batch adds to the gradients of a linear layer's weights, from bf16 to fp32 sums, by
// our own kernel: LibTorch's rounds each micro-batch's share to bf16 first and adds it in another
// pass over memory. On processors with bf16 dot products but without AMX.
#pragma once

#include <ATen/core/Tensor.h>

namespace zinf::model {

// Whether this processor and these matrices have it.
bool has_bf16_gradient(const at::Tensor& a, const at::Tensor& b);

// sums += scale a^T b, or = where not `keep`. a: [positions, rows], b: [positions, columns], bf16
// with dense rows; sums: [rows, columns], fp32 with dense rows. Positions are added in order, 256
// at a time. On all of LibTorch's threads; bits do not depend on their number.
void add_bf16_gradient(at::Tensor sums, const at::Tensor& a, const at::Tensor& b, bool keep,
                       float scale = 1);

}  // namespace zinf::model
