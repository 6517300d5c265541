#include "engine/model/json_config.h"

#include "tests/model_files/model_files_fixture.h"

namespace zinf::model {
namespace {

JsonConfig parsed(const std::string& text) { return JsonConfig::parse(text, "config.json"); }

TEST(JsonConfig, ReadsWhatIsThere) {
  const JsonConfig config =
      parsed(R"({"heads": 4, "eps": 1e-5, "theta": 10000, "tied": true, "model_type": "llama",
                                       "kv": null, "scaling": {"rope_type": "linear", "factor": 2.0}, "list": ["a"],
                                       "whole": 8.0, "factors": [1, 1.5]})");
  EXPECT_EQ(config.integer("heads", 1, 100), 4);
  EXPECT_EQ(config.integer("whole", 1, 100), 8);
  EXPECT_EQ(config.integer_or("kv", 1, 100, 7), 7);
  EXPECT_FALSE(config.has("kv"));
  EXPECT_DOUBLE_EQ(config.number("eps", 0, 1), 1e-5);
  EXPECT_DOUBLE_EQ(config.number("theta", 0, 1e9), 10000);
  EXPECT_TRUE(config.flag_or("tied", false));
  EXPECT_EQ(config.text("model_type"), "llama");
  EXPECT_EQ(config.text_or("missing", "x"), "x");
  EXPECT_EQ(config.texts("list"), std::vector<std::string>{"a"});
  EXPECT_EQ(config.numbers("factors", 0, 2), (std::vector<double>{1, 1.5}));
  EXPECT_TRUE(config.is_object("scaling"));
  EXPECT_EQ(config.object("scaling").text("rope_type"), "linear");
  EXPECT_EQ(config.object("scaling").where("factor"), "config.json: scaling.factor");
}

TEST(JsonConfig, NestedObjectsOutliveTheirParent) {
  const JsonConfig inner = parsed(R"({"a": {"b": {"c": 3}}})").object("a").object("b");
  EXPECT_EQ(inner.integer("c", 0, 5), 3);
}

TEST(JsonConfig, EveryNumberIsHostile) {
  const JsonConfig config =
      parsed(R"({"zero": 0, "minus": -3, "huge": 99999999999999999999, "real": 1.5, "flag": true,
                                       "text": "4", "big": 18446744073709551615, "list": [4], "most": 1e300})");
  const auto refused = [&](const char* key, const std::string& shown) {
    const std::string text = error_of([&] { config.integer(key, 1, 1 << 20); });
    expect_has(text, std::string("config.json: ") + key + " is " + shown);
    expect_has(text, "expected an integer from 1 to 1048576");
  };
  refused("zero", "0");
  refused("minus", "-3");
  refused("huge", "1e+20");
  refused("real", "1.5");
  refused("flag", "true");
  refused("text", "\"4\"");
  refused("big", "18446744073709551615");
  refused("list", "[4]");
  refused("most", "1e+300");
  refused("absent", "absent");
  expect_has(error_of([&] { config.number("most", 0, 1e9); }), "expected a number from 0 to 1e+09");
  expect_has(error_of([&] { config.number("flag", 0, 1); }), "flag is true");
  expect_has(error_of([&] { config.flag_or("zero", true); }), "expected true or false");
  expect_has(error_of([&] { config.text("zero"); }), "expected a string");
  expect_has(error_of([&] { config.object("list"); }), "expected an object");
  expect_has(error_of([&] { config.texts("list"); }), "expected a list of strings");
  expect_has(error_of([&] { config.numbers("list", 5, 6); }),
             "expected a list of numbers from 5 to 6");
}

TEST(JsonConfig, RefusesWhatIsNoPlainObject) {
  expect_has(error_of([] { parsed("[1]"); }), "expected a JSON object, found array");
  expect_has(error_of([] { parsed("{\"a\": NaN}"); }), "config.json: no valid JSON at byte");
  expect_has(error_of([] { parsed("{\"a\": 1,}"); }), "no valid JSON");
  expect_has(error_of([] { parsed(""); }), "no valid JSON");
  expect_has(error_of([] { parsed("{\"a\": 1e999}"); }), "no valid JSON");
  expect_has(error_of([] { parsed("{\"a\": 1, \"a\": 2}"); }), "key \"a\" appears twice");
  expect_has(error_of([] { parsed("{\"x\": {\"a\": 1, \"a\": 2}}"); }), "key \"a\" appears twice");
  const std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  expect_has(error_of([&] { parsed(deep); }), "nested deeper than 64 levels");
}

}  // namespace
}  // namespace zinf::model
