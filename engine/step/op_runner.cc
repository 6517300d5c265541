#include "engine/step/op_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <span>
#include <utility>

#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/finite.h"

namespace zinf::step {

using model::DType;
using plan::Op;
using plan::Operand;
using plan::OpKind;
using plan::Role;

namespace {

// An update that leaves parameters out looks like training, so it is looked for before the first
// step: the update ops of these segments, together, are to cover every trainable piece once. (That
// an update works through all of its range is checked where the range is handed to threads.)
void check_coverage(const RunnerParts& parts, std::span<const plan::Segment> segments) {
  const std::vector<model::PieceSpec>& pieces = parts.model->pieces;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> ranges(pieces.size());
  for (const plan::Segment segment : segments) {
    const std::vector<Op>& ops = parts.programs->program(segment).ops;
    if (ops.empty()) return;  // not a way in which this run updates
    for (const Op& op : ops) {
      if (op.kind == OpKind::kUpdate)
        ranges[static_cast<std::size_t>(op.piece)].emplace_back(op.first, op.count);
    }
  }
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    std::sort(ranges[piece].begin(), ranges[piece].end());
    std::int64_t covered = 0;
    for (const auto& [first, count] : ranges[piece]) {
      if (first != covered) break;
      covered += count;
    }
    const std::int64_t expected = pieces[piece].trainable ? pieces[piece].elements : 0;
    if (covered == expected) continue;
    throw Error(ErrorKind::kFailed,
                str("the updates of segment ", plan::segment_name(segments.back()), " change ",
                    covered, " elements of ", pieces[piece].name, "; expected all ", expected),
                "this is a fault of zinf: a step would leave parameters as they are");
  }
}

// A gradient is complete once the first of the stages that use its piece has run backward.
std::vector<int> backward_order(const model::ModelSpec& model) {
  std::vector<int> order;
  for (const model::StageSpec& stage : model.stages) {
    std::vector<int> first_uses;
    for (const int piece : stage.pieces) {
      if (std::find(order.begin(), order.end(), piece) == order.end()) first_uses.push_back(piece);
    }
    order.insert(order.begin(), first_uses.begin(), first_uses.end());
  }
  return order;
}

}  // namespace

OpRunner::OpRunner(RunnerParts parts) : parts_(std::move(parts)) {
  using plan::Segment;
  for (const auto& segments : {std::vector{Segment::kUpdateForward},
                               {Segment::kUpdateOnly},
                               {Segment::kBackwardEarly, Segment::kRestForward},
                               {Segment::kBackwardEarly, Segment::kRestOnly}})
    check_coverage(parts_, segments);
  for (const model::PieceSpec& piece : parts_.model->pieces) {
    tile_sums_.emplace_back(piece.trainable ? piece.elements / model::kTile : 0, 0.0);
    piece_finite_.push_back(1);
    unused_.emplace_back(piece.tensors.size(), 0);
  }
  backward_order_ = backward_order(*parts_.model);
}

std::byte* OpRunner::at(const Operand& operand) {
  use(operand, operand.bytes);
  return place(operand);
}

void OpRunner::use(const Operand& operand, Bytes bytes) {
  const plan::Buffer& buffer = parts_.programs->buffers[operand.buffer];
  std::atomic<Bytes>& peak = peak_bytes_[static_cast<int>(buffer.arena)];
  const Bytes end = buffer.offset + operand.offset + bytes;
  for (Bytes seen = peak; seen < end && !peak.compare_exchange_weak(seen, end);) {
  }
}

std::byte* OpRunner::place(const Operand& operand) const {
  const plan::Buffer& buffer = parts_.programs->buffers[operand.buffer];
  std::byte* base = buffer.arena == plan::Arena::kDevice ? parts_.device_arena : parts_.host_arena;
  return base + buffer.offset + operand.offset;
}

void OpRunner::run(const Op& op, const SegmentArgs& args, optim::UpdatePages* pages) {
  switch (op.kind) {
    case OpKind::kCompute:
      compute(op, args);
      break;
    case OpKind::kGather:
      gather(op, *args.batch);
      break;
    case OpKind::kAddRows:
      add_rows(op, *args.row_batch);
      break;
    case OpKind::kNorm:
      take_norm(op);
      break;
    case OpKind::kRound:
      round(op);
      break;
    case OpKind::kUpdate:
      update(op, args, pages);
      break;
    default:
      ZINF_CHECK(false, plan::op_kind_name(op.kind));
  }
}

