// A head that gets its table slice by slice gives the bits of one that has it whole (compute.h).
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "engine/model/torch_compute.h"
#include "engine/model/torch_runtime.h"
#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

constexpr std::int64_t kWidth = 512, kVocabulary = 7001;

std::string text(bool tied) {
  return str(R"({"model_type": "llama", "vocab_size": )", kVocabulary, R"(, "hidden_size": )",
             kWidth, R"(, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2,
             "tie_word_embeddings": )",
             tied ? "true" : "false", "}");
}

// Targets in every slice, some positions without; one micro-batch without any.
data::StepBatch batch() {
  const auto document = [](int length, int key) {
    return random_document(length, key, static_cast<int>(kVocabulary));
  };
  data::MicroBatch nothing = packed_batch(16, {{document(16, 6)}, {document(16, 7)}});
  std::fill(nothing.targets.begin(), nothing.targets.end(), data::kIgnore);
  nothing.target_tokens = 0;
  return step_of({packed_batch(16, {{document(16, 1)}, {document(9, 2)}}), nothing,
                  packed_batch(16, {{document(5, 3), document(11, 4)}, {document(16, 5)}})});
}

struct Outcome {
  std::vector<double> losses, evaluated;
  std::vector<std::int32_t> next;
  std::vector<std::vector<std::byte>> memory;  // gradients of all pieces, then of all inputs
  bool operator==(const Outcome&) const = default;
};

class Head {
 public:
  Head(bool tied, DType type, Bf16Math math, const std::vector<std::string>& freeze)
      : model_(load_model(config_of(text(tied)), {type, freeze})),
        stage_(static_cast<int>(model_.spec.stages.size()) - 1),
        compute_(make_torch_compute(model_, {math})),
        workspace_(std::size_t{64} << 20),
        batch_(batch()) {
    set_compute_threads(1);
    const auto source = random_weights(3);
    for (const int piece : stage().pieces) {
      const PieceSpec& spec = model_.spec.pieces[piece];
      std::vector<float> master(static_cast<std::size_t>(spec.elements));
      source->read_piece(spec, 0, spec.elements, master.data());
      weights_.push_back(stored(master));
    }
    for (std::size_t m = 0; m < batch_.micro_batches.size(); ++m) {
      std::vector<float> values(32 * kWidth);
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(random_normal(m, i));
      inputs_.push_back(stored(values));
    }
  }

  // rows: of a slice; 0: the whole table in one call.
  Outcome run(std::int64_t rows) {
    Outcome outcome;
    compute_->begin_step(batch_, 1.0, kNoDropout);
    gradients_.clear();
    for (const int piece : stage().pieces)
      gradients_.emplace_back(static_cast<std::size_t>(model_.spec.pieces[piece].elements) * 4);
    std::vector<Buffer> inputs, sums;
    for (const Buffer& input : inputs_) {
      inputs.emplace_back(input.size());
      std::memcpy(inputs.back().data(), input.data(), input.size());
      sums.emplace_back(table_sums_bytes(32, kWidth));
    }
    for (const CallMode mode : {CallMode::kNextToken, CallMode::kForward, CallMode::kBackward}) {
      if (rows == 0 && mode == CallMode::kForward) {
        for (std::size_t m = 0; m < inputs.size(); ++m) {
          call(mode, m, inputs[m], {});
          outcome.evaluated.push_back(compute_->loss_sum(static_cast<int>(m)));
        }
        continue;
      }
      for (std::int64_t first = 0; first < kVocabulary; first += rows) {
        for (std::size_t m = 0; m < inputs.size(); ++m) {
          const std::int64_t count = std::min(rows, kVocabulary - first);
          call(mode, m, inputs[m],
               rows == 0 ? TableSlice{} : TableSlice{first, count, sums[m].span()});
          const bool last = rows == 0 || first + count == kVocabulary;
          if (last && mode == CallMode::kNextToken) outcome.next.push_back(compute_->next_token());
          if (last && mode == CallMode::kForward)
            outcome.evaluated.push_back(compute_->loss_sum(static_cast<int>(m)));
        }
        if (rows == 0) break;
      }
    }
    for (std::size_t m = 0; m < inputs.size(); ++m)
      outcome.losses.push_back(compute_->loss_sum(static_cast<int>(m)));
    for (const auto* buffers : {&gradients_, &inputs}) {
      for (const Buffer& buffer : *buffers)
        outcome.memory.emplace_back(buffer.data(), buffer.data() + buffer.size());
    }
    return outcome;
  }

