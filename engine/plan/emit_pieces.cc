#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/plan/emitter.h"

namespace zinf::plan {

namespace {

Op make(OpKind kind, Lane lane, int piece, std::int64_t first, std::int64_t count) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.piece = piece;
  op.first = first;
  op.count = count;
  return op;
}

Operand as(Operand operand, Role role, bool writes) {
  operand.role = role;
  operand.writes = writes;
  return operand;
}

// Transfers move whole pages; a state's last page may be partly unused.
Operand paged(Operand operand) {
  operand.bytes = round_up(operand.bytes, kPage);
  return operand;
}

void add_copy(Op& op, Operand from, Operand to) {
  op.operands.push_back(as(from, Role::kFrom, false));
  op.operands.push_back(as(to, Role::kTo, true));
}

}  // namespace

// Where a range of the complete gradient, or of the sums that a later group goes on with, is when
// the host works on it: at home in host memory, or in a slot.
Operand Emitter::gradient_home(int piece, std::int64_t first, std::int64_t count, int slot,
                               bool complete) {
  const Bytes bytes = b_.gradient_bytes(count, complete);
  if (in_.placement.pieces[piece].gradients != Tier::kHost) {
    return b_.slot_operand(Role::kGradient, slot, b_.gradient_section(), bytes, true);
  }
  const model::PieceSpec& spec = model_.pieces[piece];
  const int buffer = b_.buffer(str(complete ? "gradient " : "gradient sums ", spec.name),
                               Arena::kHost, b_.gradient_bytes(spec.elements, complete),
                               complete ? Crosses::kStep : Crosses::kNothing);
  return {Role::kGradient, 0, buffer, b_.gradient_bytes(first, complete), bytes, true};
}

namespace {
// The complete gradient in device memory, when that is where it waits.
Operand device_gradient(Builder& b, int piece, std::int64_t first, std::int64_t count) {
  const model::PieceSpec& spec = b.input.model->pieces[piece];
  const int buffer = b.buffer(str("gradient ", spec.name), Arena::kDevice,
                              b.input.gradient_bytes(spec.elements), Crosses::kStep);
  return {Role::kGradient,
          0,
          buffer,
          b.input.gradient_bytes(first),
          b.input.gradient_bytes(count),
          false};
}
}  // namespace

// Where the gradient of a piece is summed if it waits on the device: where it waits, unless it is
// rounded.
int Emitter::device_sums(int piece) {
  const model::PieceSpec& spec = model_.pieces[piece];
  if (!in_.rounds_gradients()) return device_gradient(b_, piece, 0, spec.elements).buffer;
  return b_.buffer(str("gradient sums ", spec.name), Arena::kDevice,
                   gradient_sum_bytes(spec.elements), Crosses::kNothing);
}

// Whether what one visit of the piece has summed stays on the device.
bool Emitter::sums_stay(int piece) const {
  return in_.placement.pieces[piece].gradients == Tier::kDevice &&
         (!in_.rounds_gradients() || groups_of(in_.settings) > 1);
}

// The ops that bring a range's states to where the host updates them; those without operands are
// not needed.
struct Emitter::UpdateOps {
  Op read;
  Op copy_out;
  Op update;
};

// device_weights: a device buffer that holds the piece's weights as the state has them, or -1.
Emitter::UpdateOps Emitter::update_ops(int piece, std::int64_t first, std::int64_t count, int slot,
                                       int device_weights) {
  UpdateOps ops = {make(OpKind::kRead, Lane::kRead, piece, first, count),
                   make(OpKind::kCopyOut, Lane::kD2H, piece, first, count),
                   make(OpKind::kUpdate, Lane::kOptimizer, piece, first, count)};
  for (int state = 0; state < b_.states_of(piece); ++state) {
    const Operand at = b_.state_operand(piece, state, first, count, slot);
    ops.update.operands.push_back(at);
    if (state == 0 && b_.weight_follows_master()) continue;  // written by the update, never read
    const Bytes offset = b_.layout(piece, state).bytes(first);
    if (state == 0 && device_weights >= 0) {
      add_copy(ops.copy_out, {Role::kFrom, 0, device_weights, offset, at.bytes, false}, at);
    } else if (b_.state_tier(piece, state) == Tier::kNvme) {
      ops.read.operands.push_back(paged(as(at, Role::kTo, true)));
      ops.read.extents.push_back(b_.state_range(piece, state, first, count));
    } else if (b_.state_tier(piece, state) == Tier::kDevice) {
      add_copy(ops.copy_out,
               {Role::kFrom, 0, b_.resident_state(piece, state), offset, at.bytes, false}, at);
    }
  }
  return ops;
}

