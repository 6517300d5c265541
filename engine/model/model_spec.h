// A model as plain data, without LibTorch: pieces (what moves), stages (what computes), activations
// (what flows). The planner needs nothing else; a family builds it from config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/layout.h"

namespace zinf::model {

using zinf::kQuantum;
using zinf::kTile;

enum class DType { kFloat32, kBFloat16, kFloat16 };
constexpr Bytes size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

struct TensorSpec {
  std::string name;                 // as in the HF folder
  std::vector<std::int64_t> shape;  // as in the HF folder
  std::int64_t offset = 0;          // elements from the piece's start, a multiple of kQuantum
  std::int64_t elements = 0;
  bool norm_or_bias = false;  // a candidate for "no weight decay"
  double init_std = 0;        // random init: normal(0, init_std); 0 means constant init_value
  double init_value = 0;
};

// The flat range of parameters moved as a unit. Trainable or frozen as a whole: a layer with frozen
// tensors is split into a trainable and a frozen piece.
struct PieceSpec {
  std::string name;
  std::vector<TensorSpec> tensors;
  std::int64_t elements = 0;    // padded to kTile; padding holds zeros and is never counted
  std::int64_t parameters = 0;  // without padding
  bool trainable = true;
  // A vocabulary table looked up by rows: tensors has one entry, [rows, width].
  bool table = false;
};

// A tensor that flows between stages: per micro-batch rows x length x width elements of the compute
// type.
struct ActivationSpec {
  std::string name;
  std::int64_t width = 0;
};

// Probabilities with which training drops elements, where an architecture has such a place.
struct DropoutRates {
  double embedding = 0;  // of the first hidden states
  double residual = 0;   // of what attention and MLP add to the hidden states
  double attention = 0;  // of attention's weights
  bool any() const { return embedding > 0 || residual > 0 || attention > 0; }
};

enum class StageKind {
  kLookup,  // host: rows of a table by token id; no compute call
  kBlock,   // device: forward, and backward by recompute (or from kept activations)
  kHead,    // device: forward, loss and backward in one call; no output activation
};

// Bytes that a compute call needs beyond its operands, as a polynomial of the micro-batch's shape.
// Measured once per shape by a probe where the model can run; this estimate serves `zinf plan` for
// other machines.
struct WorkspaceEstimate {
  double constant = 0;
  double per_position = 0;       // times rows x length
  double per_position_pair = 0;  // times rows x length x length
  Bytes bytes(int rows, int length) const {
    const double positions = static_cast<double>(rows) * length;
    return static_cast<Bytes>(constant + per_position * positions +
                              per_position_pair * positions * length);
  }
};

struct StageSpec {
  std::string name;
  StageKind kind = StageKind::kBlock;
  std::vector<int> pieces;   // in the order in which a compute call receives them
  std::vector<int> inputs;   // activation numbers
  std::vector<int> outputs;  // activation numbers
  // Head of a language model: position in `pieces` of the table [vocabulary, width] that makes the
  // logits. Else -1.
  int table = -1;
  // Floating-point operations of one forward pass: per position, and per position pair (attention).
  double forward_flops_per_position = 0;
  double forward_flops_per_position_pair = 0;
  WorkspaceEstimate forward_workspace;
  WorkspaceEstimate backward_workspace;  // with recompute; for the head: forward, loss and backward
  WorkspaceEstimate slice_forward_workspace;  // the head's, of calls with a slice of the table
  WorkspaceEstimate slice_backward_workspace;
  // Bytes per micro-batch that kept activations would take (0: this stage can only recompute).
  WorkspaceEstimate kept;
};

struct ModelSpec {
  std::string family;                    // "llama", "gpt2", "mlp", "custom"
  DType compute_type = DType::kFloat32;  // of working weights and activations
  std::vector<PieceSpec> pieces;
  std::vector<ActivationSpec> activations;
  std::vector<StageSpec> stages;   // in forward order
  std::int64_t vocabulary = 0;     // 0: not a language model
  std::int64_t max_length = 0;     // longest sequence the model accepts; 0: no limit
  std::int64_t feature_width = 0;  // regression: numbers per sample
  DropoutRates dropout;

  std::int64_t parameters() const {
    std::int64_t sum = 0;
    for (const PieceSpec& piece : pieces) sum += piece.parameters;
    return sum;
  }
};

// Lays tensors out one after the other (offset, elements from shape) and sets the piece's totals.
// Throws Error(kUsage) when a shape has a dimension below 1 or the piece would pass kMostElements.
void lay_out(PieceSpec& piece);
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

// Rows of the head's table in one matrix product: whole checksum pages, as a part of one can't be
// verified.
std::int64_t head_rows_per_slice(std::int64_t width);

// Splits pieces so that tensors whose name matches a glob pattern ("*", "?") of `freeze` end in
// frozen pieces, and adjusts the stages. Throws Error(kUsage) naming a pattern that matches
// nothing. A piece's tensors keep their order. A split piece P becomes P (trainable) and, next in
// `pieces` and in every stage's list, "P.frozen". Pieces that are frozen already stay so. Freezing
// every tensor is allowed only where something else is left to train.
void apply_freeze(ModelSpec& spec, const std::vector<std::string>& freeze);

// Where a compute call finds a tensor: StageCall::pieces[operand] at tensor->offset. tensor is
// nullptr when the stage has none of that name.
struct TensorPlace {
  int operand = -1;
  const TensorSpec* tensor = nullptr;
};
TensorPlace find_tensor(const ModelSpec& spec, const StageSpec& stage, std::string_view name);

// "*" any run of characters, "?" one, anything else itself; the whole name must match.
bool glob_match(std::string_view pattern, std::string_view name);

}  // namespace zinf::model
