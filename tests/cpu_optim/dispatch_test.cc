#include "cpu_optim/dispatch.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace zinf::optim {
namespace {

TEST(Dispatch, ScalarIsAlwaysThere) {
  EXPECT_TRUE(is_available(Isa::kScalar));
  EXPECT_EQ(Isa::kScalar, available_isas().front());
  EXPECT_EQ(best_isa(), available_isas().back());
  EXPECT_TRUE(is_available(best_isa()));
}

TEST(Dispatch, Names) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512})
    EXPECT_EQ(isa, parse_isa(name(isa)));
  EXPECT_EQ(std::nullopt, parse_isa("avx"));
}

TEST(Dispatch, ChoosesByText) {
  EXPECT_EQ(best_isa(), choose_isa("auto"));
  EXPECT_EQ(Isa::kScalar, choose_isa("scalar"));
  try {
    choose_isa("sse9");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kUsage, error.kind());
    EXPECT_STREQ("instruction set: expected auto, scalar, avx2 or avx512, found \"sse9\"",
                 error.what());
  }
}

TEST(Dispatch, RefusesAnAbsentSet) {
  if (is_available(Isa::kAvx512)) GTEST_SKIP() << "this processor has every set";
  try {
    choose_isa("avx512");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::kUsage, error.kind());
    EXPECT_EQ(
        std::string("instruction set: avx512 was asked for, but this processor does not have it\n"
                    "  hint: the widest set here is ") +
            std::string(name(best_isa())) + "; auto takes it",
        error.what());
  }
}

}  // namespace
}  // namespace zinf::optim
