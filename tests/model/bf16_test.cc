// bf16 models: weights, activations and their gradients rounded, arithmetic in bf16 or widened.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/float_convert.h"
#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

// The same bf16 weights as fp32: what a bf16 run should come close to.
class RoundedSource final : public WeightSource {
 public:
  void read_piece(const PieceSpec& piece, std::int64_t first, std::int64_t count,
                  float* master) const override {
    source_->read_piece(piece, first, count, master);
    for (std::int64_t i = 0; i < count; ++i) master[i] = from_bf16(to_bf16_away(master[i]));
  }

 private:
  std::unique_ptr<WeightSource> source_ = random_weights(7);
};

double relative_error(const InMemoryModel& ours, const InMemoryModel& exact,
                      const TensorSpec& tensor) {
  const float* a = ours.gradient(tensor.name);
  const float* b = exact.gradient(tensor.name);
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < tensor.elements; ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / size);
}

TEST(Bf16, GradientsComeCloseAndWidenedIsCloser) {
  const RoundedSource source;
  // Heads of 12 elements are LibTorch's on every processor, heads of 16 have our own kernel where
  // there is one.
  std::string windowed = llama_text(R"(, "sliding_window": 3)", "64");
  windowed.replace(windowed.find("llama"), 5, "mistral");
  std::string wider = gpt2_text();
  wider.replace(wider.find("48"), 2, "64");
  for (const std::string& text :
       {llama_text(), gpt2_text(), llama_text("", "64"), windowed, wider}) {
    SCOPED_TRACE(text);
    InMemoryModel exact(load_model(config_of(text)), source);
    exact.step(mixed_step());
    double worst[2] = {0, 0}, sum[2] = {0, 0};
    for (const Bf16Math math : {Bf16Math::kNative, Bf16Math::kFloat32}) {
      TwinOptions options;
      options.compute.bf16_math = math;
      InMemoryModel twin(load_model(config_of(text), {DType::kBFloat16, {}}), source, options);
      twin.step(mixed_step());
      const int which = math == Bf16Math::kFloat32;
      for (std::size_t m = 0; m < 3; ++m)
        EXPECT_NEAR(twin.loss_sums()[m], exact.loss_sums()[m], 0.02 * exact.loss_sums()[m]);
      for (const PieceSpec& piece : twin.spec().pieces) {
        for (const TensorSpec& tensor : piece.tensors) {
          const double error = relative_error(twin, exact, tensor);
          worst[which] = std::max(worst[which], error);
          sum[which] += error;
        }
      }
    }
    EXPECT_LT(worst[0], 0.1);
    EXPECT_LT(worst[1], 0.03);
    EXPECT_LT(sum[1], sum[0]);
  }
}

// A stage's workspace is measured with one document a row, and with many of equal length: one long
// and many short ones need no more, however many threads there are.
TEST(Bf16, DocumentsOfAnyLengthsFitWhatOneNeeds) {
  const RoundedSource source;
  std::string text = llama_text("", "64");
  text.replace(text.find("embeddings\": 64"), 15, "embeddings\": 512");
  Bytes peaks[2] = {};
  double losses[2] = {};
  for (const bool mixed : {false, true}) {
    std::vector<std::vector<std::int32_t>> row = {random_document(512, 1)};
    if (mixed) {
      row = {random_document(505, 1)};
      for (std::uint64_t i = 0; i < 7; ++i) row.push_back(random_document(1, 2 + i));
    }
    for (const int threads : {1, 12}) {
      TwinOptions options;
      options.threads = threads;
      options.compute.bf16_math = Bf16Math::kNative;
      InMemoryModel twin(load_model(config_of(text), {DType::kBFloat16, {}}), source, options);
      twin.step(step_of({packed_batch(512, {row})}));
      peaks[mixed] = twin.backward_peak(2);
      const double loss = twin.loss_sums()[0];
      if (threads > 1) {
        EXPECT_NEAR(loss, losses[mixed], 1e-3 * loss);
      }
      losses[mixed] = loss;
    }
  }
  EXPECT_LE(peaks[1], peaks[0] + peaks[0] / 20 + (128 << 10));
}

}  // namespace
}  // namespace zinf::model
