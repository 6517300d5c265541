// Mutated headers: each is refused with an Error or yields tensors that cover the data exactly.
// Seeded; meant to run under the address and undefined-behaviour sanitizers too.
#include "engine/base/random.h"
#include "engine/model/json_config.h"
#include "engine/model/safetensors_header.h"
#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : key_(random_key(seed)) {}
  std::size_t below(std::size_t bound) { return random_below(key_, next_++, bound); }

 private:
  std::uint64_t key_;
  std::uint64_t next_ = 0;
};

const char* const kPieces[] = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "\"",
                               "0",
                               "-1",
                               "1e9",
                               "8",
                               "16",
                               "4294967296",
                               "9223372036854775807",
                               "9223372036854775808",
                               "18446744073709551615",
                               "null",
                               "true",
                               "\"F32\"",
                               "\"F4\"",
                               "\"dtype\":",
                               "\"shape\":",
                               "\"data_offsets\":",
                               "\"__metadata__\":",
                               "[0,8]",
                               "[8,16]",
                               "{}",
                               "[]",
                               "\\u0000",
                               "\\",
                               " ",
                               "\xFF",
                               "\xC3\xA9"};

std::string mutated(std::string text, Dice& dice) {
  for (std::size_t times = 1 + dice.below(3); times > 0; --times) {
    const std::size_t at = dice.below(text.size() + 1);
    const std::string piece = kPieces[dice.below(std::size(kPieces))];
    switch (dice.below(5)) {
      case 0:
        text.insert(at, piece);
        break;
      case 1:
        text.replace(at, std::min(piece.size(), text.size() - at), piece);
        break;
      case 2:
        text.erase(at, 1 + dice.below(6));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(dice.below(256));
        break;
      default: {  // one run of digits becomes another number
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit == text.npos) break;
        const std::size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, (end == text.npos ? text.size() : end) - digit, piece);
      }
    }
  }
  return text;
}

const std::string kValid =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},"c":{"dtype":"I64","shape":[0,3],"data_offsets":[16,16]},)"
    R"("d":{"extra":[1,{"x":2}],"dtype":"U8","shape":[],"data_offsets":[16,17]}})";

// What open() promises of every accepted header.
void expect_sound(const std::vector<SafeTensor>& tensors, Bytes data_bytes) {
  Bytes reached = 0;
  for (const SafeTensor& tensor : tensors) {
    std::int64_t elements = 0;
    Bytes bytes = 0;
    ASSERT_TRUE(tensor_bytes(tensor.shape, tensor.type, &elements, &bytes));
    ASSERT_EQ(tensor.begin, reached);
    ASSERT_EQ(tensor.end - tensor.begin, bytes);
    ASSERT_EQ(tensor.elements, elements);
    reached = tensor.end;
  }
  ASSERT_EQ(reached, data_bytes);
}

TEST(SafetensorsFuzz, HeadersAreRefusedOrSound) {
  Dice dice(1);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = mutated(kValid, dice);
    try {
      expect_sound(parse_safetensors_header(text, 17, "f").tensors, 17);
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
  // Mutations that only touch names, blanks or the extra field are valid; without any the test
  // would test nothing.
  EXPECT_GT(accepted, 300);
  EXPECT_LT(accepted, 10'000);
}

TEST(SafetensorsFuzz, ConfigValuesAreRefusedOrInRange) {
  Dice dice(2);
  const std::string valid = R"({"a":4,"b":{"c":1.5,"d":[1,2]},"e":"text","f":true,"g":null})";
  for (int round = 0; round < 10'000; ++round) {
    try {
      const JsonConfig config = JsonConfig::parse(mutated(valid, dice), "f");
      const std::int64_t a = config.integer("a", 1, 100);
      ASSERT_TRUE(a >= 1 && a <= 100);
      const double c = config.object("b").number("c", 0, 10);
      ASSERT_TRUE(c >= 0 && c <= 10);
      config.text_or("e", "");
      config.flag_or("f", false);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
}

using SafetensorsFileFuzz = ModelFilesTest;

TEST_F(SafetensorsFileFuzz, FilesAreRefusedOrReadable) {
  Dice dice(3);
  const std::string file =
      raw_safetensors(kValid + std::string((8 - kValid.size() % 8) % 8, ' '), std::string(17, 'd'));
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = file;
    switch (dice.below(3)) {
      case 0:
        bytes.resize(dice.below(bytes.size() + 9));
        break;
      case 1:
        bytes[dice.below(8)] = static_cast<char>(dice.below(256));
        break;
      default:
        bytes[dice.below(bytes.size())] ^= static_cast<char>(1 << dice.below(8));
    }
    // A new name each time: rewriting a file makes some file systems wait for the disk.
    const std::string name = std::to_string(round);
    write(name, bytes);
    try {
      const SafetensorsFile opened = SafetensorsFile::open(path(name));
      for (const SafeTensor& tensor : opened.tensors()) {
        std::string data(tensor.end - tensor.begin, ' ');
        opened.read_bytes(tensor, 0, data.size(), data.data());
      }
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    }
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace zinf::model
