// The optimizer step on host memory: one pass over a range of a piece, in place, in cache-sized
// tiles.
//
//   Optimizer optimizer(format, hyper, choose_isa("auto"));
//   Pool pool;
//   StateView view;                                  // pointers in the order of schema(format)
//   optimizer.update(pool, view, gradient, first_element, elements, ranges, groups, scalars);
//
// The result's bits depend on the inputs only: not on how a piece is cut into ranges, threads or
// instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "cpu_optim/dispatch.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/pages.h"
#include "cpu_optim/state_schema.h"
#include "cpu_optim/threads.h"

namespace zinf::optim {

// Names and defaults as PyTorch's.
struct Hyper {
  double beta1 = 0.9;              // Adam, Lion
  double beta2 = 0.999;            // Adam, Lion (PyTorch has no Lion; its paper: 0.9, 0.99)
  double eps = 1e-8;               // Adam, Adagrad: outside the root
  bool bias_correction = true;     // Adam
  double momentum = 0.0;           // SGD
  double dampening = 0.0;          // SGD: not applied in step 1
  bool nesterov = false;           // SGD
  double lr_decay = 0.0;           // Adagrad: lr / (1 + (step - 1) * lr_decay)
  double initial_accumulator = 0;  // Adagrad: added to the sum under the root, not stored in it
};

// A parameter group. Decay is decoupled for AdamW and Lion, L2 (added to the gradient) for Adam,
// Adagrad, SGD.
struct Group {
  double lr_factor = 1.0;
  double weight_decay = 0.0;
};

// The elements [first_element, first_element + elements) of the piece belong to groups[group].
// Ranges ascend and start at multiples of kQuantum; what lies between two of them, or after the
// last, is padding.
struct GroupRange {
  std::int64_t first_element = 0;
  std::int64_t elements = 0;
  int group = 0;
  // Its states stay as they are: parameters that got no gradient in this step. Not where 16-bit
  // weights follow an fp32 master, which are written without being read.
  bool keep = false;
};

// Fixed at the step's border, the same for all of its pieces (but for the seed).
struct StepScalars {
  std::int64_t step = 1;  // from 1; for bias correction. Skipped steps do not count
  double lr = 0.0;
  double gradient_factor =
      1.0;  // clip factor / loss scale; multiplies the gradient, rounded to fp32
  std::uint64_t seed =
      0;  // stochastic rounding: the caller's key for (run, piece); step and element are mixed in
  bool moments_are_zero = false;  // the moments' bytes are not read but taken as zero (first step)
};

// One pointer per state, in schema order, each at first_element's byte. Aligned to their element
// type at least; 64 bytes is best.
struct StateView {
  std::array<void*, kMaxStates> state{};
};

struct KernelTable;

// Immutable: one object serves all threads and pieces.
class Optimizer {
 public:
  Optimizer(const Format& format, const Hyper& hyper, Isa isa = best_isa());

  const Format& format() const { return format_; }
  const Hyper& hyper() const { return hyper_; }
  Isa isa() const { return isa_; }

  // Updates the range [first_element, first_element + elements) of a piece. first_element counts
  // from the piece's start; with int8 moments it and `elements` are multiples of kQuantum,
  // otherwise anything. gradient[0] belongs to first_element; it is not changed and must be finite
  // (see tile_sums). Returns the number of elements in the range that belong to a group; padding is
  // passed over like the range before it, and stays zero. With `pages` the states are summed as
  // they pass by; what was read is updated whatever its sums turn out to be, and comparing them is
  // the caller's.
  std::int64_t update(Pool& pool, const StateView& view, Gradient gradient,
                      std::int64_t first_element, std::int64_t elements,
                      std::span<const GroupRange> ranges, std::span<const Group> groups,
                      const StepScalars& scalars, UpdatePages* pages = nullptr) const;

 private:
  Format format_;
  Hyper hyper_;
  Isa isa_;
  const KernelTable* kernels_;
};

}  // namespace zinf::optim
