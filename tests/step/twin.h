// The naive twin: everything in plain memory, micro-batch by micro-batch, no program, lane or
// buffer plan. What the engine computes out of core must equal this bit for bit.
#pragma once

#include <cstring>
#include <vector>

#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "cpu_optim/optimizer.h"
#include "engine/base/hash.h"
#include "engine/model/compute.h"
#include "tests/step/half.h"
#include "tests/step/twin_master.h"

namespace zinf::testing {

class Twin {
 public:
  // gradient_type: of what the norm and the update use.
  Twin(const model::ModelSpec& spec, model::Compute& compute, const optim::Optimizer& optimizer,
       Bytes workspace, model::DType gradient_type = model::DType::kFloat32)
      : spec_(spec),
        compute_(compute),
        optimizer_(optimizer),
        states_(optim::schema(optimizer.format())),
        gradient_type_(gradient_type) {
    for (const model::PieceSpec& piece : spec.pieces) {
      std::vector<std::vector<std::byte>> states;
      for (const optim::StateSpec& state : states_)
        states.emplace_back(state.bytes(piece.elements));
      if (!piece.trainable) states.resize(1);
      pieces_.push_back(std::move(states));
      gradients_.emplace_back(piece.trainable ? piece.elements : 0);
    }
    workspace_.resize(workspace);
  }

  void set_master(int piece, const float* master) {
    store_master(spec_.compute_type, optimizer_.format(), pieces_[piece], master,
                 spec_.pieces[piece].elements);
  }

  struct Result {
    double loss, norm, clip;
  };
  Result step(const data::StepBatch& batch, double lr, double max_norm,
              const std::vector<std::vector<optim::GroupRange>>& ranges,
              const std::vector<optim::Group>& groups, std::uint64_t seed) {
    compute_.begin_step(batch, 1.0, model::dropout_step_key(seed, version_));
    std::vector<std::vector<std::vector<std::byte>>> activations(batch.micro_batches.size());
    for (std::size_t m = 0; m < batch.micro_batches.size(); ++m) {
      const data::MicroBatch& micro = batch.micro_batches[m];
      const std::int64_t positions = std::int64_t{micro.rows} * micro.length;
      for (const model::ActivationSpec& activation : spec_.activations) {
        activations[m].emplace_back(static_cast<Bytes>(positions * activation.width) *
                                    size_of(spec_.compute_type));
      }
      for (std::size_t s = 0; s < spec_.stages.size(); ++s) forward(s, m, batch, activations[m]);
      for (std::size_t s = spec_.stages.size(); s-- > 0;) {
        if (spec_.stages[s].kind == model::StageKind::kLookup) continue;
        call(s, m, model::CallMode::kBackward, activations[m]);
      }
    }
    // Compute's part of a tied table is rounded, then its sum with the lookup's.
    for (std::vector<float>& gradient : gradients_) round(gradient);
    lookup_gradients(batch, activations);
    for (std::vector<float>& gradient : gradients_) round(gradient);
    double loss = 0;
    const int count = static_cast<int>(batch.micro_batches.size());
    for (int m = 0; m < count; ++m) loss += compute_.loss_sum(m);
    std::vector<double> sums;
    for (const auto& gradient : gradients_) {
      std::vector<double> piece(gradient.size() / model::kTile);
      if (!piece.empty())
        optim::tile_sums(pool_, gradient.data(), static_cast<std::int64_t>(gradient.size()),
                         piece.data());
      sums.insert(sums.end(), piece.begin(), piece.end());
    }
    const double norm = optim::norm_from_sums(sums);
    const double clip = max_norm > 0 ? optim::clip_factor(norm, max_norm) : 1.0;
    ++version_;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      if (!spec_.pieces[p].trainable) continue;
      optim::StateView view;
      for (std::size_t s = 0; s < pieces_[p].size(); ++s) view.state[s] = pieces_[p][s].data();
      optim::StepScalars scalars;
      scalars.step = version_;
      scalars.lr = lr;
      scalars.gradient_factor = clip;
      scalars.seed = seed ^ (p * 0x9E3779B97F4A7C15ull);
      scalars.moments_are_zero = version_ == 1;
      optimizer_.update(pool_, view, gradients_[p].data(), 0, spec_.pieces[p].elements, ranges[p],
                        groups, scalars);
    }
    return {loss / static_cast<double>(batch.target_tokens), norm, clip};
  }

