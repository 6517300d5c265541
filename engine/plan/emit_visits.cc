#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/plan/emitter.h"

namespace zinf::plan {

using model::CallMode;
using model::StageKind;
using model::StageSpec;

Bytes Emitter::activation_bytes(int activation) const {
  const Bytes bytes = static_cast<Bytes>(in_.shape.positions()) *
                      static_cast<Bytes>(model_.activations[activation].width) *
                      model::size_of(model_.compute_type);
  return round_up(bytes, kPage);
}

bool Emitter::travels(int activation) const {
  return facts_.from_lookup[activation] || in_.placement.activations != Tier::kDevice;
}

bool Emitter::keeps(int stage) const {
  return in_.keeps_activations(stage) && facts_.stage_needs_backward[stage];
}

// The device buffer of a piece's weights during a visit. Weights that the turn keeps have one
// buffer for both sides.
int Emitter::weights_buffer(std::size_t number, const Visit& visit, int piece) {
  if (b_.state_tier(piece, 0) == Tier::kDevice) return b_.resident_state(piece, 0);
  const StageSpec& stage = model_.stages[visit.stage];
  const Bytes bytes = b_.weight_bytes(piece);
  const int last_block = static_cast<int>(model_.stages.size()) - 2;
  const bool head_only = stage.kind == StageKind::kHead && facts_.lookup_stage[piece] < 0;
  const bool kept_block = stage.kind == StageKind::kBlock &&
                          visit.stage > last_block - in_.settings.keep_at_turn &&
                          groups_of(in_.settings) == 1 && facts_.stage_needs_backward[visit.stage];
  if (b_.segment() != Segment::kEvaluate && visit.group == 0 && (head_only || kept_block)) {
    return b_.buffer(str("weights at turn ", model_.pieces[piece].name), Arena::kDevice, bytes,
                     Crosses::kTurn);
  }
  return b_.buffer(str("weights ", model_.pieces[piece].name, " ", segment_name(b_.segment()),
                       " visit ", number),
                   Arena::kDevice, bytes, Crosses::kNothing);
}

void Emitter::fetch_visit(std::size_t number, const Visit& visit) {
  std::vector<int>& buffers = weights_[number];
  for (const int piece : model_.stages[visit.stage].pieces) {
    if (in_slices(visit) && piece == sliced_table(in_)) {
      buffers.push_back(-1);
      continue;
    }
    const int buffer = weights_buffer(number, visit, piece);
    buffers.push_back(buffer);
    const bool resident = b_.state_tier(piece, 0) == Tier::kDevice;
    if (b_.updates() && model_.pieces[piece].trainable && !updated_[piece]) {
      update_piece(piece, resident ? -1 : buffer);
      continue;
    }
    const bool handed_over =
        is_backward(b_.segment()) && b_.set.buffers[buffer].name.starts_with("weights at turn");
    if (!resident && !handed_over) fetch_weights(piece, whole(piece), buffer, b_.updates());
  }
}

void Emitter::run_visits(const std::vector<Visit>& visits) {
  std::size_t fetched = 0;
  for (std::size_t number = 0; number < visits.size(); ++number) {
    const std::size_t ahead =
        std::min(visits.size(), number + 1 + static_cast<std::size_t>(in_.settings.prefetch));
    for (; fetched < ahead; ++fetched) fetch_visit(fetched, visits[fetched]);
    if (in_slices(visits[number])) {
      run_slices(number, visits[number]);
    } else {
      run_visit(number, visits[number]);
    }
  }
  weights_.clear();
}

int Emitter::activation_buffer(int activation, int micro_batch, std::size_t visit, bool backward,
                               bool gradient) {
  const std::string name = str(model_.activations[activation].name, " m", micro_batch);
  const Bytes bytes = activation_bytes(activation);
  if (gradient && facts_.consumers[activation] > 1) {
    return b_.buffer(str("gradient of ", name), Arena::kDevice, bytes, Crosses::kNothing);
  }
  if (travels(activation) || b_.segment() == Segment::kEvaluate) {
    // One short life per visit: in from home, out to home.
    const char* kind = backward ? " backward " : " forward ";
    return b_.buffer(str(name, kind, segment_name(b_.segment()),
                         travels(activation) ? str(" visit ", visit) : ""),
                     Arena::kDevice, bytes, Crosses::kNothing);
  }
  const bool first_group = micro_batch < in_.settings.group;
  const bool saved = facts_.saved[activation];
  return b_.buffer(saved ? name : str(name, " ", segment_name(b_.segment())), Arena::kDevice, bytes,
                   saved && first_group ? Crosses::kTurn : Crosses::kNothing);
}

// Between an activation's home (the rows buffer, host memory or NVMe) and a device buffer.
void Emitter::move_activation(int activation, int micro_batch, int device_buffer, bool to_device) {
  const Bytes bytes = activation_bytes(activation);
  const std::string name = str(model_.activations[activation].name, " m", micro_batch);
  Op copy;
  copy.kind = to_device ? OpKind::kCopyIn : OpKind::kCopyOut;
  copy.lane = to_device ? Lane::kH2D : Lane::kD2H;
  copy.micro_batch = micro_batch;
  Operand home = {to_device ? Role::kFrom : Role::kTo, 0, -1, 0, bytes, !to_device};
  const Operand device = {
      to_device ? Role::kTo : Role::kFrom, 0, device_buffer, 0, bytes, to_device};
  Op transfer;
  transfer.micro_batch = micro_batch;
  if (facts_.from_lookup[activation]) {
    home.buffer = b_.buffer(str("rows ", model_.activations[activation].name), Arena::kHost,
                            bytes * static_cast<Bytes>(in_.settings.micro_batches), Crosses::kTurn);
    home.offset = bytes * static_cast<Bytes>(micro_batch);
  } else if (in_.placement.activations == Tier::kHost || b_.segment() == Segment::kEvaluate) {
    const bool first_group = micro_batch < in_.settings.group;
    const bool turn = facts_.saved[activation] && first_group && b_.segment() != Segment::kEvaluate;
    home.buffer = b_.buffer(str(turn ? "" : segment_name(b_.segment()), " home of ", name),
                            Arena::kHost, bytes, turn ? Crosses::kTurn : Crosses::kNothing);
  } else {
    static const char* kTwo[] = {" a", " b"};  // two staging buffers in turn
    home.buffer = b_.buffer(str("staging ", model_.activations[activation].name,
                                kTwo[micro_batch % 2], " ", segment_name(b_.segment())),
                            Arena::kHost, bytes, Crosses::kNothing);
    Extent wanted;
    wanted.kind = ExtentKind::kActivation;
    wanted.activation = activation;
    wanted.micro_batch = micro_batch;
    wanted.bytes = bytes;
    transfer.kind = to_device ? OpKind::kRead : OpKind::kWrite;
    transfer.lane = to_device ? Lane::kRead : Lane::kWrite;
    transfer.operands.push_back(
        {to_device ? Role::kTo : Role::kFrom, 0, home.buffer, 0, bytes, to_device});
    transfer.extents.push_back({b_.extent(wanted), 0, bytes});
  }
  copy.operands = to_device ? std::vector{home, device} : std::vector{device, home};
  if (to_device && !transfer.operands.empty()) b_.add(transfer);
  b_.add(std::move(copy));
  if (!to_device && !transfer.operands.empty()) b_.add(std::move(transfer));
}

void Emitter::load(std::size_t number, const Visit& visit, int micro_batch) {
  const StageSpec& stage = model_.stages[visit.stage];
  for (const int input : stage.inputs) {
    if (!travels(input)) continue;
    move_activation(input, micro_batch,
                    activation_buffer(input, micro_batch, number, visit.backward, false), true);
  }
  if (!visit.backward) return;
  for (const int output : stage.outputs) {
    if (!travels(output)) continue;
    move_activation(output, micro_batch,
                    activation_buffer(output, micro_batch, number, true, false), true);
  }
}

void Emitter::store(std::size_t number, const Visit& visit, int micro_batch) {
  const StageSpec& stage = model_.stages[visit.stage];
  const auto& moved = visit.backward ? stage.inputs : stage.outputs;
  for (const int activation : moved) {
    if (!travels(activation) || (visit.backward && !facts_.wants_gradient[activation])) continue;
    move_activation(activation, micro_batch,
                    activation_buffer(activation, micro_batch, number, visit.backward, false),
                    false);
  }
}

void Emitter::compute(std::size_t number, const Visit& visit, int micro_batch,
                      const std::vector<int>& gradients, const SliceCall* slice) {
  const StageSpec& stage = model_.stages[visit.stage];
  const StageWorkspace& workspace = in_.workspace[visit.stage];
  Op op;
  op.kind = OpKind::kCompute;
  op.lane = Lane::kCompute;
  op.stage = visit.stage;
  op.micro_batch = micro_batch;
  op.first_of_visit = micro_batch == visit.first;
  op.first_gradient = visit.group == 0 && micro_batch == visit.first;
  op.mode = visit.backward       ? CallMode::kBackward
            : keeps(visit.stage) ? CallMode::kForwardKeep
                                 : CallMode::kForward;
  if (b_.segment() == Segment::kEvaluate) op.mode = CallMode::kForward;
  const bool gives_gradients =
      visit.backward && (slice == nullptr || (slice->backward && slice->last));
  if (slice != nullptr) {
    op.mode = slice->backward ? CallMode::kBackward : CallMode::kForward;
    op.piece = slice->piece;
    op.first = slice->part.first;
    op.count = slice->part.count;
    const Bytes bytes = round_up(
        model::table_sums_bytes(in_.shape.positions(), model_.activations[stage.inputs[0]].width),
        kPage);
    const int sums = b_.buffer(str("table sums m", micro_batch, " ", segment_name(b_.segment())),
                               Arena::kDevice, bytes, Crosses::kNothing);
    op.operands.push_back({Role::kSums, 0, sums, 0, bytes, true});
  }
  for (std::size_t i = 0; i < stage.pieces.size(); ++i) {
    const int index = static_cast<int>(i);
    if (slice != nullptr && index == stage.table) {
      for (Operand operand : {slice->weights, slice->gradients}) {
        operand.index = index;
        if (operand.buffer >= 0) op.operands.push_back(operand);
      }
      continue;
    }
    op.operands.push_back(
        {Role::kWeights, index, weights_[number][i], 0, b_.weight_bytes(stage.pieces[i]), false});
    if (gives_gradients && !gradients.empty() && gradients[i] >= 0) {
      const Bytes bytes = gradient_sum_bytes(model_.pieces[stage.pieces[i]].elements);
      op.operands.push_back({Role::kGradient, index, gradients[i], 0, bytes, true});
    }
  }
  for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
    const int input = stage.inputs[i], index = static_cast<int>(i);
    const Bytes bytes = activation_bytes(input);
    op.operands.push_back({Role::kInput, index,
                           activation_buffer(input, micro_batch, number, visit.backward, false), 0,
                           bytes, false});
    if (gives_gradients && facts_.wants_gradient[input] && is_backward(b_.segment())) {
      op.operands.push_back({Role::kInputGradient, index,
                             activation_buffer(input, micro_batch, number, true, true), 0, bytes,
                             true});
    }
  }
  for (std::size_t i = 0; i < stage.outputs.size(); ++i) {
    const int output = stage.outputs[i], index = static_cast<int>(i);
    const int buffer =
        activation_buffer(output, micro_batch, number, visit.backward, visit.backward);
    op.operands.push_back({visit.backward ? Role::kOutputGradient : Role::kOutput, index, buffer, 0,
                           activation_bytes(output), !visit.backward});
  }
  if (keeps(visit.stage) && b_.segment() != Segment::kEvaluate) {
    const bool turn = micro_batch < in_.settings.group;
    const int kept = b_.buffer(str("kept ", stage.name, " m", micro_batch), Arena::kDevice,
                               workspace.kept, turn ? Crosses::kTurn : Crosses::kNothing);
    op.operands.push_back({Role::kKept, 0, kept, 0, workspace.kept, !visit.backward});
  }
  const bool evaluates = stage.kind == StageKind::kHead && b_.segment() == Segment::kEvaluate;
  const bool keep = keeps(visit.stage) && b_.segment() != Segment::kEvaluate;
  const Bytes scratch = slice != nullptr
                            ? slice->backward ? workspace.slice_backward : workspace.slice_forward
                        : evaluates      ? workspace.evaluate
                        : visit.backward ? (keep ? workspace.backward_kept : workspace.backward)
                                         : (keep ? workspace.forward_keep : workspace.forward);
  if (scratch > 0) {
    const int buffer =
        b_.buffer(str("workspace ", stage.name, " ", segment_name(b_.segment()), " visit ", number,
                      slice == nullptr  ? ""
                      : slice->backward ? " slices back"
                                        : " slices"),
                  Arena::kDevice, round_up(scratch, kPage), Crosses::kNothing);
    op.operands.push_back({Role::kWorkspace, 0, buffer, 0, round_up(scratch, kPage), true});
  }
  b_.add(std::move(op));
}

