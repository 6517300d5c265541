#include "engine/checkpoint/manifest.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/str.h"
#include "engine/observe/atomic_file.h"

namespace zinf::checkpoint {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kMagic = "zinf-manifest";

Json to_json(const Manifest& m) {
  Json json;
  json["magic"] = kMagic;
  json["format"] = Manifest::kFormat;
  json["step"] = m.step;
  json["steps"] = m.steps;
  if (m.data_start != 0) json["data_start"] = m.data_start;
  json["version"] = m.version;
  json["slot"] = m.slot;
  json["moments_are_zero"] = m.moments_are_zero;
  json["finished"] = m.finished;
  json["area"] = m.area;
  json["drives"] = m.drives;
  json["model"] = m.model;
  json["optimizer_format"] = m.format;
  json["extents"] = Json::array();
  for (const ManifestExtent& e : m.extents) {
    json["extents"].push_back({{"piece", e.piece},
                               {"state", e.state},
                               {"elements", e.elements},
                               {"bytes", e.bytes},
                               {"slots", e.slots}});
  }
  json["data"] = Json::array();
  for (const DataFile& file : m.data)
    json["data"].push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  json["library"] = m.library;
  json["instruction_set"] = m.instruction_set;
  json["compute_threads"] = m.compute_threads;
  json["micro_batch"] = m.micro_batch;
  json["accumulation"] = m.accumulation;
  json["world"] = m.world;
  json["mesh"] = {{"dp", m.world}, {"tp", 1}, {"sp", 1}};
  json["pages"] = m.pages;
  json["loss"] = std::isfinite(m.loss) ? Json(m.loss) : Json(nullptr);
  if (m.loss_scale) {
    const optim::LossScaleState& state = *m.loss_scale;
    json["loss_scale"] = {{"scale", state.scale},
                          {"iteration", state.iteration},
                          {"last_overflow", state.last_overflow},
                          {"hysteresis", state.hysteresis},
                          {"skips_at_minimum", state.skips_at_minimum},
                          {"skipped", state.skipped}};
  }
  json["config"] = m.resolved_config;
  return json;
}

std::string checksum(const std::string& body) {
  Hasher hash;
  hash.update(body.data(), body.size());
  return hash.hex();
}

Manifest from_json(const Json& json) {
  Manifest m;
  m.step = json.at("step");
  m.steps = json.at("steps");
  m.data_start = json.value("data_start", std::int64_t{0});
  m.version = json.at("version");
  m.slot = json.at("slot");
  m.moments_are_zero = json.at("moments_are_zero");
  m.finished = json.at("finished");
  m.area = json.at("area");
  m.drives = json.at("drives").get<std::vector<std::string>>();
  m.model = json.at("model");
  m.format = json.at("optimizer_format");
  for (const Json& e : json.at("extents")) {
    m.extents.push_back(
        {e.at("piece"), e.at("state"), e.at("elements"), e.at("bytes"), e.at("slots")});
  }
  for (const Json& file : json.at("data"))
    m.data.push_back({file.at("path"), file.at("bytes"), file.at("hash")});
  m.library = json.at("library");
  m.instruction_set = json.at("instruction_set");
  m.compute_threads = json.at("compute_threads");
  m.micro_batch = json.at("micro_batch");
  m.accumulation = json.at("accumulation");
  m.world = json.at("world");
  if (json.at("loss").is_number()) m.loss = json.at("loss");
  m.pages = json.at("pages");
  m.resolved_config = json.at("config");
  if (const auto scale = json.find("loss_scale"); scale != json.end()) {
    m.loss_scale = {
        scale->at("scale"),      scale->at("iteration"),        scale->at("last_overflow"),
        scale->at("hysteresis"), scale->at("skips_at_minimum"), scale->at("skipped")};
  }
  return m;
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  const std::string body = to_json(manifest).dump(1);
  return body + "\n" + checksum(body) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const auto fail = [&](const std::string& why) -> Manifest {
    throw Error(ErrorKind::kFailed, str(path, ": ", why), "an older manifest may still be whole");
  };
  const std::size_t end = text.rfind('\n', text.size() >= 2 ? text.size() - 2 : 0);
  if (text.empty() || text.back() != '\n' || end == std::string::npos)
    return fail("torn: the checksum line is missing");
  const std::string body = text.substr(0, end);
  const std::string found = text.substr(end + 1, text.size() - end - 2);
  if (found != checksum(body))
    return fail(str("damaged: checksum ", checksum(body), " computed, ", found, " found"));
  try {
    const Json json = Json::parse(body);
    if (json.at("magic") != kMagic) return fail("not a manifest");
    if (json.at("format") != Manifest::kFormat) {
      return fail(str("format version ", json.at("format").dump(), ", this zinf reads ",
                      Manifest::kFormat));
    }
    return from_json(json);
  } catch (const Json::exception& error) {
    return fail(str("not readable: ", error.what()));
  }
}

std::string ManifestFolder::path(std::int64_t step) const {
  return str(folder_, "/", prefix_, "manifest-", step, ".json");
}

std::vector<std::int64_t> ManifestFolder::steps() const {
  std::vector<std::int64_t> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix_)) continue;
    name.erase(0, prefix_.size());
    long long step = 0;
    int used = 0;
    if (std::sscanf(name.c_str(), "manifest-%lld.json%n", &step, &used) == 1 &&
        used == static_cast<int>(name.size())) {
      found.push_back(step);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string ManifestFolder::pages_path(std::int64_t step) const {
  return str(folder_, "/", prefix_, "pages-", step, ".bin");
}

void ManifestFolder::publish(Manifest manifest, const std::string& pages, int keep) const {
  if (!pages.empty()) {
    // The manifest's sync of the folder is for both names. A power loss before it may leave either
    // one alone: a manifest without its page table is skipped by find(), and the commit before,
    // whose slot and files are touched only after this call, is whole.
    observe::write_file_atomically(pages_path(manifest.step), pages,
                                   observe::Durability::kContentsSynced);
    manifest.pages = checksum(pages);
  }
  observe::write_file_atomically(path(manifest.step), manifest_text(manifest),
                                 observe::Durability::kSynced);
  const std::vector<std::int64_t> all = steps();
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    if (all[i] < manifest.step) remove(all[i]);
  }
}