void OpRunner::compute(const Op& op, const SegmentArgs& args) {
  const model::StageSpec& stage = parts_.model->stages[op.stage];
  std::vector<model::PieceOperand> pieces(stage.pieces.size());
  std::vector<model::ActivationOperand> inputs(stage.inputs.size()), outputs(stage.outputs.size());
  model::StageCall call;
  call.stage = op.stage;
  call.micro_batch = op.micro_batch;
  call.first_of_visit = op.first_of_visit;
  call.mode = args.next_token && stage.kind == model::StageKind::kHead ? model::CallMode::kNextToken
                                                                       : op.mode;
  if (op.piece >= 0) {  // a slice of the head's table; the last one's range goes on to the padding
    const model::TensorSpec& table = parts_.model->pieces[op.piece].tensors[0];
    const std::int64_t width = table.shape[1];
    call.slice.first_row = op.first / width;
    call.slice.rows = std::min(op.count, table.elements - op.first) / width;
  }
  const Operand* workspace = nullptr;
  for (const Operand& operand : op.operands) {
    std::byte* memory = operand.role == Role::kWorkspace ? place(operand) : at(operand);
    switch (operand.role) {
      case Role::kWeights:
        pieces[operand.index].weights = memory;
        break;
      case Role::kGradient:
        pieces[operand.index].gradients = reinterpret_cast<float*>(memory);
        pieces[operand.index].first_gradient = op.first_gradient;
        pieces[operand.index].unused = unused_[stage.pieces[operand.index]].data();
        break;
      case Role::kInput:
        inputs[operand.index].value = memory;
        break;
      case Role::kInputGradient:
        inputs[operand.index].gradient = memory;
        inputs[operand.index].add_gradient = operand.adds;
        break;
      case Role::kOutput:
        outputs[operand.index].value = memory;
        break;
      case Role::kOutputGradient:
        outputs[operand.index].gradient = memory;
        break;
      case Role::kSums:
        call.slice.sums = {memory, operand.bytes};
        break;
      case Role::kKept:
        call.kept = {memory, operand.bytes};
        break;
      case Role::kWorkspace:
        call.workspace = {memory, operand.bytes};
        workspace = &operand;
        break;
      default:
        ZINF_CHECK(false, "a role of a compute call");
    }
  }
  call.pieces = pieces;
  call.inputs = inputs;
  call.outputs = outputs;
  if (looks_on_ != nullptr) {
    look_at_inputs(stage, args.batch->micro_batches[static_cast<std::size_t>(op.micro_batch)],
                   inputs);
  }
  parts_.compute->run(call);
  if (workspace != nullptr) use(*workspace, parts_.compute->workspace_peak());
}

void OpRunner::look_for_non_finite(gpu::Device* on) {
  looks_on_ = on;
  if (on != nullptr) first_bad_stage_ = -1;
}

void OpRunner::look_at_inputs(const model::StageSpec& stage, const data::MicroBatch& batch,
                              std::span<const model::ActivationOperand> inputs) {
  const std::vector<model::StageSpec>& stages = parts_.model->stages;
  const std::int64_t positions = static_cast<std::int64_t>(batch.rows) * batch.length;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const int activation = stage.inputs[i];
    const std::int64_t width =
        parts_.model->activations[static_cast<std::size_t>(activation)].width;
    std::vector<std::byte> values(static_cast<Bytes>(positions * width) *
                                  size_of(parts_.model->compute_type));
    std::promise<void> copied;
    looks_on_->copy(gpu::CopyDirection::kDeviceToHost,
                    {{values.data(), inputs[i].value, values.size()}},
                    [&](double) { copied.set_value(); });
    copied.get_future().wait();
    if (model::all_finite(values.data(), parts_.model->compute_type, positions * width)) continue;
    const auto producer = std::find_if(stages.begin(), stages.end(), [&](const auto& candidate) {
      return std::find(candidate.outputs.begin(), candidate.outputs.end(), activation) !=
             candidate.outputs.end();
    });
    if (producer == stages.end()) continue;  // of the data
    const int number = static_cast<int>(producer - stages.begin());
    if (first_bad_stage_ < 0 || number < first_bad_stage_) first_bad_stage_ = number;
  }
}

namespace {

// The part of table row `row` that lies in the element range [first, first + count): columns
// [begin, end).
struct RowPart {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool empty() const { return begin >= end; }
};

RowPart row_part(std::int64_t row, std::int64_t width, std::int64_t first, std::int64_t count) {
  const std::int64_t start = row * width;
  return {std::max<std::int64_t>(first - start, 0), std::min(width, first + count - start)};
}

}  // namespace

