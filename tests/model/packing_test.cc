// Packed documents do not see each other (field case BR-059).
#include <gtest/gtest.h>

#include <cstring>

#include "tests/model/in_memory_model.h"
#include "tests/model/small_models.h"

namespace zinf::model {
namespace {

double loss_of(const std::string& text, data::MicroBatch batch) {
  const auto source = random_weights(7);
  InMemoryModel twin(load_model(config_of(text)), *source);
  return twin.evaluate(step_of({std::move(batch)}))[0];
}

TEST(Packing, LossIsTheSumOfTheDocumentsAlone) {
  const auto four = random_document(4, 1), seven = random_document(7, 2),
             other = random_document(11, 3);
  for (const std::string& text : {llama_text(), gpt2_text()}) {
    const double alone =
        loss_of(text, packed_batch(4, {{four}})) + loss_of(text, packed_batch(7, {{seven}}));
    EXPECT_NEAR(loss_of(text, packed_batch(11, {{four, seven}})), alone, 1e-4);
    const double rest = loss_of(text, packed_batch(11, {{other}}));
    EXPECT_NEAR(loss_of(text, packed_batch(11, {{four, seven}, {other}})), alone + rest, 1e-4);
    // Padding changes nothing.
    EXPECT_NEAR(loss_of(text, packed_batch(13, {{four, seven}})), alone, 1e-4);
  }
}

void expect_documents_apart(const std::string& text, DType type) {
  const auto source = random_weights(7);
  InMemoryModel twin(load_model(config_of(text), {type, {}}), *source);
  std::vector<std::vector<std::byte>> hidden;
  for (const std::uint64_t key : {10, 20}) {
    twin.evaluate(step_of({packed_batch(
        11, {{random_document(4, key), random_document(7, 2)}, {random_document(11, 5)}})}));
    const Buffer& last = twin.activations().back()[0];
    const std::size_t row = last.size() / 22;
    hidden.emplace_back(last.data() + 4 * row, last.data() + last.size());
    EXPECT_NE(std::memcmp(last.data(), last.data() + 4 * row, row), 0);
  }
  EXPECT_EQ(hidden[0], hidden[1]);
}

TEST(Packing, ChangingOneDocumentLeavesTheOthersBits) {
  for (const std::string& text : {llama_text(), gpt2_text()})
    expect_documents_apart(text, DType::kFloat32);
  expect_documents_apart(llama_text("", "64"), DType::kBFloat16);
}

TEST(Packing, SlidingWindowCountsInsideTheDocument) {
  std::string text = llama_text(R"(, "sliding_window": 3)");
  text.replace(text.find("llama"), 5, "mistral");
  const auto six = random_document(6, 1), nine = random_document(9, 2);
  const double alone =
      loss_of(text, packed_batch(6, {{six}})) + loss_of(text, packed_batch(9, {{nine}}));
  EXPECT_NEAR(loss_of(text, packed_batch(15, {{six, nine}})), alone, 1e-4);
  EXPECT_GT(std::abs(loss_of(llama_text(), packed_batch(15, {{six, nine}})) - alone),
            1e-3);  // the window matters
}

}  // namespace
}  // namespace zinf::model
