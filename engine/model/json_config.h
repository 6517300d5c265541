// config.json with every value checked: a missing key, a wrong type, a number out of range is an
// Error(kUsage) that names file, key, value and what was expected. JSON null counts as absent, as
// in transformers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zinf::model {

// A JSON object (the file, or an object in it). Cheap to copy; immutable.
class JsonConfig {
 public:
  // `source` names the file in messages. Duplicate keys, NaN and Infinity are refused.
  static JsonConfig parse(const std::string& text, const std::string& source);

  bool has(std::string_view key) const;  // there, and not null
  bool is_object(std::string_view key) const;
  bool is_text(std::string_view key) const;
  bool is_list(std::string_view key) const;

  // An integer in [low, high] (8.0 is one, true is not).
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                          std::int64_t absent) const;
  // A finite number in [low, high].
  double number(std::string_view key, double low, double high) const;
  double number_or(std::string_view key, double low, double high, double absent) const;
  bool flag_or(std::string_view key, bool absent) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, const std::string& absent) const;
  std::vector<std::string> texts(std::string_view key) const;  // a list of strings
  std::vector<double> numbers(std::string_view key, double low, double high) const;
  JsonConfig object(std::string_view key) const;
  std::vector<std::string> keys() const;

  // "<file>: rope_scaling.factor", for messages of the caller's own checks.
  std::string where(std::string_view key) const;
  // The value as JSON text, cut to a readable length; "(absent)".
  std::string shown(std::string_view key) const;

 private:
  struct Node;
  explicit JsonConfig(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  // Shared: nested objects look into the one parsed document.
  std::shared_ptr<const Node> node_;
};

}  // namespace zinf::model