// A table's rows lie at its tensor's start in the piece; the range may cut a row.
void OpRunner::gather(const Op& op, const data::StepBatch& batch) {
  const model::StageSpec& stage = parts_.model->stages[op.stage];
  const std::int64_t width = parts_.model->activations[stage.outputs[0]].width;
  const Bytes element = size_of(parts_.model->compute_type);
  const std::byte* weights = at(op.operands[0]);
  std::byte* rows = at(op.operands[1]);
  const Bytes slice = op.operands[1].bytes / static_cast<Bytes>(parts_.programs->micro_batches);
  for (std::size_t m = 0; m < batch.micro_batches.size(); ++m) {
    const std::vector<std::int32_t>& ids = batch.micro_batches[m].ids;
    std::byte* to = rows + slice * m;
    for (std::size_t position = 0; position < ids.size(); ++position) {
      const RowPart part = row_part(ids[position], width, op.first, op.count);
      if (part.empty()) continue;
      const std::int64_t source = ids[position] * width + part.begin - op.first;
      std::memcpy(to + (static_cast<std::int64_t>(position) * width + part.begin) * element,
                  weights + source * element,
                  static_cast<std::size_t>(part.end - part.begin) * element);
    }
  }
}

// sum is added to the gradient's elements from `first` on, of the range that `gradient` is.
void OpRunner::add_to_gradient(std::byte* gradient, std::int64_t first,
                               std::span<const float> sum) const {
  const auto count = static_cast<std::int64_t>(sum.size());
  if (parts_.programs->gradient_type == DType::kFloat32) {
    optim::add_rows(reinterpret_cast<float*>(gradient) + first, sum.data(), count);
    return;
  }
  std::uint16_t* rounded = reinterpret_cast<std::uint16_t*>(gradient) + first;
  std::vector<float> values(sum.size());
  optim::bf16_to_fp32(rounded, values.data(), count);
  optim::add_rows(values.data(), sum.data(), count);
  optim::fp32_to_bf16(values.data(), rounded, count);
}

// Row gradients of one id are summed in fp32 in position order; the sum is added once.
void OpRunner::add_rows(const Op& op, const data::StepBatch& batch) {
  const model::StageSpec& stage = parts_.model->stages[op.stage];
  const std::int64_t width = parts_.model->activations[stage.outputs[0]].width;
  if (row_batch_ != &batch || op.first == 0) {
    row_batch_ = &batch;
    row_uses_.clear();
    std::int64_t position = 0;
    for (const data::MicroBatch& micro : batch.micro_batches) {
      for (std::size_t i = 0; i < micro.ids.size(); ++i, ++position) {
        if (micro.documents.empty() || micro.documents[i] >= 0)
          row_uses_.push_back({micro.ids[i], position});
      }
    }
    std::stable_sort(row_uses_.begin(), row_uses_.end(),
                     [](const RowUse& a, const RowUse& b) { return a.id < b.id; });
  }
  std::byte* gradient = at(op.operands[0]);
  if (op.zero_first) std::memset(gradient, 0, op.operands[0].bytes);
  const std::byte* rows = at(op.operands[1]);
  const Bytes slice = op.operands[1].bytes / static_cast<Bytes>(parts_.programs->micro_batches);
  const DType type = parts_.model->compute_type;
  std::vector<float> sum(static_cast<std::size_t>(width)), row(static_cast<std::size_t>(width));
  const std::int32_t first_row = static_cast<std::int32_t>(op.first / width);
  auto use = std::lower_bound(row_uses_.begin(), row_uses_.end(), first_row,
                              [](const RowUse& a, std::int32_t id) { return a.id < id; });
  std::vector<std::int64_t> starts;  // of each micro-batch, in positions
  std::int64_t total = 0;
  for (const data::MicroBatch& micro : batch.micro_batches) {
    starts.push_back(total);
    total += static_cast<std::int64_t>(micro.ids.size());
  }
  while (use != row_uses_.end() &&
         static_cast<std::int64_t>(use->id) * width < op.first + op.count) {
    const std::int32_t id = use->id;
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (; use != row_uses_.end() && use->id == id; ++use) {
      const auto m =
          static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), use->position) -
                                   starts.begin()) -
          1;
      const std::byte* from = rows + slice * m +
                              static_cast<Bytes>((use->position - starts[m]) * width) *
                                  size_of(parts_.model->compute_type);
      if (type == DType::kFloat32) {
        optim::add_rows(sum.data(), reinterpret_cast<const float*>(from), width);
        continue;
      }
      const auto widen = type == DType::kFloat16 ? optim::fp16_to_fp32 : optim::bf16_to_fp32;
      widen(reinterpret_cast<const std::uint16_t*>(from), row.data(), width, optim::best_isa());
      optim::add_rows(sum.data(), row.data(), width);
    }
    const RowPart part = row_part(id, width, op.first, op.count);
    if (part.empty()) continue;
    add_to_gradient(gradient, static_cast<std::int64_t>(id) * width + part.begin - op.first,
                    std::span(sum).subspan(static_cast<std::size_t>(part.begin),
                                           static_cast<std::size_t>(part.end - part.begin)));
  }
}

