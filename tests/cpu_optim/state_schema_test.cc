#include "cpu_optim/state_schema.h"

#include <gtest/gtest.h>

#include <string>

namespace zinf::optim {
namespace {

std::string names_of(const Format& format) {
  std::string names;
  for (const StateSpec& state : schema(format)) names += std::string(state.name) + " ";
  return names;
}

double bytes_of(WeightDtype weight, MasterWeights master, StateDtype moments) {
  return bytes_per_element(schema({Algorithm::kAdamW, weight, master, moments}));
}

TEST(StateSchema, NamesInOrder) {
  EXPECT_EQ("weight exp_avg exp_avg_sq ", names_of({}));
  EXPECT_EQ("weight remainder exp_avg exp_avg_sq ",
            names_of({Algorithm::kAdam, WeightDtype::kBf16, MasterWeights::kSplit}));
  EXPECT_EQ("weight master exp_avg ",
            names_of({Algorithm::kLion, WeightDtype::kBf16, MasterWeights::kFp32}));
  EXPECT_EQ("weight sum ",
            names_of({Algorithm::kAdagrad, WeightDtype::kBf16, MasterWeights::kBf16Sr}));
  EXPECT_EQ("weight master momentum_buffer ", names_of({Algorithm::kSgd, WeightDtype::kFp16}));
  Format plain{Algorithm::kSgd};
  plain.has_momentum = false;
  EXPECT_EQ("weight ", names_of(plain));
}

// The table of docs and plans: bytes per parameter.
TEST(StateSchema, BytesPerParameter) {
  EXPECT_EQ(12, bytes_of(WeightDtype::kFp32, MasterWeights::kFp32, StateDtype::kFp32));
  EXPECT_EQ(14, bytes_of(WeightDtype::kBf16, MasterWeights::kFp32, StateDtype::kFp32));
  EXPECT_EQ(12, bytes_of(WeightDtype::kBf16, MasterWeights::kSplit, StateDtype::kFp32));
  EXPECT_EQ(8, bytes_of(WeightDtype::kBf16, MasterWeights::kSplit, StateDtype::kBf16));
  EXPECT_EQ(6.03125, bytes_of(WeightDtype::kBf16, MasterWeights::kSplit, StateDtype::kInt8));
  EXPECT_EQ(4.03125, bytes_of(WeightDtype::kBf16, MasterWeights::kBf16Sr, StateDtype::kInt8));
}

TEST(StateSchema, BytesOfAPrefix) {
  const StateSpec fp32{"weight", 1024}, int8{"exp_avg", 260};
  EXPECT_EQ(0u, int8.bytes(0));
  EXPECT_EQ(260u, int8.bytes(1));
  EXPECT_EQ(260u, int8.bytes(256));
  EXPECT_EQ(520u, int8.bytes(257));
  EXPECT_EQ(4u, fp32.bytes(1));
  EXPECT_EQ(1028u, fp32.bytes(257));
  EXPECT_EQ(Bytes{4} << 33, fp32.bytes(std::int64_t{1} << 33));
}

TEST(StateSchema, FrozenPiecesHaveTheWeightOnly) {
  const auto states = frozen_schema(WeightDtype::kBf16);
  ASSERT_EQ(1u, states.size());
  EXPECT_EQ("weight", states[0].name);
  EXPECT_FALSE(states[0].is_mutable);
  EXPECT_EQ(512u, states[0].bytes(256));
}

TEST(StateSchema, RefusesFormatsThatMakeNoSense) {
  EXPECT_EQ("weights in fp32 are their own master: master_weights must be fp32",
            why_invalid({Algorithm::kAdamW, WeightDtype::kFp32, MasterWeights::kSplit}));
  EXPECT_EQ("weights in fp16 need master_weights: fp32",
            why_invalid({Algorithm::kAdamW, WeightDtype::kFp16, MasterWeights::kBf16Sr}));
  EXPECT_EQ("", why_invalid({Algorithm::kAdamW, WeightDtype::kBf16, MasterWeights::kBf16Sr}));
}

TEST(StateSchema, Names) {
  EXPECT_EQ(Algorithm::kAdagrad, parse_algorithm("adagrad"));
  EXPECT_EQ(StateDtype::kInt8, parse_state_dtype("int8"));
  EXPECT_EQ(MasterWeights::kBf16Sr, parse_master_weights("bf16-sr"));
  EXPECT_EQ(WeightDtype::kFp16, parse_weight_dtype("fp16"));
  EXPECT_EQ(std::nullopt, parse_state_dtype("fp16"));
  EXPECT_EQ("lion", name(Algorithm::kLion));
}

}  // namespace
}  // namespace zinf::optim
