#include "engine/model/json_config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {

using Json = nlohmann::json;

struct JsonConfig::Node {
  std::shared_ptr<const Json> document;  // keeps `value` alive
  const Json* value = nullptr;
  std::string source;
  std::string prefix;  // "rope_scaling."
};

namespace {

// Builds nothing: only finds what nlohmann's reader would let pass (duplicate keys, endless
// nesting).
class StrictPass : public nlohmann::json_sax<Json> {
 public:
  std::string problem;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool key(std::string& name) override {
    if (keys_.back().insert(name).second) return true;
    problem = str("key \"", name, "\" appears twice");
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Without nlohmann's own error number in front.
    const std::string text = error.what();
    const std::size_t start = text.find("] ");
    problem = str("no valid JSON at byte ", position, ": ",
                  start == text.npos ? text : text.substr(start + 2));
    return false;
  }

 private:
  bool deeper() {
    if (++depth_ <= 64) return true;
    problem = "nested deeper than 64 levels";
    return false;
  }
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

std::string cut(std::string text) {
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

}  // namespace

JsonConfig JsonConfig::parse(const std::string& text, const std::string& source) {
  StrictPass strict;
  if (!Json::sax_parse(text, &strict)) {
    throw Error(ErrorKind::kUsage, str(source, ": ", cut(strict.problem)));
  }
  auto document = std::make_shared<const Json>(Json::parse(text));
  if (!document->is_object()) {
    throw Error(ErrorKind::kUsage,
                str(source, ": expected a JSON object, found ", document->type_name()));
  }
  auto node = std::make_shared<Node>();
  node->document = document;
  node->value = document.get();
  node->source = source;
  return JsonConfig(std::move(node));
}

namespace {

const Json* lookup(const Json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void wrong(const JsonConfig& config, std::string_view key,
                        const std::string& expected) {
  throw Error(ErrorKind::kUsage,
              str(config.where(key), " is ", config.shown(key), "; expected ", expected));
}

const Json& need(const JsonConfig& config, const Json& object, std::string_view key,
                 const std::string& expected) {
  const Json* value = lookup(object, key);
  if (value == nullptr) wrong(config, key, expected);
  return *value;
}

std::string range_text(const char* kind, double low, double high) {
  return str(kind, " from ", low, " to ", high);
}

}  // namespace

bool JsonConfig::has(std::string_view key) const { return lookup(*node_->value, key) != nullptr; }

bool JsonConfig::is_object(std::string_view key) const {
  const Json* value = lookup(*node_->value, key);
  return value != nullptr && value->is_object();
}

bool JsonConfig::is_text(std::string_view key) const {
  const Json* value = lookup(*node_->value, key);
  return value != nullptr && value->is_string();
}

bool JsonConfig::is_list(std::string_view key) const {
  const Json* value = lookup(*node_->value, key);
  return value != nullptr && value->is_array();
}

std::int64_t JsonConfig::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const std::string expected = str("an integer from ", low, " to ", high);
  const Json& value = need(*this, *node_->value, key, expected);
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto natural = value.get<std::uint64_t>();
    if (natural > static_cast<std::uint64_t>(INT64_MAX)) wrong(*this, key, expected);
    number = static_cast<std::int64_t>(natural);
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    if (!(std::fabs(real) <= 0x1.0p53) || real != std::trunc(real)) wrong(*this, key, expected);
    number = static_cast<std::int64_t>(real);
  } else {
    wrong(*this, key, expected);
  }
  if (number < low || number > high) wrong(*this, key, expected);
  return number;
}

std::int64_t JsonConfig::integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                                    std::int64_t absent) const {
  return has(key) ? integer(key, low, high) : absent;
}

double JsonConfig::number(std::string_view key, double low, double high) const {
  const std::string expected = range_text("a number", low, high);
  const Json& value = need(*this, *node_->value, key, expected);
  if (!value.is_number()) wrong(*this, key, expected);
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < low || number > high) wrong(*this, key, expected);
  return number;
}

double JsonConfig::number_or(std::string_view key, double low, double high, double absent) const {
  return has(key) ? number(key, low, high) : absent;
}

bool JsonConfig::flag_or(std::string_view key, bool absent) const {
  const Json* value = lookup(*node_->value, key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) wrong(*this, key, "true or false");
  return value->get<bool>();
}

std::string JsonConfig::text(std::string_view key) const {
  const Json& value = need(*this, *node_->value, key, "a string");
  if (!value.is_string()) wrong(*this, key, "a string");
  return value.get<std::string>();
}

std::string JsonConfig::text_or(std::string_view key, const std::string& absent) const {
  return has(key) ? text(key) : absent;
}

std::vector<std::string> JsonConfig::texts(std::string_view key) const {
  const Json& value = need(*this, *node_->value, key, "a list of strings");
  if (!value.is_array()) wrong(*this, key, "a list of strings");
  std::vector<std::string> texts;
  for (const Json& item : value) {
    if (!item.is_string()) wrong(*this, key, "a list of strings");
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<double> JsonConfig::numbers(std::string_view key, double low, double high) const {
  const std::string expected = range_text("a list of numbers", low, high);
  const Json& value = need(*this, *node_->value, key, expected);
  if (!value.is_array()) wrong(*this, key, expected);
  std::vector<double> numbers;
  for (const Json& item : value) {
    const double number = item.is_number() ? item.get<double>() : std::nan("");
    if (!std::isfinite(number) || number < low || number > high) wrong(*this, key, expected);
    numbers.push_back(number);
  }
  return numbers;
}

JsonConfig JsonConfig::object(std::string_view key) const {
  const Json& value = need(*this, *node_->value, key, "an object");
  if (!value.is_object()) wrong(*this, key, "an object");
  auto node = std::make_shared<Node>(*node_);
  node->value = &value;
  node->prefix += std::string(key) + ".";
  return JsonConfig(std::move(node));
}

std::vector<std::string> JsonConfig::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : node_->value->items()) keys.push_back(item.key());
  return keys;
}

std::string JsonConfig::where(std::string_view key) const {
  return str(node_->source, ": ", node_->prefix, key);
}

std::string JsonConfig::shown(std::string_view key) const {
  const auto found = node_->value->find(std::string(key));
  if (found == node_->value->end()) return "absent";
  return cut(found->dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace zinf::model