void OpRunner::round(const Op& op) {
  parts_.compute->round_to_bf16(reinterpret_cast<const float*>(at(op.operands[0])),
                                reinterpret_cast<std::uint16_t*>(at(op.operands[1])), op.count);
}

optim::Gradient OpRunner::gradient_at(const Operand& operand) {
  if (parts_.programs->gradient_type == DType::kFloat32)
    return reinterpret_cast<const float*>(at(operand));
  return reinterpret_cast<const std::uint16_t*>(at(operand));
}

void OpRunner::take_norm(const Op& op) {
  std::vector<double>& sums = tile_sums_[op.piece];
  const bool finite = optim::tile_sums(*parts_.pool, gradient_at(op.operands[0]), op.count,
                                       sums.data() + op.first / model::kTile);
  if (!finite) piece_finite_[op.piece] = 0;
}

void OpRunner::update(const Op& op, const SegmentArgs& args, optim::UpdatePages* pages) {
  optim::StateView view;
  const Operand* gradient = nullptr;
  for (const Operand& operand : op.operands) {
    if (operand.role == Role::kState) {
      view.state[operand.index] = at(operand);
    } else {
      gradient = &operand;
    }
  }
  ZINF_CHECK(gradient != nullptr, "an update has a gradient");
  optim::StepScalars scalars = args.scalars;
  scalars.seed ^= static_cast<std::uint64_t>(op.piece) * 0x9E3779B97F4A7C15ull;
  parts_.optimizer->update(*parts_.pool, view, gradient_at(*gradient), op.first, op.count,
                           ranges_of(op.piece), parts_.groups, scalars, pages);
}

std::vector<optim::GroupRange> OpRunner::ranges_of(int piece) const {
  std::vector<optim::GroupRange> ranges = parts_.group_ranges[piece];
  const std::vector<model::TensorSpec>& tensors = parts_.model->pieces[piece].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!unused_[piece][t]) continue;
    const auto own = std::find_if(ranges.begin(), ranges.end(), [&](const auto& range) {
      return range.first_element == tensors[t].offset && range.elements == tensors[t].elements;
    });
    ZINF_CHECK(own != ranges.end(), str("a range of its own for ", tensors[t].name));
    own->keep = true;
  }
  return ranges;
}

std::vector<std::string> OpRunner::unused_tensors() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < unused_.size(); ++p) {
    const model::PieceSpec& piece = parts_.model->pieces[p];
    for (std::size_t t = 0; piece.trainable && t < piece.tensors.size(); ++t) {
      if (unused_[p][t]) names.push_back(piece.tensors[t].name);
    }
  }
  return names;
}

std::int64_t OpRunner::trainable_elements() const {
  std::int64_t sum = 0;
  for (std::size_t piece = 0; piece < parts_.model->pieces.size(); ++piece) {
    if (!parts_.model->pieces[piece].trainable) continue;
    for (const optim::GroupRange& range : parts_.group_ranges[piece]) sum += range.elements;
  }
  return sum;
}

OpRunner::Norm OpRunner::norm() const {
  Norm result;
  std::vector<double> all;
  for (const std::vector<double>& sums : tile_sums_)
    all.insert(all.end(), sums.begin(), sums.end());
  // A value that is not finite spreads to all that backward computes after it.
  const auto bad = std::find_if(backward_order_.begin(), backward_order_.end(), [&](int piece) {
    return piece_finite_[static_cast<std::size_t>(piece)] == 0;
  });
  if (bad != backward_order_.end()) {
    result.finite = false;
    result.first_bad_piece = *bad;
  }
  result.value = optim::norm_from_sums(all);
  return result;
}

void OpRunner::reset_norm() { std::fill(piece_finite_.begin(), piece_finite_.end(), 1); }

}  // namespace zinf::step
