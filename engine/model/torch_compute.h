// Compute by LibTorch. No LibTorch in this header.
#pragma once

#include <memory>

#include "engine/model/compute.h"
#include "engine/model/model.h"

namespace zinf::model {

// How matrix products of a bf16 model are computed. Weights, stage inputs and outputs and their
// gradients are bf16 either way, gradients of weights fp32. An fp16 model computes as kFloat32
// says: what overflows, overflows where a stage's results are rounded.
enum class Bf16Math {
  kAuto,     // kNative where the processor multiplies bf16 (avx512_bf16, AMX), else kFloat32
  kNative,   // every operation of a stage in bf16, as PyTorch does without autocast
  kFloat32,  // weights are widened once per visit (in the workspace), the stage computes in fp32
};

struct ComputeOptions {
  Bf16Math bf16_math = Bf16Math::kAuto;
};

// One thread at a time may call it (the compute lane's). LibTorch's threads: torch_runtime.h.
// Operands must start at multiples of 64 bytes. Throws Error(kFailed) when a call needs more
// workspace than given.
std::unique_ptr<Compute> make_torch_compute(const Model& model, const ComputeOptions& options = {});

}  // namespace zinf::model