// Where a visit's gradients grow, per piece of its stage; -1: none, or in slices. Empty where the
// visit gives none.
std::vector<int> Emitter::gradient_buffers(std::size_t number, const Visit& visit) {
  std::vector<int> gradients;
  if (!visit.backward || !is_backward(b_.segment())) return gradients;
  for (const int piece : model_.stages[visit.stage].pieces) {
    const model::PieceSpec& spec = model_.pieces[piece];
    if (!spec.trainable || (in_slices(visit) && piece == sliced_table(in_))) {
      gradients.push_back(-1);
      continue;
    }
    gradients.push_back(sums_stay(piece)
                            ? device_sums(piece)
                            : b_.buffer(str("gradients ", spec.name, " visit ", number),
                                        Arena::kDevice, gradient_sum_bytes(spec.elements),
                                        Crosses::kNothing));
    if (visit.group > 0) gradients_in(piece, whole(piece), gradients.back());
  }
  return gradients;
}

void Emitter::run_visit(std::size_t number, const Visit& visit) {
  const std::vector<int> gradients = gradient_buffers(number, visit);
  // Copies in run one micro-batch ahead of the compute, copies out one behind it.
  load(number, visit, visit.first);
  for (int m = visit.first; m < visit.last; ++m) {
    if (m + 1 < visit.last) load(number, visit, m + 1);
    compute(number, visit, m, gradients);
    if (m > visit.first) store(number, visit, m - 1);
  }
  store(number, visit, visit.last - 1);
  leave(number, visit, gradients);
}

