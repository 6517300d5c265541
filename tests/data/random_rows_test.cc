#include "engine/data/random_rows.h"

#include <gtest/gtest.h>

#include "engine/data/loader.h"
#include "tests/data/data_fixture.h"

namespace zinf::data {
namespace {

TEST(RandomRows, TokensArePinnedAndTargetsAreTheNextToken) {
  LoaderOptions options;
  options.micro_batch = 2;
  const Loader loader(random_tokens(RowSource::kEndless, 6, 1000, 3), options);
  const StepBatch batch = loader.step_batch(0);
  const MicroBatch& micro = batch.micro_batches.at(0);
  EXPECT_EQ(micro.ids,
            (std::vector<std::int32_t>{667, 492, 825, 192, 166, 781, 49, 124, 871, 681, 599, 180}));
  EXPECT_EQ(std::vector<std::int32_t>(micro.targets.begin(), micro.targets.begin() + 5),
            std::vector<std::int32_t>(micro.ids.begin() + 1, micro.ids.begin() + 6));
  EXPECT_EQ(batch.target_tokens, 12);
  EXPECT_EQ(batch.padding, 0);
  EXPECT_EQ(loader.steps_per_epoch(), 0);
  EXPECT_NE(loader.step_batch(1).micro_batches[0].ids, micro.ids);
  EXPECT_EQ(loader.position(7).row, 14);
  EXPECT_EQ(error_of([&] { loader.total_steps(1); }),
            "train.epochs needs data that ends; this data is generated without end\n  hint: set "
            "train.steps");
}

TEST(RandomRows, RegressionIsALinearFunctionWithUnitVariance) {
  LoaderOptions options;
  options.micro_batch = 4000;
  const StepBatch batch =
      Loader(random_regression(RowSource::kEndless, 16, 3), options).step_batch(0);
  const MicroBatch& micro = batch.micro_batches.at(0);
  double mean = 0, square = 0;
  for (const float label : micro.labels) {
    mean += label / 4000;
    square += static_cast<double>(label) * label / 4000;
  }
  EXPECT_NEAR(mean, 0, 0.1);
  EXPECT_NEAR(square, 1, 0.6);
  EXPECT_FLOAT_EQ(micro.features[0], -0.44602156f);
  EXPECT_FLOAT_EQ(micro.labels[0], 0.52030826f);
}

TEST(RandomRows, SamplesRepeatEachEpoch) {
  LoaderOptions options;
  options.micro_batch = 2;
  const Loader loader(random_tokens(4, 6, 1000, 3), options);
  EXPECT_EQ(loader.steps_per_epoch(), 2);
  EXPECT_NE(random_tokens(4, 6, 1000, 3)->identity(), random_tokens(4, 6, 1000, 4)->identity());
}

}  // namespace
}  // namespace zinf::data
