#include "engine/base/bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace zinf {
namespace {

TEST(Bytes, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("512"), 512u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("512B"), 512u);
  EXPECT_EQ(parse_bytes("4GiB"), 4 * kGiB);
  EXPECT_EQ(parse_bytes("4 GiB"), 4 * kGiB);
  EXPECT_EQ(parse_bytes("1.5TB"), 1'500'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536u);
  EXPECT_EQ(parse_bytes("2kB"), 2000u);
  EXPECT_EQ(parse_bytes("2KB"), 2000u);
  EXPECT_EQ(parse_bytes("3MB"), 3'000'000u);
  EXPECT_EQ(parse_bytes("3MiB"), 3 * kMiB);
  EXPECT_EQ(parse_bytes("1TiB"), Bytes{1} << 40);
}

TEST(Bytes, ExactWhereADoubleIsNot) {
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993u);
}

TEST(Bytes, RefusesTheRest) {
  for (const char* text : {"",        " ",     "GiB",   "-1",    "+1",
                           ".5GiB",   "5.",    "1.2.3", "4 gib", "4GiBs",
                           "4G",      "1e3",   "0x10",  "4b",    "99999999999999999999",
                           "9000PiB", "4GiB ", " 4GiB", "nan",   "inf"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(Bytes, AVeryLongNumberIsRefusedNotThrownAbout) {
  EXPECT_EQ(parse_bytes(std::string(10'000, '9')), std::nullopt);
}

TEST(Bytes, Prints) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(96 * kMiB), "96.0 MiB");
  EXPECT_EQ(format_bytes(384 * kMiB), "384 MiB");
  EXPECT_EQ(format_bytes(1000 * kMiB), "0.98 GiB");
  EXPECT_EQ(format_bytes(~Bytes{0}), "16384 PiB");
}

TEST(Bytes, RoundUp) {
  EXPECT_EQ(round_up(0, 4096), 0u);
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_up(4097, 4096), 8192u);
}

}  // namespace
}  // namespace zinf
