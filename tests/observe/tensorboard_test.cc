#include "engine/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/observe/atomic_file.h"
#include "tests/observe/temp_folder.h"

namespace zinf::observe {
namespace {

// A reader of its own: records, then the few protobuf fields of an Event.
struct Reader {
  std::string_view rest;

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(rest.at(0));
      rest.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  template <typename Word>
  Word fixed() {
    Word word{};
    std::memcpy(&word, rest.substr(0, sizeof word).data(), sizeof word);
    rest.remove_prefix(sizeof word);
    return word;
  }
  std::string_view bytes() {
    const auto size = varint();
    const auto value = rest.substr(0, size);
    EXPECT_EQ(value.size(), size);
    rest.remove_prefix(size);
    return value;
  }
};

struct Event {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string file_version;
  std::string tag;
  float value = 0;
  bool session_start = false;
};

void parse_summary_value(std::string_view message, Event& event) {
  Reader summary{message};
  ASSERT_EQ(summary.varint(), 1u << 3 | 2u);
  Reader value{summary.bytes()};
  ASSERT_EQ(value.varint(), 1u << 3 | 2u);
  event.tag = value.bytes();
  ASSERT_EQ(value.varint(), 2u << 3 | 5u);
  event.value = value.fixed<float>();
  EXPECT_TRUE(value.rest.empty());
}

Event parse_event(std::string_view payload) {
  Event event;
  Reader reader{payload};
  while (!reader.rest.empty()) {
    switch (const auto key = reader.varint()) {
      case 1 << 3 | 1:
        event.wall_time = reader.fixed<double>();
        break;
      case 2 << 3:
        event.step = reader.varint();
        break;
      case 3 << 3 | 2:
        event.file_version = reader.bytes();
        break;
      case 5 << 3 | 2:
        parse_summary_value(reader.bytes(), event);
        break;
      case 7 << 3 | 2:
        event.session_start = reader.bytes() == std::string_view("\x08\x01");
        break;
      default:
        ADD_FAILURE() << "unexpected key " << key;
        return event;
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Event> events;
  Reader reader{text};
  while (!reader.rest.empty()) {
    const std::string_view length_bytes = reader.rest.substr(0, 8);
    const auto length = reader.fixed<std::uint64_t>();
    EXPECT_EQ(reader.fixed<std::uint32_t>(), masked_crc32c(length_bytes));
    const std::string_view payload = reader.rest.substr(0, length);
    EXPECT_EQ(payload.size(), length);
    reader.rest.remove_prefix(length);
    EXPECT_EQ(reader.fixed<std::uint32_t>(), masked_crc32c(payload));
    events.push_back(parse_event(payload));
  }
  return events;
}

// RFC 3720, B.4.
TEST(TensorBoard, Crc32cKnownValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
}

// The frame of the length 24, as every TensorFlow event file of version 2 begins.
TEST(TensorBoard, MaskedCrcOfAKnownHeader) {
  const std::string length("\x18\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(masked_crc32c(length), 0x224B7FA3u);
}

TEST(TensorBoard, ReadsBackWhatItWrote) {
  TempFolder folder;
  std::string path;
  {
    TensorBoardWriter writer(folder / "runs/tb", 1);
    StepRecord record;
    record.step = 300;
    record.loss = 2.5;
    record.lr = 2e-5;
    record.grad_norm = 0.75;
    record.tokens_per_second = 1234;
    writer.append(record);
    record.step = 301;
    record.eval_loss = 2.25;
    writer.append(record);
    path = writer.path();
  }
  EXPECT_EQ(mode_of(folder / "runs/tb"), 0700u);
  EXPECT_EQ(mode_of(path), 0600u);
  const auto events = read_events(path);
  ASSERT_EQ(events.size(), 10u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.7e9);
  const std::vector<std::pair<std::string, float>> expected = {{"train/loss", 2.5f},
                                                               {"train/learning_rate", 2e-5f},
                                                               {"train/grad_norm", 0.75f},
                                                               {"train/tokens_per_second", 1234.f}};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(events[i + 1].step, i < 4 ? 300u : 301u);
    EXPECT_EQ(events[i + 1].tag, expected[i % 4].first);
    EXPECT_EQ(events[i + 1].value, expected[i % 4].second);
  }
  EXPECT_EQ(events[9].tag, "eval/loss");
  EXPECT_EQ(events[9].value, 2.25f);
}

TEST(TensorBoard, AResumedRunStartsASessionInAFileOfItsOwn) {
  TempFolder folder;
  TensorBoardWriter first(folder.path(), 1);
  TensorBoardWriter second(folder.path(), 41);
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path());
  const auto events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[1].session_start);
  EXPECT_EQ(events[1].step, 41u);
  EXPECT_EQ(read_events(first.path()).size(), 1u);
}

TEST(TensorBoard, NonFiniteValuesStay) {
  TempFolder folder;
  TensorBoardWriter writer(folder.path(), 1);
  writer.scalar("x", 1, NAN);
  writer.scalar("y", 2, INFINITY);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(std::isnan(events[1].value));
  EXPECT_TRUE(std::isinf(events[2].value));
}

TEST(TensorBoard, AFileInTheWayIsAnError) {
  TempFolder folder;
  write_raw(folder / "tb", "a file");
  try {
    TensorBoardWriter writer(folder / "tb", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(folder / "tb"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zinf::observe