// Fetch -> update -> write back, for one range of a piece. The updated weights also go to the
// device, and the rows of the next batch are picked, while they are at hand.
void Emitter::update_chunk(int piece, std::int64_t first, std::int64_t count, int device_weights) {
  const int slot = b_.any_staged(piece) ? b_.next_slot() : -1;
  auto [read, copy_out, update] = update_ops(piece, first, count, slot, -1);
  const Operand gradient = gradient_home(piece, first, count, slot);
  update.operands.push_back(as(gradient, Role::kGradient, false));
  if (in_.placement.pieces[piece].gradients == Tier::kNvme) {
    read.operands.push_back(as(gradient, Role::kTo, true));
    read.extents.push_back(b_.gradient_range(piece, first, count, true));
  } else if (in_.placement.pieces[piece].gradients == Tier::kDevice) {
    add_copy(copy_out, device_gradient(b_, piece, first, count), gradient);
  }
  if (!read.operands.empty()) b_.add(std::move(read));
  if (!copy_out.operands.empty()) b_.add(std::move(copy_out));
  const Operand weights = update.operands[0];
  b_.add(std::move(update));
  if (facts_.lookup_stage[piece] >= 0 && b_.forwards()) gather(piece, first, count, weights);
  if (device_weights >= 0) {
    Op copy = make(OpKind::kCopyIn, Lane::kH2D, piece, first, count);
    add_copy(copy, weights,
             {Role::kTo, 0, device_weights, in_.states[0].bytes(first), weights.bytes, true});
    b_.add(std::move(copy));
  }
  write_back(piece, first, count, slot);
}

// At the end of a piece's last backward visit: its gradients go home, as without early updates
// (should the norm clip, the redo needs them), and on their way the piece is updated. The visit's
// weights are handed over.
void Emitter::update_early(int piece, int device_gradients, int device_weights) {
  each_chunk(
      whole(piece), in_.settings.chunk_elements, [&](std::int64_t first, std::int64_t count) {
        const int slot = b_.next_slot();
        auto [read, copy_out, update] = update_ops(piece, first, count, slot, device_weights);
        const Operand gradient = gradient_home(piece, first, count, slot);
        Operand from = {
            Role::kFrom, 0, device_gradients, gradient_sum_bytes(first), gradient_sum_bytes(count),
            false};
        if (in_.rounds_gradients()) from = round(piece, first, count, from);
        add_copy(copy_out, from, gradient);
        update.operands.push_back(as(gradient, Role::kGradient, false));
        if (!read.operands.empty()) b_.add(std::move(read));
        b_.add(std::move(copy_out));
        norm(piece, first, count, gradient);
        spill(piece, first, count, gradient, true);
        b_.add(std::move(update));
        write_back(piece, first, count, slot);
      });
}

void Emitter::write_back(int piece, std::int64_t first, std::int64_t count, int slot) {
  Op write = make(OpKind::kWrite, Lane::kWrite, piece, first, count);
  Op copy_in = make(OpKind::kCopyIn, Lane::kH2D, piece, first, count);
  for (int state = 0; state < b_.states_of(piece); ++state) {
    const Tier tier = b_.state_tier(piece, state);
    if (tier == Tier::kHost) continue;
    const Operand at = b_.state_operand(piece, state, first, count, slot);
    if (tier == Tier::kNvme) {
      write.operands.push_back(paged(as(at, Role::kFrom, false)));
      write.extents.push_back(b_.state_range(piece, state, first, count));
    } else {
      add_copy(copy_in, at,
               {Role::kTo, 0, b_.resident_state(piece, state), b_.layout(piece, state).bytes(first),
                at.bytes, true});
    }
  }
  if (!copy_in.operands.empty()) b_.add(std::move(copy_in));
  if (!write.operands.empty()) b_.add(std::move(write));
}

void Emitter::update_piece(int piece, int device_weights) {
  each_chunk(whole(piece), in_.settings.chunk_elements,
             [&](std::int64_t first, std::int64_t count) {
               update_chunk(piece, first, count, device_weights);
             });
  updated_[piece] = true;
}

void Emitter::fetch_weights(int piece, Part part, int device_weights, bool after_update) {
  const Tier tier = b_.state_tier(piece, 0);
  const std::int64_t chunk = tier == Tier::kHost ? in_.settings.chunk_elements : b_.weight_chunk();
  each_chunk(part, chunk, [&](std::int64_t first, std::int64_t count) {
    const Bytes bytes = in_.states[0].bytes(count);
    Operand at;
    if (tier == Tier::kHost) {
      at = {Role::kFrom, 0, b_.resident_state(piece, 0), in_.states[0].bytes(first), bytes, false};
    } else {
      Op read = make(OpKind::kRead, Lane::kRead, piece, first, count);
      read.after_update = after_update;
      at = b_.slot_operand(Role::kFrom, b_.next_slot(), 0, bytes, false);
      read.operands.push_back(paged(as(at, Role::kTo, true)));
      read.extents.push_back(b_.state_range(piece, 0, first, count));
      b_.add(std::move(read));
    }
    Op copy = make(OpKind::kCopyIn, Lane::kH2D, piece, first, count);
    add_copy(copy, at,
             {Role::kTo, 0, device_weights, in_.states[0].bytes(first - part.first), bytes, true});
    b_.add(std::move(copy));
  });
}

