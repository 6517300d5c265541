// Internal: what each instruction set's source provides. All functions take any number of elements
// and any alignment that fits the element type, except update (see there).
#pragma once

#include <cstdint>

#include "cpu_optim/dispatch.h"
#include "cpu_optim/state_schema.h"

namespace zinf::optim {

// The step's scalars as fp32, per parameter group. Each algorithm uses its part.
struct Coefficients {
  float gradient_factor;
  float l2;         // added to the gradient: g += l2 * w
  float decay;      // decoupled: w -= step_size * decay * w
  float first;      // Adam, Lion: 1 - beta1
  float second;     // Adam, Lion: 1 - beta2
  float eps;        // above 0, so that 0 / 0 is 0. Adam: times sqrt(bias correction 2)
  float step_size;  // Adam: lr * sqrt(bias correction 2) / bias correction 1; Adagrad: lr with its
                    // decay; else lr
  float initial;    // Adagrad
  float momentum;   // SGD: buffer = momentum * buffer + undamped * g
  float undamped;
  float of_buffer;  // SGD: w -= lr * (of_buffer * buffer + of_gradient * g)
  float of_gradient;
};

// One call covers whole quanta of at most one tile.
struct UpdateArgs {
  const float* gradient;
  void* weight;
  void* master;               // fp32 master or remainder; unused otherwise
  void* first;                // exp_avg, momentum_buffer
  void* second;               // exp_avg_sq, sum
  const std::uint64_t* keys;  // random key of each quantum
  std::int64_t elements;
  Coefficients c;
};

// The benchmark's limit: the gradient loaded, each state loaded (if so) and stored, nothing
// computed.
struct TouchArgs {
  const float* gradient;
  unsigned char* state[kMaxStates];
  std::int64_t quantum_bytes[kMaxStates];  // multiples of 4
  bool is_loaded[kMaxStates];
  int count;
  std::int64_t quanta;
};

enum Family { kFamilyAdam, kFamilyLion, kFamilyAdagrad, kFamilySgd, kFamilySgdMomentum, kFamilies };
enum WeightIo {
  kWeightFp32,
  kWeightBf16Master,
  kWeightSplit,
  kWeightBf16Sr,
  kWeightFp16Master,
  kWeightIos
};
enum MomentIo { kMomentFp32, kMomentBf16, kMomentInt8, kMomentIos };

struct KernelTable {
  void (*update[kFamilies][kWeightIos][kMomentIos])(const UpdateArgs&);

  // 8-bit moments (kernel_int8.h): `quanta` blocks of 260 bytes to and from fp32. `keys` as in
  // UpdateArgs.
  void (*decode_signed)(const void* from, float* to, std::int64_t quanta);
  void (*decode_unsigned)(const void* from, float* to, std::int64_t quanta);
  void (*encode_signed)(const float* from, void* to, std::int64_t quanta,
                        const std::uint64_t* keys);
  void (*encode_unsigned)(const float* from, void* to, std::int64_t quanta,
                          const std::uint64_t* keys);

  std::uint32_t (*touch)(const TouchArgs&);  // the result means nothing

  double (*sum_squares)(const float* from, std::int64_t elements);  // at most one tile

  void (*fp32_to_bf16)(const float*, std::uint16_t*, std::int64_t);
  void (*master_to_bf16)(const float*, std::uint16_t*, std::int64_t);
  void (*bf16_to_fp32)(const std::uint16_t*, float*, std::int64_t);
  void (*fp32_to_fp16)(const float*, std::uint16_t*, std::int64_t);
  void (*fp16_to_fp32)(const std::uint16_t*, float*, std::int64_t);
  void (*split)(const float*, std::uint16_t*, std::int16_t*, std::int64_t);
  void (*join)(const std::uint16_t*, const std::int16_t*, float*, std::int64_t);
  void (*add)(float*, const float*, std::int64_t);
};

// One per source file.
const KernelTable& scalar_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();

// The set must be available.
const KernelTable& kernels(Isa isa);

// For single elements. NaN bits of a master whose rounded weight would not be a NaN
// become a NaN whose weight is one; other bits come back as they are.
std::uint32_t keep_split_nan(std::uint32_t bits);

}  // namespace zinf::optim
