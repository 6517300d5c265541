#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/model/weight_source.h"

namespace zinf::model {
namespace {

constexpr std::size_t kNamesShown = 5;

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamesShown; ++i)
    text += str(i == 0 ? "" : ", ", names[i]);
  if (names.size() > kNamesShown) text += str(", and ", names.size() - kNamesShown, " more");
  return text;
}

std::string without(const std::string& prefix, const std::string& name) {
  return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : name;
}

// The optional prefix, when every name that the folder has of the spec's lacks it.
std::string find_dropped_prefix(const ModelSpec& spec, const HfFolder& folder,
                                const std::string& prefix) {
  bool dropped = false;
  for (const PieceSpec& piece : spec.pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      const std::string shorter = without(prefix, tensor.name);
      if (shorter == tensor.name) continue;
      if (folder.has(tensor.name)) return "";
      dropped = dropped || folder.has(shorter);
    }
  }
  return dropped ? prefix : "";
}

// The names that a tied pair has in this folder.
std::vector<TiedName> tied_in_folder(const TensorRules& rules, const std::string& dropped_prefix) {
  std::vector<TiedName> tied;
  for (const TiedName& pair : rules.tied) {
    tied.push_back({without(dropped_prefix, pair.name), without(dropped_prefix, pair.alias)});
  }
  return tied;
}

// `name` itself where the folder has it, else its lone alias, else "".
std::string name_in_folder(const HfFolder& folder, const std::string& name,
                           const std::vector<TiedName>& tied) {
  if (folder.has(name)) return name;
  for (const TiedName& pair : tied) {
    if (pair.name == name && folder.has(pair.alias)) return pair.alias;
  }
  return "";
}

void check_shape_and_type(const HfFolder& folder, const TensorSpec& tensor,
                          const std::string& name) {
  const SafeTensor& found = *folder.find(name);
  if (!is_weight_type(found.type)) {
    throw Error(ErrorKind::kUsage,
                str(folder.path(), ": tensor \"", name, "\" has type ", name_of(found.type),
                    "; weights can be F32, BF16, F16 or F64"),
                "quantised models cannot be trained; give the original, unquantised one");
  }
  if (found.shape != tensor.shape) {
    throw Error(ErrorKind::kUsage,
                str(folder.path(), ": tensor \"", name, "\" has shape ", shape_text(found.shape),
                    "; config.json makes it ", shape_text(tensor.shape)),
                "config.json and weights are not of one model");
  }
}

// Equal as values: the two copies may be stored in different types.
void check_equal(const HfFolder& folder, const TiedName& tied) {
  const SafeTensor& a = *folder.find(tied.name);
  const SafeTensor& b = *folder.find(tied.alias);
  const std::string both =
      str(folder.path(), ": config.json ties \"", tied.alias, "\" to \"", tied.name, "\"");
  const std::string hint =
      "set tie_word_embeddings to false in config.json to train them apart, or remove the wrong "
      "one";
  if (a.shape != b.shape || !is_weight_type(b.type)) {
    throw Error(ErrorKind::kUsage,
                str(both, ", but they are ", name_of(b.type), " ", shape_text(b.shape), " and ",
                    name_of(a.type), " ", shape_text(a.shape)),
                hint);
  }
  constexpr std::int64_t kChunk = 1 << 18;
  std::vector<float> left(static_cast<std::size_t>(std::min(a.elements, kChunk))),
      right(left.size());
  for (std::int64_t first = 0; first < a.elements; first += kChunk) {
    const std::int64_t count = std::min(kChunk, a.elements - first);
    folder.read_fp32(tied.name, first, count, left.data());
    folder.read_fp32(tied.alias, first, count, right.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if (left[i] == right[i]) continue;
      throw Error(ErrorKind::kUsage,
                  str(both, ", but their values differ: element ", first + i, " is ", right[i],
                      " and ", left[i]),
                  hint);
    }
  }
}

[[noreturn]] void refuse_missing(const HfFolder& folder, const std::vector<std::string>& missing,
                                 std::int64_t tensors) {
  std::string hint = "config.json and weights are not of one model, or the download is incomplete";
  if (missing.size() == 1 && missing[0] == "lm_head.weight") {
    hint =
        "if the output head is the embedding, config.json must say \"tie_word_embeddings\": true";
  }
  throw Error(ErrorKind::kUsage,
              str(folder.path(), " lacks ", missing.size(), " of the ", tensors,
                  " tensors that config.json asks for: ", list_text(missing)),
              hint);
}

}  // namespace

TensorMap check_tensors(const ModelSpec& spec, const HfFolder& folder, const TensorRules& rules) {
  TensorMap map;
  map.dropped_prefix = find_dropped_prefix(spec, folder, rules.optional_prefix);
  const std::vector<TiedName> tied = tied_in_folder(rules, map.dropped_prefix);
  std::vector<std::string> missing;
  std::unordered_set<std::string> used;
  std::int64_t tensors = 0;
  for (const PieceSpec& piece : spec.pieces) {
    for (const TensorSpec& tensor : piece.tensors) {
      ++tensors;
      const std::string wanted = without(map.dropped_prefix, tensor.name);
      const std::string name = name_in_folder(folder, wanted, tied);
      if (name.empty()) {
        missing.push_back(wanted);
        continue;
      }
      check_shape_and_type(folder, tensor, name);
      used.insert(name);
      map.folder_name[tensor.name] = name;
    }
  }
  if (!missing.empty()) refuse_missing(folder, missing, tensors);
  for (const TiedName& pair : tied) {
    if (folder.has(pair.name) && folder.has(pair.alias)) check_equal(folder, pair);
    used.insert(pair.alias);
  }
  std::vector<std::string> unknown;
  for (const std::string& name : folder.names()) {
    if (used.count(name) != 0) continue;
    bool buffer = false;
    for (const std::string& pattern : rules.buffers) buffer = buffer || glob_match(pattern, name);
    if (!buffer) unknown.push_back(name);
    map.carried.push_back(name);
  }
  if (unknown.empty()) return map;
  const std::string found = str(folder.path(), " holds ", unknown.size(), " tensors that family ",
                                spec.family, " does not know: ", list_text(unknown));
  if (!rules.allow_unknown) {
    throw Error(ErrorKind::kUsage, found,
                "the model would not be the one that its weights were made for");
  }
  log::warning(str(found, "; they are not trained and exports copy them"));
  return map;
}

}  // namespace zinf::model