// Picks the rows that the batch needs from a table that is not updated in this segment.
void Emitter::gather_piece(int piece) {
  const std::int64_t elements = model_.pieces[piece].elements;
  const Tier tier = b_.state_tier(piece, 0);
  const std::int64_t chunk = tier == Tier::kHost ? elements : b_.weight_chunk();
  each_chunk(whole(piece), chunk, [&](std::int64_t first, std::int64_t count) {
    const Bytes bytes = in_.states[0].bytes(count);
    Operand at = {Role::kFrom, 0, -1, in_.states[0].bytes(first), bytes, false};
    if (tier == Tier::kHost) {
      at.buffer = b_.resident_state(piece, 0);
    } else if (tier == Tier::kNvme) {
      at = b_.slot_operand(Role::kFrom, b_.next_slot(), 0, bytes, false);
      Op read = make(OpKind::kRead, Lane::kRead, piece, first, count);
      read.operands.push_back(paged(as(at, Role::kTo, true)));
      read.extents.push_back(b_.state_range(piece, 0, first, count));
      b_.add(std::move(read));
    } else {
      const Operand resident = {
          Role::kFrom, 0, b_.resident_state(piece, 0), in_.states[0].bytes(first), bytes, false};
      at = b_.slot_operand(Role::kFrom, b_.next_slot(), 0, bytes, false);
      Op copy = make(OpKind::kCopyOut, Lane::kD2H, piece, first, count);
      add_copy(copy, resident, at);
      b_.add(std::move(copy));
    }
    gather(piece, first, count, at);
  });
}

void Emitter::gather(int piece, std::int64_t first, std::int64_t count, Operand weights) {
  const model::StageSpec& stage = model_.stages[facts_.lookup_stage[piece]];
  Op op = make(OpKind::kGather, Lane::kOptimizer, piece, first, count);
  op.stage = facts_.lookup_stage[piece];
  op.operands.push_back(as(weights, Role::kFrom, false));
  const Bytes bytes =
      activation_bytes(stage.outputs[0]) * static_cast<Bytes>(in_.settings.micro_batches);
  const int rows = b_.buffer(str("rows ", model_.activations[stage.outputs[0]].name), Arena::kHost,
                             bytes, Crosses::kTurn);
  op.operands.push_back({Role::kRows, 0, rows, 0, bytes, true});
  b_.add(std::move(op));
}

// A later group goes on where the one before stopped: its sums come back to the device.
void Emitter::gradients_in(int piece, Part part, int device_gradients) {
  const Tier tier = in_.placement.pieces[piece].gradients;
  if (tier == Tier::kDevice) return;
  each_chunk(part, in_.settings.chunk_elements, [&](std::int64_t first, std::int64_t count) {
    const int slot = tier == Tier::kNvme ? b_.next_slot() : -1;
    const bool complete = !in_.rounds_gradients();
    const Operand at = gradient_home(piece, first, count, slot, complete);
    if (tier == Tier::kNvme) {
      Op read = make(OpKind::kRead, Lane::kRead, piece, first, count);
      read.operands.push_back(as(at, Role::kTo, true));
      read.extents.push_back(b_.gradient_range(piece, first, count, complete));
      b_.add(std::move(read));
    }
    Op copy = make(OpKind::kCopyIn, Lane::kH2D, piece, first, count);
    add_copy(
        copy, at,
        {Role::kTo, 0, device_gradients, gradient_sum_bytes(first - part.first), at.bytes, true});
    b_.add(std::move(copy));
  });
}

// What the last group's visit has summed is complete, but for the lookup's part of a tied table:
// its norm waits for that.
void Emitter::gradients_out(int piece, Part part, int device_gradients, bool last_group) {
  const Tier tier = in_.placement.pieces[piece].gradients;
  const bool rounds = in_.rounds_gradients() && last_group;
  const bool take_norm = last_group && facts_.lookup_stage[piece] < 0;
  if (tier == Tier::kDevice && !take_norm && !rounds) return;
  each_chunk(part, in_.settings.chunk_elements, [&](std::int64_t first, std::int64_t count) {
    Operand from = {Role::kFrom,
                    0,
                    device_gradients,
                    gradient_sum_bytes(first - part.first),
                    gradient_sum_bytes(count),
                    false};
    if (rounds) from = round(piece, first, count, from);
    if (tier == Tier::kDevice && !take_norm) return;
    const int slot = tier == Tier::kHost ? -1 : b_.next_slot();
    const bool complete = rounds || !in_.rounds_gradients();
    const Operand at = gradient_home(piece, first, count, slot, complete);
    Op copy = make(OpKind::kCopyOut, Lane::kD2H, piece, first, count);
    add_copy(copy, from, at);
    b_.add(std::move(copy));
    if (take_norm) norm(piece, first, count, at);
    spill(piece, first, count, at, complete);
  });
}

