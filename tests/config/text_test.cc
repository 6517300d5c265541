#include "engine/config/text.h"

#include <gtest/gtest.h>

namespace zinf::config {
namespace {

TEST(Text, IntegersAreExactOrRefused) {
  EXPECT_EQ(parse_integer("512"), 512);
  EXPECT_EQ(parse_integer("-1"), -1);
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("5e8"), 500000000);
  EXPECT_EQ(parse_integer("3.0"), 3);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* text :
       {"1.5", "010", "1e-3", "0x10", "1_000", "", "-", "e5", "1e", "1e400", "nan", "inf",
        "9223372036854775808", "1.00000000000000000000001", " 1", "1 ", "--1", "1.2.3"})
    EXPECT_EQ(parse_integer(text), std::nullopt) << text;
}

TEST(Text, Numbers) {
  EXPECT_EQ(parse_number("1e-5"), 1e-5);
  EXPECT_EQ(parse_number(".5"), 0.5);
  EXPECT_EQ(parse_number("+2"), 2.0);
  for (const char* text : {"nan", "inf", "0x1p3", "1e999", "01.5", ".", "1,5"})
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
}

TEST(Text, BooleansSizesDurations) {
  EXPECT_EQ(parse_bool("on"), true);
  EXPECT_EQ(parse_bool("False"), false);
  EXPECT_EQ(parse_bool("NO"), false);
  EXPECT_EQ(parse_bool("tRue"), std::nullopt);
  EXPECT_EQ(parse_bool("1"), std::nullopt);
  EXPECT_EQ(parse_bool(""), std::nullopt);
  EXPECT_EQ(parse_size("4GiB"), 4ull << 30);
  EXPECT_EQ(parse_size("1.5TB"), 1500000000000ull);
  EXPECT_EQ(parse_size("5e8"), 500000000ull);
  EXPECT_EQ(parse_size("010"), std::nullopt);
  EXPECT_EQ(parse_size("1.5"), std::nullopt);
  EXPECT_EQ(parse_size("-1"), std::nullopt);
  EXPECT_EQ(parse_size("4 gigs"), std::nullopt);
  EXPECT_EQ(parse_duration("10m"), 600.0);
  EXPECT_EQ(parse_duration("1.5h"), 5400.0);
  EXPECT_EQ(parse_duration("500ms"), 0.5);
  EXPECT_EQ(parse_duration("25"), 25.0);
  EXPECT_EQ(parse_duration("m"), std::nullopt);
  EXPECT_EQ(parse_duration("-5s"), std::nullopt);
  EXPECT_EQ(parse_duration("5y"), std::nullopt);
}

TEST(Text, PrintedValuesReadBack) {
  for (const double seconds : {0.0, 0.25, 25.0, 60.0, 90.0, 3600.0, 86400.0, 1e-7, 1.0 / 3})
    EXPECT_EQ(parse_duration(duration_text(seconds)), seconds) << duration_text(seconds);
  for (const std::uint64_t bytes : {0ull, 1ull, 1024ull, 4ull << 30, (4ull << 30) + 1, 3ull << 40})
    EXPECT_EQ(parse_size(size_text(bytes)), bytes) << size_text(bytes);
  for (const double value : {1e-5, 0.1, 5e-5, 1e300, 3.0})
    EXPECT_EQ(parse_number(number_text(value)), value);
}

TEST(Text, EditDistanceCountsSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("gradient_cliping", "gradient_clipping"), 1);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

}  // namespace
}  // namespace zinf::config
