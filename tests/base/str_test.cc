#include "engine/base/str.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace zinf {
namespace {

TEST(Str, JoinsWhatStreamsPrint) {
  EXPECT_EQ(str("layer ", 3, ": ", 1.5, ' ', std::string("GB/s")), "layer 3: 1.5 GB/s");
  EXPECT_EQ(str(""), "");
  EXPECT_EQ(str(std::uint64_t{18446744073709551615u}, " ", -1, " ", true),
            "18446744073709551615 -1 1");
  EXPECT_EQ(str(std::string_view("v"), std::uint8_t{'u'}, std::int16_t{-7}, 1e-9f), "vu-71e-09");
}

}  // namespace
}  // namespace zinf