// The rounded range of a complete gradient, on the device: where it waits, or on its way out, for
// which two small buffers take turns.
Operand Emitter::round(int piece, std::int64_t first, std::int64_t count, Operand sums) {
  Operand to = {Role::kFrom, 0, -1, 0, in_.gradient_bytes(count), false};
  if (in_.placement.pieces[piece].gradients == Tier::kDevice) {
    to = device_gradient(b_, piece, first, count);
  } else {
    const std::int64_t chunk = std::min(in_.settings.chunk_elements, model_.pieces[piece].elements);
    const bool even = first / in_.settings.chunk_elements % 2 == 0;
    to.buffer = b_.buffer(str(b_.set.buffers[sums.buffer].name, even ? " rounded a" : " rounded b"),
                          Arena::kDevice, in_.gradient_bytes(chunk), Crosses::kNothing);
  }
  Op op = make(OpKind::kRound, Lane::kCompute, piece, first, count);
  add_copy(op, sums, to);
  b_.add(std::move(op));
  return to;
}

// To NVMe, if that is where the gradient waits.
void Emitter::spill(int piece, std::int64_t first, std::int64_t count, Operand gradient,
                    bool complete) {
  if (in_.placement.pieces[piece].gradients != Tier::kNvme) return;
  Op write = make(OpKind::kWrite, Lane::kWrite, piece, first, count);
  write.operands.push_back(as(gradient, Role::kFrom, false));
  write.extents.push_back(b_.gradient_range(piece, first, count, complete));
  b_.add(std::move(write));
}

void Emitter::norm(int piece, std::int64_t first, std::int64_t count, Operand gradient) {
  Op op = make(OpKind::kNorm, Lane::kOptimizer, piece, first, count);
  op.operands.push_back(as(gradient, Role::kGradient, false));
  b_.add(std::move(op));
}

// gradient(table) = head's part (if tied, already at home) + the summed row gradients, then its
// norm.
void Emitter::finish_table_gradient(int piece) {
  const Tier tier = in_.placement.pieces[piece].gradients;
  const bool tied = facts_.compute_stage[piece] >= 0;
  const model::StageSpec& stage = model_.stages[facts_.lookup_stage[piece]];
  const Bytes row_bytes =
      activation_bytes(stage.outputs[0]) * static_cast<Bytes>(in_.settings.micro_batches);
  const int rows = b_.buffer(str("rows ", model_.activations[stage.outputs[0]].name), Arena::kHost,
                             row_bytes, Crosses::kTurn);
  each_chunk(whole(piece), in_.settings.chunk_elements,
             [&](std::int64_t first, std::int64_t count) {
               const int slot = tier == Tier::kHost ? -1 : b_.next_slot();
               const Operand at = gradient_home(piece, first, count, slot);
               if (tied && tier == Tier::kNvme) {
                 Op read = make(OpKind::kRead, Lane::kRead, piece, first, count);
                 read.operands.push_back(as(at, Role::kTo, true));
                 read.extents.push_back(b_.gradient_range(piece, first, count, true));
                 b_.add(std::move(read));
               } else if (tied && tier == Tier::kDevice) {
                 Op copy = make(OpKind::kCopyOut, Lane::kD2H, piece, first, count);
                 add_copy(copy, device_gradient(b_, piece, first, count), at);
                 b_.add(std::move(copy));
               }
               Op add = make(OpKind::kAddRows, Lane::kOptimizer, piece, first, count);
               add.stage = facts_.lookup_stage[piece];
               add.zero_first = !tied;
               add.operands.push_back(as(at, Role::kGradient, true));
               add.operands.push_back({Role::kRowGradients, 0, rows, 0, row_bytes, false});
               b_.add(std::move(add));
               norm(piece, first, count, at);
               spill(piece, first, count, at, true);
               if (tier == Tier::kDevice) {
                 Op copy = make(OpKind::kCopyIn, Lane::kH2D, piece, first, count);
                 add_copy(copy, at, as(device_gradient(b_, piece, first, count), Role::kTo, true));
                 b_.add(std::move(copy));
               }
             });
}

}  // namespace zinf::plan
