#include "engine/model/hub_cache.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/posix_file.h"

namespace zinf::model {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = environment(name); !cache.empty()) return cache;
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "huggingface" / "hub";
  }
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

bool plain_part(const std::string& part) {
  if (part.empty() || part.size() > 96 || part.front() == '.' || part.front() == '-') return false;
  for (const char c : part) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.')
      return false;
  }
  return true;
}

// "org/name", or a bare "name" as the oldest models have.
bool looks_like_id(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == text.npos) return plain_part(text);
  return plain_part(text.substr(0, slash)) && plain_part(text.substr(slash + 1));
}

std::string joined(const std::string& id) {
  std::string name = "models--" + id;
  if (const std::size_t slash = name.find('/'); slash != name.npos) name.replace(slash, 1, "--");
  return name;
}

// The snapshot's folder, or "" when the cache has none of this model.
std::string find_snapshot(const fs::path& model) {
  std::error_code ignored;
  const fs::path snapshots = model / "snapshots";
  if (fs::is_regular_file(model / "refs" / "main", ignored)) {
    std::string commit = read_text_file((model / "refs" / "main").string(), 4096);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0)
      commit.pop_back();
    if (plain_part(commit) && fs::is_directory(snapshots / commit, ignored))
      return (snapshots / commit).string();
  }
  // Downloaded by commit: no refs/main, but only one snapshot that can be meant.
  std::vector<std::string> found;
  for (fs::directory_iterator entry(snapshots, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (entry->is_directory(ignored)) found.push_back(entry->path().string());
  }
  return found.size() == 1 ? found.front() : "";
}

}  // namespace

std::string resolve_model_path(const std::string& path_or_id, const std::string& base) {
  if (path_or_id.empty()) {
    throw Error(ErrorKind::kUsage, "model.path is empty",
                "give a folder with config.json, or a Hub id");
  }
  std::error_code ignored;
  fs::path path = path_or_id;
  if (!base.empty() && path.is_relative()) path = fs::path(base) / path;
  if (fs::is_directory(path, ignored)) return path.string();
  if (fs::exists(path, ignored)) {
    throw Error(ErrorKind::kUsage,
                str("model.path ", path.string(), " is a file; expected a model folder"),
                "give the folder that holds config.json and the .safetensors files");
  }
  if (!looks_like_id(path_or_id)) {
    throw Error(ErrorKind::kUsage, str("model.path ", path.string(), ": no such folder"));
  }
  const fs::path cache = cache_folder();
  std::string snapshot = find_snapshot(cache / joined(path_or_id));
  if (!snapshot.empty()) return snapshot;
  throw Error(ErrorKind::kUsage,
              str("model.path ", path_or_id, ": no folder ", path.string(),
                  ", and no model of that name in ", cache.string()),
              str("download it with: hf download ", path_or_id,
                  "   (the hf command comes with: pip install huggingface_hub)"));
}

}  // namespace zinf::model