 private:
  const StageSpec& stage() const { return model_.spec.stages[stage_]; }

  Buffer stored(const std::vector<float>& values) const {
    const bool wide = model_.spec.compute_type == DType::kFloat32;
    Buffer buffer(values.size() * (wide ? 4 : 2));
    if (wide) {
      std::memcpy(buffer.data(), values.data(), buffer.size());
      return buffer;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &values[i], 4);
      const auto high = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(buffer.data() + 2 * i, &high, 2);
    }
    return buffer;
  }

  void call(CallMode mode, std::size_t micro_batch, const Buffer& input, TableSlice slice) {
    workspace_.poison();
    const Bytes element = size_of(model_.spec.compute_type);
    const bool last = slice.rows == 0 || slice.first_row + slice.rows == kVocabulary;
    std::vector<PieceOperand> pieces;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const bool table = static_cast<int>(i) == stage().table;
      const std::int64_t start = table ? slice.first_row * kWidth : 0;
      PieceOperand operand;
      operand.weights = weights_[i].data() + static_cast<Bytes>(start) * element;
      const bool trains = model_.spec.pieces[stage().pieces[i]].trainable;
      if (mode == CallMode::kBackward && trains && (table || last)) {
        operand.gradients = gradients_[i].floats() + start;
        operand.first_gradient = micro_batch == 0;
      }
      pieces.push_back(operand);
    }
    StageCall call;
    call.stage = stage_;
    call.micro_batch = static_cast<int>(micro_batch);
    call.mode = mode;
    call.pieces = pieces;
    const bool gradient = mode == CallMode::kBackward && last;
    const std::vector<ActivationOperand> inputs = {
        {input.data(), gradient ? input.data() : nullptr}};
    call.inputs = inputs;
    call.workspace = workspace_.span();
    call.slice = slice;
    compute_->run(call);
  }

  Model model_;
  int stage_;
  std::unique_ptr<Compute> compute_;
  Buffer workspace_;
  data::StepBatch batch_;
  std::vector<Buffer> weights_, inputs_, gradients_;
};

using Case = std::tuple<bool, DType, Bf16Math>;
class TableSliceTest : public testing::TestWithParam<Case> {};

TEST_P(TableSliceTest, GivesTheBitsOfTheWholeTable) {
  const auto [tied, type, math] = GetParam();
  const std::int64_t slice = head_rows_per_slice(kWidth);
  ASSERT_GT(kVocabulary, 2 * slice) << "three slices";
  for (const std::vector<std::string>& freeze :
       {std::vector<std::string>{},
        {"model.norm.weight"},
        {tied ? "model.embed_tokens.weight" : "lm_head.weight"}}) {
    Head head(tied, type, math, freeze);
    const Outcome whole = head.run(0);
    EXPECT_GT(whole.losses[0], 0);
    EXPECT_EQ(whole.losses, whole.evaluated);
    for (const std::int64_t rows : {slice, 2 * slice}) EXPECT_TRUE(head.run(rows) == whole) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TableSliceTest,
                         testing::Values(Case{true, DType::kFloat32, Bf16Math::kAuto},
                                         Case{false, DType::kFloat32, Bf16Math::kAuto},
                                         Case{true, DType::kBFloat16, Bf16Math::kNative},
                                         Case{true, DType::kBFloat16, Bf16Math::kFloat32}));

TEST(TableSlice, RowsAreWholePages) {
  for (const std::int64_t width : {1, 3, 16, 48, 576, 768, 896, 4096, 16384, 1 << 20}) {
    EXPECT_EQ(head_rows_per_slice(width) * width % kPageElements, 0) << width;
    EXPECT_GE(head_rows_per_slice(width), 1) << width;
  }
}

}  // namespace
}  // namespace zinf::model
