// Field case BR-027.
#include "engine/config/batch.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/config/load.h"

namespace zinf::config {
namespace {

RunConfig config_of(const std::string& text) { return load_text(text, "/c/run.yaml").config; }

std::string failure(const std::string& text, std::int64_t world) {
  try {
    resolve_batch(config_of(text), world);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Batch, TwoGiveTheThird) {
  const Batch a =
      resolve_batch(config_of("{train_batch_size: 12, train_micro_batch_size_per_gpu: 2}"), 3);
  EXPECT_EQ(a.accumulation, 2);
  const Batch b =
      resolve_batch(config_of("{train_batch_size: 12, gradient_accumulation_steps: 2}"), 3);
  EXPECT_EQ(b.micro, 2);
  const Batch c =
      resolve_batch(config_of("{micro_batch_size: 2, gradient_accumulation_steps: 2}"), 3);
  EXPECT_EQ(c.total, 12);
}

TEST(Batch, OneOrNone) {
  const Batch micro = resolve_batch(config_of("{train_micro_batch_size_per_gpu: 2}"), 3);
  EXPECT_EQ(micro.accumulation, 1);
  EXPECT_EQ(micro.total, 6);

  const Batch total = resolve_batch(config_of("{train_batch_size: 12}"), 3);
  EXPECT_EQ(total.micro, std::nullopt);
  EXPECT_EQ(total.per_rank, 4);
  EXPECT_TRUE(total.allows(2));
  EXPECT_FALSE(total.allows(3));
  EXPECT_EQ(with_micro(total, 2).accumulation, 2);
  EXPECT_EQ(with_micro(total, 2).total, 12);

  const Batch none = resolve_batch(config_of("{train: {steps: 1}}"), 3);
  EXPECT_EQ(none.micro, std::nullopt);
  EXPECT_EQ(none.accumulation, 1);
  EXPECT_EQ(with_micro(none, 5).total, 15);
}

TEST(Batch, ConflictsShowAllFourNumbersAndOrigins) {
  EXPECT_EQ(failure("train_batch_size: 13\ntrain_micro_batch_size_per_gpu: 2\n", 3),
            "batch sizes do not agree: 13 is not a multiple of 3 ranks\n"
            "  train_batch_size = 13 (/c/run.yaml:1)\n"
            "  train_micro_batch_size_per_gpu = 2 (/c/run.yaml:2)\n"
            "  gradient_accumulation_steps = auto (default)\n"
            "  ranks = 3 (launcher)\n"
            "  hint: train_batch_size = train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks; "
            "give two of the three, or change the number of ranks");
  EXPECT_TRUE(
      failure("train_batch_size: 12\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n", 3)
          .starts_with("batch sizes do not agree: 2 x 4 x 3 = 24, not 12\n"
                       "  train_batch_size = 12 (/c/run.yaml:1)\n"
                       "  train_micro_batch_size_per_gpu = 2 (/c/run.yaml:2: micro_batch_size)\n"));
  EXPECT_TRUE(
      failure("{train_batch_size: 12, micro_batch_size: 3}", 3)
          .starts_with("batch sizes do not agree: 12 / 3 ranks = 4, not a multiple of 3\n"));
  EXPECT_TRUE(
      failure("{micro_batch_size: 9e15, gradient_accumulation_steps: 9e15}", 1)
          .starts_with(
              "batch sizes do not agree: 9000000000000000 x 9000000000000000 is more than 2^40"));
}

TEST(Batch, ZeroAndNegativeAreRefusedWhenLoaded) {
  const auto load_failure = [](const std::string& text) {
    try {
      config_of(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(load_failure("train_batch_size: 0\n"),
            "/c/run.yaml:1: train_batch_size: expected an integer of at least 1, found '0'");
  EXPECT_EQ(load_failure("train_micro_batch_size_per_gpu: -1\n"),
            "/c/run.yaml:1: train_micro_batch_size_per_gpu: expected an integer of at least 1, "
            "found '-1'");
}

}  // namespace
}  // namespace zinf::config
