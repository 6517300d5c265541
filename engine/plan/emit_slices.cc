// A head whose table comes to the device in slices: once over all of them for the softmax's sums
// and the loss, then once more for the gradients.
#include <algorithm>

#include "engine/base/str.h"
#include "engine/plan/emitter.h"

namespace zinf::plan {

bool Emitter::in_slices(const Visit& visit) const {
  return model_.stages[visit.stage].kind == model::StageKind::kHead && sliced_table(in_) >= 0;
}

std::vector<Emitter::Part> Emitter::table_slices() const {
  const model::PieceSpec& table = model_.pieces[sliced_table(in_)];
  const std::int64_t rows = in_.settings.slice_rows, width = table.tensors[0].shape[1];
  std::vector<Part> slices;
  for (std::int64_t row = 0; row < table.tensors[0].shape[0]; row += rows)
    slices.push_back({row * width, rows * width});
  slices.back().count = table.elements - slices.back().first;  // with the padding
  return slices;
}

// A slice's weights on the device, brought there unless the table stays there. Two buffers in turn:
// one is filled while the other is used.
Operand Emitter::slice_weights(int piece, Part part, std::size_t turn) {
  Operand operand = {Role::kWeights, 0, -1, 0, in_.states[0].bytes(part.count), false};
  if (b_.state_tier(piece, 0) == Tier::kDevice) {
    operand.buffer = b_.resident_state(piece, 0);
    operand.offset = in_.states[0].bytes(part.first);
    return operand;
  }
  operand.buffer =
      b_.buffer(str("weights of a slice ", turn % 2 == 0 ? "a " : "b ", segment_name(b_.segment())),
                Arena::kDevice, in_.states[0].bytes(largest_slice()), Crosses::kNothing);
  fetch_weights(piece, part, operand.buffer, b_.updates());
  return operand;
}

std::int64_t Emitter::largest_slice() const {
  std::int64_t most = 0;
  for (const Part& slice : table_slices()) most = std::max(most, slice.count);
  return most;
}

// Where a slice's gradients grow; they come back there for a later group.
Operand Emitter::slice_gradients(int piece, Part part, bool first_group) {
  const model::PieceSpec& table = model_.pieces[piece];
  Operand operand = {Role::kGradient, 0, -1, 0, gradient_sum_bytes(part.count), true};
  if (!table.trainable) return operand;
  if (sums_stay(piece)) {
    operand.buffer = device_sums(piece);
    operand.offset = gradient_sum_bytes(part.first);
    return operand;
  }
  operand.buffer =
      b_.buffer(str("gradients of a slice ", segment_name(b_.segment())), Arena::kDevice,
                gradient_sum_bytes(largest_slice()), Crosses::kNothing);
  if (!first_group) gradients_in(piece, part, operand.buffer);
  return operand;
}

void Emitter::run_slices(std::size_t number, const Visit& visit) {
  const int piece = sliced_table(in_);
  const std::vector<Part> slices = table_slices();
  const std::vector<int> gradients = gradient_buffers(number, visit);
  const std::size_t turns = slices.size() * (visit.backward ? 2 : 1);
  Operand ahead = slice_weights(piece, slices[0], 0);
  load(number, visit, visit.first);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    SliceCall call;
    call.piece = piece;
    call.part = slices[turn % slices.size()];
    call.backward = turn >= slices.size();
    call.last = turn % slices.size() + 1 == slices.size();
    call.weights = ahead;
    if (turn + 1 < turns)
      ahead = slice_weights(piece, slices[(turn + 1) % slices.size()], turn + 1);
    if (call.backward) call.gradients = slice_gradients(piece, call.part, visit.group == 0);
    // The hidden states come once and stay until the last slice turns them into their gradient.
    for (int m = visit.first; m < visit.last; ++m) {
      if (turn == 0 && m + 1 < visit.last) load(number, visit, m + 1);
      compute(number, visit, m, gradients, &call);
      if (turn + 1 == turns && m > visit.first) store(number, visit, m - 1);
    }
    const bool stays = sums_stay(piece);
    const bool last_group = visit.group + 1 == groups_of(in_.settings);
    if (call.gradients.buffer < 0) continue;
    // What waits on the device is normed as a whole, below.
    if (!stays) gradients_out(piece, call.part, call.gradients.buffer, last_group);
    if (stays && call.last) gradients_out(piece, whole(piece), call.gradients.buffer, last_group);
  }
  store(number, visit, visit.last - 1);
  leave(number, visit, gradients);
}

}  // namespace zinf::plan
