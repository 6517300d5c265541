// What the host does for each kind of op that is not a transfer: calls into Compute and the
// optimizer, and the lookup's gather and sum. One op at a time per lane; the compute lane and the
// optimizer lane run beside each other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/data/batch.h"
#include "engine/model/compute.h"
#include "engine/plan/placement.h"
#include "engine/plan/program.h"
#include "gpu/device.h"

namespace zinf::step {

// What a segment works with beside the buffers; fixed when it is submitted.
struct SegmentArgs {
  const data::StepBatch* batch = nullptr;  // forward side: lookup, blocks, head
  const data::StepBatch* row_batch =
      nullptr;                 // whose row gradients kAddRows sums (the backward's own batch)
  optim::StepScalars scalars;  // update segments
  std::int64_t step = 0;       // what this segment's commit is called: the run's step
  bool commits = true;         // false: a hold, so this segment's commit op does nothing
  std::int64_t version = 0;  // updates applied when this segment is done: what its commit is called
  int read_slot = 0;   // of the mutable states' extents: where the state is when the segment begins
  int write_slot = 0;  // where an update puts it; may be the same
  bool next_token = false;  // evaluate: the head gives the next token instead of a loss
};

// The parts of a run that ops are executed with. All references outlive the runner.
struct RunnerParts {
  const plan::ProgramSet* programs = nullptr;
  const model::ModelSpec* model = nullptr;
  model::Compute* compute = nullptr;
  const optim::Optimizer* optimizer = nullptr;
  optim::Pool* pool = nullptr;
  std::vector<std::vector<optim::GroupRange>> group_ranges;  // per piece
  std::vector<optim::Group> groups;
  std::vector<char> starts_zero;  // per state of the schema: a moment, not read by the first update
  std::byte* device_arena = nullptr;
  std::byte* host_arena = nullptr;
};

class OpRunner {
 public:
  // Throws where a step's updates would leave out or repeat a trainable element.
  explicit OpRunner(RunnerParts parts);

  // pages: what an update is to sum, see cpu_optim/pages.h.
  void run(const plan::Op& op, const SegmentArgs& args, optim::UpdatePages* pages = nullptr);

  // The norm of the latest backward: valid once its norm ops are done.
  struct Norm {
    double value = 0;
    bool finite = true;
    int first_bad_piece = -1;  // in the order in which backward completes gradients
  };
  Norm norm() const;
  void reset_norm();
  // Trainable tensors that got no gradient in the latest backward, by name; valid as the norm is.
  std::vector<std::string> unused_tensors() const;
  // From now on forward calls first look at what they are given, on this device; nullptr: no
  // longer. Not while ops run. Then: the first stage in forward order that made a value which is
  // not finite; -1: none of those before the head.
  void look_for_non_finite(gpu::Device* on);
  int first_bad_stage() const { return first_bad_stage_; }
  const model::ModelSpec& model() const { return *parts_.model; }
  // Parameters of the trainable pieces, without padding: what a step updates.
  std::int64_t trainable_elements() const;

  // Where an op finds the operand's bytes. Any thread.
  std::byte* at(const plan::Operand& operand);
  // The arena's high-water mark: the end of the furthest byte that an op was given so far, and of a
  // compute call's workspace that it used.
  Bytes peak_bytes(plan::Arena arena) const { return peak_bytes_[static_cast<int>(arena)]; }
  bool starts_zero(int state) const {
    return parts_.starts_zero[static_cast<std::size_t>(state)] != 0;
  }

 private:
  std::byte* place(const plan::Operand& operand) const;
  void use(const plan::Operand& operand, Bytes bytes);
  void compute(const plan::Op& op, const SegmentArgs& args);
  void look_at_inputs(const model::StageSpec& stage, const data::MicroBatch& batch,
                      std::span<const model::ActivationOperand> inputs);
  void gather(const plan::Op& op, const data::StepBatch& batch);
  void add_rows(const plan::Op& op, const data::StepBatch& batch);
  void add_to_gradient(std::byte* gradient, std::int64_t first, std::span<const float> sum) const;
  void round(const plan::Op& op);
  optim::Gradient gradient_at(const plan::Operand& operand);
  void take_norm(const plan::Op& op);
  void update(const plan::Op& op, const SegmentArgs& args, optim::UpdatePages* pages);
  // The piece's groups; tensors that got no gradient are kept.
  std::vector<optim::GroupRange> ranges_of(int piece) const;

  RunnerParts parts_;
  std::array<std::atomic<Bytes>, 2> peak_bytes_{};  // per arena
  std::vector<std::vector<double>> tile_sums_;      // per piece
  std::vector<char> piece_finite_;
  // Per piece and tensor: got no gradient in this step. A piece's update is done before the next
  // step's backward comes to it, so one copy does.
  std::vector<std::vector<char>> unused_;
  gpu::Device* looks_on_ = nullptr;
  int first_bad_stage_ = -1;
  std::vector<int> backward_order_;  // pieces, those whose gradients are complete first in front
  struct RowUse {
    std::int32_t id;
    std::int64_t position;  // over the whole step
  };
  std::vector<RowUse> row_uses_;  // sorted by (id, position), of row_batch_
  const data::StepBatch* row_batch_ = nullptr;
};

}  // namespace zinf::step
