#include "engine/base/error.h"

#include <gtest/gtest.h>

namespace zinf {
namespace {

TEST(Error, KindsAreExitCodes) {
  EXPECT_EQ(Error(ErrorKind::kFailed, "m").exit_code(), 1);
  EXPECT_EQ(Error(ErrorKind::kUsage, "m").exit_code(), 2);
  EXPECT_EQ(Error(ErrorKind::kDoesNotFit, "m").exit_code(), 3);
}

TEST(Error, TheHintFollowsOnALineOfItsOwn) {
  EXPECT_STREQ(Error(ErrorKind::kUsage, "opening a: expected b, found c").what(),
               "opening a: expected b, found c");
  EXPECT_STREQ(Error(ErrorKind::kUsage, "opening a", "run d").what(), "opening a\n  hint: run d");
}

TEST(ErrorDeathTest, ACheckThatFailsNamesConditionPlaceAndDetail) {
  EXPECT_DEATH(ZINF_CHECK(1 + 1 == 3, "sum"),
               "internal check failed at .*error_test.cc:[0-9]+: 1 \\+ 1 == 3 "
               "\\(sum\\)\\. This is a bug in zinf");
}

TEST(Error, ACheckThatHoldsEvaluatesOnceAndSkipsTheDetail) {
  int conditions = 0, details = 0;
  const auto detail = [&] {
    ++details;
    return std::string("x");
  };
  ZINF_CHECK(++conditions == 1, detail());
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(details, 0);
}

}  // namespace
}  // namespace zinf
