#include "nvme/profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <functional>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/flat_yaml.h"
#include "nvme/device_info.h"
#include "nvme/directory.h"
#include "nvme/errno_text.h"

namespace zinf::nvme {

namespace {

// One key: how it is written and how it is read. Writing, reading and "every key is used" come from
// this table.
struct Field {
  const char* key;
  const char* comment;
  std::function<std::string(const NvmeProfile&)> write;
  std::function<bool(NvmeProfile&, const std::string&)> read;
};

template <typename T>
Field number(const char* key, const char* comment, T NvmeProfile::*member) {
  // Four digits of what was measured; whole numbers whole.
  const char* const format = std::is_floating_point_v<T> ? "{:.4g}" : "{}";
  return {key, comment,
          [member, format](const NvmeProfile& p) {
            return fmt::format(fmt::runtime(format), p.*member);
          },
          [member](NvmeProfile& p, const std::string& text) {
            return parse_flat_number(text, p.*member);
          }};
}

Field text(const char* key, const char* comment, std::string NvmeProfile::*member) {
  return {key, comment, [member](const NvmeProfile& p) { return quoted_text(p.*member); },
          [member](NvmeProfile& p, const std::string& value) {
            return unquote_text(value, p.*member);
          }};
}

const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      number("version", "of this file's format", &NvmeProfile::version),
      {"engine", "io.engine",
       [](const NvmeProfile& p) { return std::string(engine_kind_name(p.engine)); },
       [](NvmeProfile& p, const std::string& value) {
         for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kIoUring, EngineKind::kLibaio,
                                       EngineKind::kThreads}) {
           if (value == engine_kind_name(kind)) {
             p.engine = kind;
             return true;
           }
         }
         return false;
       }},
      number("block_size", "io.block_size, bytes", &NvmeProfile::block_size),
      number("depth", "io.depth", &NvmeProfile::depth),
      number("read_gb_per_second", "alone", &NvmeProfile::read_gb_per_second),
      number("write_gb_per_second", "alone", &NvmeProfile::write_gb_per_second),
      number("mixed_gb_per_second", "both directions together, in the optimizer's ratio",
             &NvmeProfile::mixed_gb_per_second),
      text("device", "the profile holds for this drive", &NvmeProfile::device),
      text("file_system", "and this file system", &NvmeProfile::file_system),
      {"direct", "direct I/O",
       [](const NvmeProfile& p) { return std::string(p.direct ? "true" : "false"); },
       [](NvmeProfile& p, const std::string& value) {
         p.direct = value == "true";
         return value == "true" || value == "false";
       }},
  };
  return all;
}

int last_line(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

std::string profile_path(const std::string& directory) { return directory + "/zinf-nvme.yaml"; }

std::string profile_yaml(const NvmeProfile& profile) {
  std::string out = "# Written by zinf tune; read by zinf plan and zinf train.\n";
  for (const Field& field : fields()) {
    out += flat_yaml_line(field.key, field.write(profile), field.comment);
  }
  return out;
}

NvmeProfile parse_profile(const std::string& text, const std::string& name) {
  static const std::string kHint = "run zinf tune again, or delete the file";
  const auto values = parse_flat_yaml(text, name, kHint);
  const auto refuse = [&](int line, const std::string& what) {
    throw Error(ErrorKind::kUsage, fmt::format("{}:{}: {}", name, line, what), kHint);
  };
  NvmeProfile profile;
  for (const auto& [key, value] : values) {
    const auto field = std::find_if(fields().begin(), fields().end(),
                                    [&](const Field& f) { return key == f.key; });
    if (field == fields().end()) refuse(value.line, fmt::format("unknown key {}", key));
    if (!field->read(profile, value.text))
      refuse(value.line, fmt::format("{}: \"{}\" is no valid value", key, value.text));
  }
  for (const Field& field : fields()) {
    if (!values.count(field.key))
      refuse(last_line(text), fmt::format("key {} is missing", field.key));
  }
  const auto line_of = [&](const char* key) { return values.at(key).line; };
  if (profile.version != 1)
    refuse(line_of("version"),
           fmt::format("version {}, this program reads version 1", profile.version));
  if (profile.block_size < 4096 || profile.block_size % 4096 != 0 || profile.block_size > kGiB) {
    refuse(line_of("block_size"),
           fmt::format("block_size: {} is no multiple of 4096 up to 1 GiB", profile.block_size));
  }
  if (profile.depth < 1 || profile.depth > 4096)
    refuse(line_of("depth"), fmt::format("depth: {} is not in 1 to 4096", profile.depth));
  for (const auto& [key, rate] : {std::pair{"read_gb_per_second", profile.read_gb_per_second},
                                  {"write_gb_per_second", profile.write_gb_per_second},
                                  {"mixed_gb_per_second", profile.mixed_gb_per_second}}) {
    if (!std::isfinite(rate) || rate <= 0)
      refuse(line_of(key), fmt::format("{}: {} is no rate above 0", key, rate));
  }
  return profile;
}

std::optional<NvmeProfile> load_profile(const std::string& directory) {
  std::ifstream file(profile_path(directory));
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return parse_profile(text.str(), profile_path(directory));
}

void save_profile(const std::string& directory, const NvmeProfile& profile) {
  const std::string path = profile_path(directory), aside = path + ".tmp",
                    text = profile_yaml(profile);
  const auto fail = [&](const char* what) {
    const int error = errno;
    throw Error(ErrorKind::kFailed, fmt::format("{} {}: {}", what, path, errno_text(error)));
  };
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail("creating");
  const bool written =
      ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  errno = error;
  if (!written) fail("writing");
  if (::rename(aside.c_str(), path.c_str()) != 0) fail("renaming to");
}

std::string stale_reason(const NvmeProfile& profile, const std::string& directory) {
  const DeviceInfo device = device_of(directory);
  const DirectoryFacts facts = probe_directory(directory);
  const std::string found = device.model.empty() ? device.name : device.model;
  if (profile.device != found)
    return fmt::format("it was measured on drive \"{}\", this is \"{}\"", profile.device, found);
  if (profile.file_system != facts.file_system) {
    return fmt::format("it was measured on {}, this is {}", profile.file_system, facts.file_system);
  }
  if (profile.direct != facts.direct)
    return profile.direct ? "direct I/O no longer works here" : "direct I/O works here by now";
  return "";
}

}  // namespace zinf::nvme