  // As StateAccess::hashes().state: version, then per piece in ranges of `range` elements master
  // and moments.
  std::string state_hash(std::int64_t range) const {
    Hasher hash;
    hash.update(&version_, sizeof version_);
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      for (std::int64_t first = 0; first < spec_.pieces[p].elements; first += range) {
        const std::int64_t count = std::min(range, spec_.pieces[p].elements - first);
        const std::vector<float> values =
            load_master(spec_.compute_type, optimizer_.format(), pieces_[p], first, count);
        hash.update(values.data(), values.size() * 4);
        for (std::size_t s = 1; s < pieces_[p].size(); ++s) {
          if (!states_[s].is_moment) continue;
          hash.update(pieces_[p][s].data() + states_[s].bytes(first), states_[s].bytes(count));
        }
      }
    }
    return hash.hex();
  }

  // As StateAccess::hashes().weights.
  std::string weights_hash() const {
    Hasher hash;
    for (const auto& states : pieces_) hash.update(states[0].data(), states[0].size());
    return hash.hex();
  }

 private:
  void round(std::vector<float>& gradient) const {
    if (gradient.empty()) return;  // of a frozen piece
    const auto elements = static_cast<std::int64_t>(gradient.size());
    std::vector<std::byte> stored(gradient.size() * size_of(gradient_type_));
    to_stored(gradient_type_, gradient.data(), stored.data(), elements);
    from_stored(gradient_type_, stored.data(), gradient.data(), elements);
  }

  void forward(std::size_t s, std::size_t m, const data::StepBatch& batch,
               std::vector<std::vector<std::byte>>& acts) {
    const model::StageSpec& stage = spec_.stages[s];
    if (stage.kind == model::StageKind::kBlock) call(s, m, model::CallMode::kForward, acts);
    if (stage.kind != model::StageKind::kLookup) return;
    const Bytes row =
        static_cast<Bytes>(spec_.activations[stage.outputs[0]].width) * size_of(spec_.compute_type);
    const auto& ids = batch.micro_batches[m].ids;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(acts[stage.outputs[0]].data() + row * i,
                  pieces_[stage.pieces[0]][0].data() + row * static_cast<Bytes>(ids[i]), row);
    }
  }

  void call(std::size_t s, std::size_t m, model::CallMode mode,
            std::vector<std::vector<std::byte>>& acts) {
    const model::StageSpec& stage = spec_.stages[s];
    std::vector<model::PieceOperand> pieces;
    for (const int p : stage.pieces) {
      float* gradient = mode == model::CallMode::kBackward && spec_.pieces[p].trainable
                            ? gradients_[p].data()
                            : nullptr;
      pieces.push_back({pieces_[p][0].data(), gradient, m == 0});
    }
    std::vector<model::ActivationOperand> inputs, outputs;
    const bool backward = mode == model::CallMode::kBackward;
    std::vector<std::vector<std::byte>> input_gradients;
    for (const int a : stage.inputs) input_gradients.emplace_back(acts[a].size());
    for (std::size_t i = 0; i < stage.inputs.size(); ++i) {
      inputs.push_back(
          {acts[stage.inputs[i]].data(), backward ? input_gradients[i].data() : nullptr, false});
    }
    for (const int a : stage.outputs) {
      outputs.push_back(
          {backward ? nullptr : acts[a].data(), backward ? acts[a].data() : nullptr, false});
    }
    model::StageCall stage_call;
    stage_call.stage = static_cast<int>(s);
    stage_call.micro_batch = static_cast<int>(m);
    stage_call.mode = mode;
    stage_call.pieces = pieces;
    stage_call.inputs = inputs;
    stage_call.outputs = outputs;
    stage_call.workspace = workspace_;
    compute_.run(stage_call);
    // The value is done with: its gradient takes its place, for the stage before.
    for (std::size_t i = 0; backward && i < stage.inputs.size(); ++i)
      acts[stage.inputs[i]] = input_gradients[i];
  }

  void lookup_gradients(const data::StepBatch& batch,
                        const std::vector<std::vector<std::vector<std::byte>>>& acts) {
    for (const model::StageSpec& stage : spec_.stages) {
      if (stage.kind != model::StageKind::kLookup || !spec_.pieces[stage.pieces[0]].trainable)
        continue;
      const int piece = stage.pieces[0];
      const std::int64_t width = spec_.activations[stage.outputs[0]].width;
      bool tied = false;
      for (const model::StageSpec& other : spec_.stages) {
        for (const int p : other.pieces)
          tied |= p == piece && other.kind != model::StageKind::kLookup;
      }
      if (!tied) std::fill(gradients_[piece].begin(), gradients_[piece].end(), 0.0f);
      std::vector<std::vector<float>> sums(
          static_cast<std::size_t>(spec_.pieces[piece].elements / width));
      for (std::size_t m = 0; m < batch.micro_batches.size(); ++m) {
        const data::MicroBatch& micro = batch.micro_batches[m];
        for (std::size_t i = 0; i < micro.ids.size(); ++i) {
          if (micro.documents[i] < 0) continue;
          std::vector<float>& sum = sums[static_cast<std::size_t>(micro.ids[i])];
          if (sum.empty()) sum.assign(static_cast<std::size_t>(width), 0.0f);
          const std::byte* row = acts[m][stage.outputs[0]].data() +
                                 i * static_cast<std::size_t>(width) * size_of(spec_.compute_type);
          std::vector<float> values(static_cast<std::size_t>(width));
          from_stored(spec_.compute_type, row, values.data(), width);
          for (std::int64_t c = 0; c < width; ++c) sum[c] += values[c];
        }
      }
      float* to = gradients_[piece].data();
      for (std::size_t id = 0; id < sums.size(); ++id, to += width) {
        for (std::size_t c = 0; c < sums[id].size(); ++c) to[c] += sums[id][c];
      }
    }
  }

  const model::ModelSpec& spec_;
  model::Compute& compute_;
  const optim::Optimizer& optimizer_;
  std::vector<optim::StateSpec> states_;
  model::DType gradient_type_;
  optim::Pool pool_{1};
  std::vector<std::vector<std::vector<std::byte>>> pieces_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::byte> workspace_;
  std::int64_t version_ = 0;
};

}  // namespace zinf::testing
