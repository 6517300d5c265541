// The seam between the executor and whatever computes: LibTorch (torch_compute.h) or a byte-mixing
// fake in tests. No LibTorch here. Calls come from one thread, the compute lane's. Pointers are
// device memory, valid for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/bytes.h"
#include "engine/data/batch.h"
#include "engine/model/dropout.h"
#include "engine/model/model_spec.h"

namespace zinf::model {

// A table may be too large for the device: its head then gets it in slices, multiples of
// head_rows_per_slice() but for the last. Of each micro-batch: forward calls (or next-token calls)
// over all slices in order; then backward calls over all slices in order, the last of which gives
// the gradients of everything but the table. The same bits as with the whole table.
struct TableSlice {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;      // 0: the call has the whole table
  std::span<std::byte> sums;  // the micro-batch's results so far; at a multiple of 64 bytes
};
// Of `sums`: a softmax's sum per position, then the hidden states' gradient in fp32.
constexpr Bytes kPositionSumsBytes = 32;
constexpr Bytes table_sums_bytes(std::int64_t positions, std::int64_t width) {
  return round_up(static_cast<Bytes>(positions) * kPositionSumsBytes, 64) +
         static_cast<Bytes>(positions * width) * 4;
}

enum class CallMode {
  kForward,  // block: outputs from inputs; head: adds this micro-batch's loss, computes no gradient
  kForwardKeep,  // as kForward, and fills `kept`
  kBackward,   // block: recompute (or read `kept`), then gradients; head: loss and gradients in one
               // go
  kNextToken,  // head only: no targets; the most likely next id of row 0's last position ->
               // next_token()
};

struct PieceOperand {
  const std::byte* weights =
      nullptr;  // the whole piece in the compute type, laid out as PieceSpec says
  // fp32, the whole piece. Backward only; nullptr for a frozen piece.
  float* gradients = nullptr;
  // true: gradients holds garbage and is overwritten, gaps and padding with zeros; false: added to.
  bool first_gradient = false;
  // One per tensor of the piece, false at first and kept over a step's backward calls: true where
  // no call of the step so far had a gradient for the tensor (its memory then holds zeros). The
  // update leaves such a tensor as it is. Computes that use all of their tensors need not look.
  char* unused = nullptr;  // nullptr: nobody asks
};

struct ActivationOperand {
  std::byte* value = nullptr;  // input: read; output: written (forward only)
  // Backward. Of an output: read. Of an input: written, or added to when `add_gradient`; nullptr:
  // not wanted. May be the same memory as `value` (the gradient takes its input's place).
  std::byte* gradient = nullptr;
  bool add_gradient = false;
};

struct StageCall {
  int stage = 0;
  int micro_batch = 0;  // index into the step's batch
  CallMode mode = CallMode::kForward;
  std::span<const PieceOperand> pieces;
  std::span<const ActivationOperand> inputs;
  std::span<const ActivationOperand> outputs;
  std::span<std::byte> kept;  // kForwardKeep: written; kBackward: read when not empty
  std::span<std::byte>
      workspace;  // every temporary of the call comes from here; too small is an Error(kFailed)
  // false: the previous run() was of the same visit, with the same weights and workspace, untouched
  // since, so what it left there (weights in another type) is used again. Results do not depend on
  // it; speed does.
  bool first_of_visit = true;
  // Head: which rows of its table weights and gradients of the operand StageSpec::table are.
  TableSlice slice;
};

class Compute {
 public:
  virtual ~Compute() = default;

  // The batch that the following calls work on; it must outlive them. Clears the losses.
  // loss_scale multiplies the gradients (1 unless fp16). dropout_key: dropout.h; kNoDropout in
  // evaluation.
  virtual void begin_step(const data::StepBatch& batch, double loss_scale,
                          std::uint64_t dropout_key) = 0;
  virtual void run(const StageCall& call) = 0;
  // to[i] = from[i] in bf16, to nearest even: complete gradients, on their way to where they wait.
  virtual void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t elements) = 0;

  // Sum of the micro-batch's target losses, once its head call has run (not averaged).
  virtual double loss_sum(int micro_batch) const = 0;
  virtual std::int32_t next_token() const = 0;

  // Largest use of `workspace` in the latest run(), in bytes from its start.
  virtual Bytes workspace_peak() const = 0;
};

}  // namespace zinf::model