// A visit's gradients go where they wait, or to their update.
void Emitter::leave(std::size_t number, const Visit& visit, const std::vector<int>& gradients) {
  const StageSpec& stage = model_.stages[visit.stage];
  const bool last_group = visit.group + 1 == groups_of(in_.settings);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const int piece = stage.pieces[i];
    if (gradients[i] < 0) continue;
    if (last_group && b_.segment() == Segment::kBackwardEarly && b_.early(piece)) {
      update_early(piece, gradients[i], weights_[number][i]);
    } else {
      gradients_out(piece, whole(piece), gradients[i], last_group);
    }
  }
}

void Emitter::begin(Segment segment) {
  b_.begin(segment);
  updated_.assign(model_.pieces.size(), false);
  if (segment != Segment::kRestForward && segment != Segment::kRestOnly) return;
  for (std::size_t piece = 0; piece < updated_.size(); ++piece)
    updated_[piece] = b_.early(static_cast<int>(piece));
}

void Emitter::forward_segment(Segment segment) {
  begin(segment);
  for (const StageSpec& stage : model_.stages) {
    if (stage.kind != StageKind::kLookup) continue;
    for (const int piece : stage.pieces) {
      if (b_.updates() && model_.pieces[piece].trainable) {
        update_piece(piece, -1);
      } else {
        gather_piece(piece);
      }
    }
  }
  std::vector<Visit> visits = forward_visits(in_, 0);
  const int head = static_cast<int>(model_.stages.size()) - 1;
  const Visit head_visit = {head, false, 0, 0,
                            std::min(in_.settings.group, in_.settings.micro_batches)};
  if (segment == Segment::kEvaluate) visits.push_back(head_visit);
  run_visits(visits);
  if (segment == Segment::kEvaluate) return;
  // The head comes next: what only it uses is handed over on the device.
  for (const int piece : model_.stages[head].pieces) {
    if (facts_.lookup_stage[piece] >= 0 || b_.state_tier(piece, 0) == Tier::kDevice ||
        piece == sliced_table(in_))
      continue;
    const int buffer = weights_buffer(0, head_visit, piece);
    if (b_.updates() && model_.pieces[piece].trainable && !updated_[piece]) {
      update_piece(piece, buffer);
    } else {
      fetch_weights(piece, whole(piece), buffer, b_.updates());
    }
  }
  if (b_.updates()) commit();
}

// In the order of the update beside forward, so that both read ahead alike.
void Emitter::update_segment(Segment segment) {
  begin(segment);
  for (const StageSpec& stage : model_.stages) {
    for (const int piece : stage.pieces) {
      if (model_.pieces[piece].trainable && !updated_[piece]) update_piece(piece, -1);
    }
  }
  commit();
}

// Updates whatever this segment has not yet updated, then commits.
void Emitter::commit() {
  for (std::size_t piece = 0; piece < model_.pieces.size(); ++piece) {
    if (model_.pieces[piece].trainable && !updated_[piece])
      update_piece(static_cast<int>(piece), -1);
  }
  if (!in_.settings.commit_each_step) return;
  Op commit;
  commit.kind = OpKind::kCommit;
  commit.lane = Lane::kCommit;
  b_.add(std::move(commit));
}

void Emitter::backward_segment(Segment segment) {
  begin(segment);
  run_visits(backward_segment_visits(in_, facts_));
  for (std::size_t piece = 0; piece < model_.pieces.size(); ++piece) {
    if (facts_.lookup_stage[piece] >= 0 && model_.pieces[piece].trainable) {
      finish_table_gradient(static_cast<int>(piece));
    }
  }
}

}  // namespace zinf::plan