std::string ManifestFolder::pages(const Manifest& manifest) const {
  if (manifest.pages.empty()) return "";
  const std::string file = pages_path(manifest.step);
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in || checksum(text.str()) != manifest.pages) {
    throw Error(
        ErrorKind::kFailed,
        str(file, in ? ": damaged: its checksum is not the manifest's" : ": missing or unreadable"),
        "without it the state can't be verified; set io.verify: false to go on all the same");
  }
  return text.str();
}

ManifestFolder::Found ManifestFolder::find(const std::string& area) const {
  Found found;
  const std::vector<std::int64_t> all = steps();
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    try {
      const Manifest manifest = read(*step);
      if (manifest.area == area) {
        if (!found.without_pages) found.without_pages = *step;
        static_cast<void>(pages(manifest));
      }
      if (found.without_pages == *step) found.without_pages.reset();
      found.newest = manifest;
      return found;
    } catch (const Error& error) {
      const std::string text = error.what();
      found.skipped.push_back(text.substr(0, text.find("\n  hint: ")));
    }
  }
  // A run that trains publishes and removes meanwhile.
  const std::vector<std::int64_t> now = steps();
  if (!now.empty() && (all.empty() || now.back() > all.back())) return find(area);
  return found;
}

Manifest ManifestFolder::read(std::int64_t step) const {
  std::ifstream in(path(step), std::ios::binary);
  if (!in) throw Error(ErrorKind::kFailed, path(step) + ": missing or unreadable");
  std::stringstream text;
  text << in.rdbuf();
  return parse_manifest(text.str(), path(step));
}

bool ManifestFolder::any() const { return !steps().empty(); }

void ManifestFolder::remove(std::int64_t step) const {
  ::unlink(path(step).c_str());
  ::unlink(pages_path(step).c_str());
}

void ManifestFolder::remove_after(std::int64_t step) const {
  for (const std::int64_t later : steps()) {
    if (later <= step) continue;
    remove(later);
    observe::sync_folder(folder_);
  }
}

}  // namespace zinf::checkpoint
