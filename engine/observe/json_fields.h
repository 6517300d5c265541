// JSON helpers of this room's .cc files: ordered keys, non-finite numbers as null, lenient typed
// reads.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/bytes.h"
#include "engine/observe/step_record.h"

namespace zinf::observe {

using Json = nlohmann::ordered_json;

inline Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// One line; bytes that are not UTF-8 (a path, say) are replaced instead of thrown about.
inline std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

inline const Json& member(const Json& json, const char* key) {
  static const Json nothing = Json::object();
  const auto found = json.find(key);
  return found == json.end() || !found->is_object() ? nothing : *found;
}

// null: unknown; absent: the default stays; another type: nlohmann's exception, which the callers
// translate.
inline void get_number(const Json& json, const char* key, double& value) {
  const auto found = json.find(key);
  if (found != json.end()) value = found->is_null() ? kUnknown : found->get<double>();
}
inline void get_count(const Json& json, const char* key, std::uint64_t& value) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null()) value = found->get<std::uint64_t>();
}
inline void get_text(const Json& json, const char* key, std::string& value) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null()) value = found->get<std::string>();
}
inline void get_optional(const Json& json, const char* key, std::optional<double>& value) {
  const auto found = json.find(key);
  if (found != json.end()) value = found->is_null() ? kUnknown : found->get<double>();
}
inline void get_byte_map(const Json& json, const char* key, std::map<std::string, Bytes>& values) {
  for (const auto& [name, bytes] : member(json, key).items()) values[name] = bytes.get<Bytes>();
}

}  // namespace zinf::observe
