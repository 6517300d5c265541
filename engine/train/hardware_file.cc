#include "engine/train/hardware_file.h"

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/flat_yaml.h"
#include "engine/base/log.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"

namespace zinf::train {

namespace {

constexpr const char* kHint = "run zinf tune --all again, or delete the file";
constexpr const char* kStage = "stage_";

// One key: how it is written and how it is read.
struct Field {
  const char* key;
  const char* comment;
  std::function<std::string(const HardwareFile&)> write;
  std::function<bool(HardwareFile&, const std::string&)> read;
};

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

template <typename T>
Field number(const char* key, const char* comment, T HardwareFile::*member) {
  return {key, comment,
          [member](const HardwareFile& f) { return number_text(static_cast<double>(f.*member)); },
          [member](HardwareFile& f, const std::string& text) {
            return parse_flat_number(text, f.*member) && f.*member > 0;
          }};
}

Field text(const char* key, const char* comment, std::string HardwareFile::*member) {
  return {key, comment, [member](const HardwareFile& f) { return quoted_text(f.*member); },
          [member](HardwareFile& f, const std::string& value) {
            return unquote_text(value, f.*member);
          }};
}

const std::vector<Field>& fields() {
  static const std::vector<Field> all = {
      number("version", "of this file's format", &HardwareFile::version),
      text("processor", "the file holds for this processor", &HardwareFile::processor),
      number("threads", "and this many compute threads", &HardwareFile::threads),
      number("copy_to_device_gb_per_second", "while the other direction runs",
             &HardwareFile::copy_to_device_gb_per_second),
      number("copy_from_device_gb_per_second", "likewise",
             &HardwareFile::copy_from_device_gb_per_second),
      number("host_gb_per_second", "memory read and written in place: the limit of any update",
             &HardwareFile::host_gb_per_second),
      text("optimizer", "the next line is the rate of this one", &HardwareFile::optimizer),
      number("optimizer_gb_per_second", "state and gradient bytes, read and written",
             &HardwareFile::optimizer_gb_per_second),
  };
  return all;
}

// "[forward, backward, backward_kept, evaluate]", seconds.
std::string stage_text(const plan::StageSeconds& seconds) {
  return str("[", number_text(seconds.forward), ", ", number_text(seconds.backward), ", ",
             number_text(seconds.backward_kept), ", ", number_text(seconds.evaluate), "]");
}

bool read_stage(const std::string& text, plan::StageSeconds& seconds) {
  char end = 0;
  return std::sscanf(text.c_str(), "[%lf, %lf, %lf, %lf%c", &seconds.forward, &seconds.backward,
                     &seconds.backward_kept, &seconds.evaluate, &end) == 5 &&
         end == ']' && seconds.forward >= 0 && seconds.backward >= 0 &&
         seconds.backward_kept >= 0 && seconds.evaluate >= 0;
}

}  // namespace

std::string hardware_path(const std::string& directory) {
  return directory + "/zinf-hardware.yaml";
}

std::string hardware_yaml(const HardwareFile& file) {
  std::string out = "# Written by zinf tune --all; read by zinf plan and zinf train.\n";
  for (const Field& field : fields())
    out += flat_yaml_line(field.key, field.write(file), field.comment);
  for (const auto& [signature, seconds] : file.stages) {
    out += flat_yaml_line(kStage + signature, stage_text(seconds),
                          "s of one call: forward, backward, from kept activations, evaluation");
  }
  return out;
}

HardwareFile parse_hardware(const std::string& text, const std::string& name) {
  const auto values = parse_flat_yaml(text, name, kHint);
  const auto refuse = [&](int line, const std::string& what) {
    throw Error(ErrorKind::kUsage, str(name, ":", line, ": ", what), kHint);
  };
  HardwareFile file;
  for (const auto& [key, value] : values) {
    bool known = false, good = false;
    if (key.starts_with(kStage)) {
      known = true;
      good = read_stage(value.text, file.stages[key.substr(std::string(kStage).size())]);
    }
    for (const Field& field : fields()) {
      if (key != field.key) continue;
      known = true;
      good = field.read(file, value.text);
    }
    if (!known) refuse(value.line, str("unknown key ", key));
    if (!good) refuse(value.line, str(key, ": \"", value.text, "\" is no valid value"));
  }
  for (const Field& field : fields()) {
    if (!values.contains(field.key))
      throw Error(ErrorKind::kUsage, str(name, ": key ", field.key, " is missing"), kHint);
  }
  if (file.version != 1) {
    refuse(values.at("version").line,
           str("version ", file.version, ", this program reads version 1"));
  }
  return file;
}

std::optional<HardwareFile> tuned_hardware(const config::RunConfig& config) {
  for (const config::NvmeDrive& drive : config.memory.nvme) {
    std::ifstream in(hardware_path(drive.path));
    if (!in) continue;
    std::ostringstream text;
    text << in.rdbuf();
    HardwareFile file = parse_hardware(text.str(), hardware_path(drive.path));
    if (file.processor == processor_name() && file.threads == usable_cores()) return file;
    log::warning_once(str(hardware_path(drive.path), " is not used: it was measured on \"",
                          file.processor, "\" with ", file.threads, " threads, this is \"",
                          processor_name(), "\" with ", usable_cores(),
                          " (measure again: zinf tune --all ", drive.path, ")"));
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace zinf::train
