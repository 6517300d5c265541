// The naive twin: the whole model in memory, one stage after the other, micro-batch by micro-batch.
// What a streamed step must reproduce bit for bit.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "engine/model/compute.h"
#include "engine/model/model.h"
#include "engine/model/torch_compute.h"
#include "engine/model/weight_source.h"

namespace zinf::model {

// Page-aligned bytes, filled with 0xFF (NaN in every type) at first.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data(), size_}; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  void poison();

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

struct TwinOptions {
  bool keep = false;              // kept activations instead of recompute
  bool layer_major = false;       // all micro-batches of a stage before the next stage
  bool poison = true;             // the workspace, before each visit
  bool gradient_in_place = true;  // an input's gradient takes the input's memory
  std::size_t workspace = std::size_t{64} << 20;
  std::size_t kept = std::size_t{1} << 20;
  int threads = 1;  // two would wait for each other more than compute at these sizes
  double loss_scale = 1;
  std::uint64_t dropout_key = kNoDropout;  // of step() and evaluate()
  ComputeOptions compute;
};

class InMemoryModel {
 public:
  InMemoryModel(Model model, const WeightSource& source, TwinOptions options = {});

  // Forward and backward of a whole step; gradients() and loss_sums() tell the result.
  void step(const data::StepBatch& batch);
  // Forward only: the loss sum of each micro-batch.
  std::vector<double> evaluate(const data::StepBatch& batch);

  // The head alone on the activations of the latest evaluate(), with other targets in `batch` of
  // the same shapes.
  double evaluate_head(const data::StepBatch& batch, int micro_batch);

  // The likeliest id after row 0, on the activations of the latest evaluate().
  std::int32_t next_token(int micro_batch);

  // One call on micro-batch 0 of the latest step(), for measurements.
  void call(int stage, CallMode mode, bool first) { run(stage, 0, mode, first); }

  const ModelSpec& spec() const { return model_.spec; }
  Compute& compute() { return *compute_; }
  const std::vector<double>& loss_sums() const { return losses_; }
  // fp32, whole pieces (padding included); empty for frozen ones.
  const std::vector<Buffer>& gradients() const { return gradients_; }
  const float* gradient(const std::string& tensor) const;
  std::vector<Buffer>& weights() { return weights_; }
  // Activations of the latest forward: [activation][micro-batch].
  const std::vector<std::vector<Buffer>>& activations() const { return values_; }
  Bytes forward_peak(int stage) const { return forward_peaks_.at(stage); }
  Bytes backward_peak(int stage) const { return backward_peaks_.at(stage); }

 private:
  void allocate(const data::StepBatch& batch);
  void lookup(const StageSpec& stage, int micro_batch);
  void forward(int stage, int micro_batch, bool training, bool first);
  void backward(int stage, int micro_batch, bool first);
  void lookup_backward(const StageSpec& stage);
  void for_order(const std::function<void(int stage, int micro_batch, bool first)>& visit,
                 bool reversed);
  void run(int stage, int micro_batch, CallMode mode, bool first);

  Model model_;
  TwinOptions options_;
  std::unique_ptr<Compute> compute_;
  std::vector<Buffer> weights_, gradients_;
  std::vector<bool> has_gradient_;  // per piece, within the step
  std::vector<std::vector<Buffer>> values_, value_gradients_, kept_;
  Buffer workspace_;
  const data::StepBatch* batch_ = nullptr;
  std::vector<double> losses_;
  std::vector<Bytes> forward_peaks_, backward_peaks_;
};

}  // namespace zinf::model
