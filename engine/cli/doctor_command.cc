#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/cli/doctor_machine.h"
#include "engine/cli/terminal.h"
#include "engine/observe/format.h"
#include "engine/train/run_area.h"
#include "nvme/area_mark.h"
#include "nvme/areas.h"
#include "nvme/device_info.h"
#include "nvme/directory.h"
#include "nvme/profile.h"
#include "nvme/uring_probe.h"

namespace zinf::cli {

namespace {

struct Options {
  std::vector<std::string> directories;
  std::string remove;
  bool json = false;
};

struct AreaLine {
  std::string name;
  Bytes bytes = 0;
  double age_seconds = 0;  // since it was last written
  bool in_use = false, unknown = false, scratch = false;
  std::string run_folder;  // whose it is; empty: not known
};

struct DirectoryReport {
  std::string path;
  std::string unfit;  // why nothing can be swapped here; empty: it can
  std::vector<DoctorLine> lines;
  std::vector<AreaLine> areas;
  std::vector<std::string> warnings;
};

std::vector<AreaLine> areas_in(const std::string& directory) {
  std::vector<AreaLine> lines;
  for (const nvme::AreaInfo& area : nvme::list_areas(directory)) {
    struct stat info {};
    const bool known = ::stat(area.path.c_str(), &info) == 0;
    lines.push_back({std::filesystem::path(area.path).filename().string(), area.bytes,
                     known ? std::difftime(std::time(nullptr), info.st_mtime) : 0, area.in_use,
                     area.unknown, area.scratch,
                     nvme::read_area_mark(area.path).value_or(nvme::AreaMark{}).note});
  }
  return lines;
}

std::string profile_state(const std::string& directory) {
  std::optional<nvme::NvmeProfile> profile;
  try {
    profile = nvme::load_profile(directory);
  } catch (const Error& error) {
    return str("damaged: ", error.what(), "; measure again: zinf tune ", directory);
  }
  if (!profile) return str("none; write one: zinf tune ", directory);
  const std::string stale = nvme::stale_reason(*profile, directory);
  if (!stale.empty()) return str("not used: ", stale, "; measure again: zinf tune ", directory);
  return str(nvme::engine_kind_name(profile->engine), ", blocks of ",
             format_bytes(profile->block_size), ", depth ", profile->depth, "; read ",
             short_number(profile->read_gb_per_second), ", write ",
             short_number(profile->write_gb_per_second), ", mixed ",
             short_number(profile->mixed_gb_per_second), " GB/s");
}

DirectoryReport examine(const std::string& directory) {
  DirectoryReport report;
  report.path = directory;
  report.areas = areas_in(directory);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) report.lines.push_back({name, value});
  };
  try {
    const nvme::DirectoryFacts facts = nvme::probe_directory(directory);
    const nvme::DeviceInfo device = nvme::device_of(directory);
    add("file system", facts.file_system);
    add("free", format_bytes(nvme::free_bytes(directory)));
    add("O_DIRECT", facts.direct ? str("works, aligned to ", facts.alignment, " bytes")
                                 : str("does not: ", facts.why_buffered));
    std::string drive = device.name;
    for (const std::string& part : {device.model, device.link}) {
      if (!part.empty()) drive += ", " + part;
    }
    if (!device.scheduler.empty()) drive += ", scheduler " + device.scheduler;
    if (device.celsius) drive += str(", ", static_cast<int>(*device.celsius), " degrees Celsius");
    add("drive", drive);
    const std::string no_polling = nvme::polling_refusal(directory);
    add("polled I/O",
        no_polling.empty() ? "possible, not used: it keeps a core busy" : str("no: ", no_polling));
    report.warnings = nvme::directory_warnings(directory);
    add("profile", profile_state(directory));
  } catch (const Error& error) {
    report.unfit = error.what();
  }
  return report;
}

void print_lines(const std::vector<DoctorLine>& lines, const char* indent) {
  for (const DoctorLine& line : lines)
    std::cout << indent << left(line.name, 15) << line.value << "\n";
}

// The folder's run uses it, or another one has taken its place there.
std::string whose(const AreaLine& area) {
  if (area.run_folder.empty()) return "";
  std::vector<std::string> used;
  try {
    used = train::areas_of(area.run_folder);
  } catch (const Error&) {
    // A damaged folder names none.
  }
  const bool in_use = std::any_of(used.begin(), used.end(), [&](const std::string& name) {
    return area.name == name + nvme::kAreaEnding || area.name.starts_with(name + "-kept-");
  });
  return str(in_use ? ", of the run in " : ", of a run that is no longer in ", area.run_folder);
}

void print_directory(const DirectoryReport& report) {
  std::cout << "\n" << report.path << "\n";
  if (!report.unfit.empty()) std::cout << "  unfit          " << report.unfit << "\n";
  print_lines(report.lines, "  ");
  for (const AreaLine& area : report.areas) {
    std::cout << (area.scratch ? "  scratch file   " : "  area           ") << area.name << ", "
              << format_bytes(area.bytes)
              << (area.in_use
                      ? ", in use now"
                      : str(", last written ", observe::format_duration(area.age_seconds), " ago"))
              << (area.unknown ? ", another user's: perhaps in use" : "") << whose(area) << "\n";
  }
  if (report.areas.empty() && report.unfit.empty()) std::cout << "  area           none\n";
  for (const std::string& warning : report.warnings) std::cout << "  ! " << warning << "\n";
  if (std::any_of(report.areas.begin(), report.areas.end(),
                  [](const AreaLine& area) { return !area.in_use; })) {
    std::cout
        << "  An area holds the states of a run that may still go on; a scratch file is what a "
           "measurement left.\n  To delete one for good:\n    zinf doctor "
        << report.path << " --remove AREA\n";
  }
}

nlohmann::ordered_json to_json(const DirectoryReport& report) {
  nlohmann::ordered_json json;
  json["path"] = report.path;
  json["fit"] = report.unfit.empty();
  if (!report.unfit.empty()) json["reason"] = report.unfit;
  for (const DoctorLine& line : report.lines) json[line.name] = line.value;
  json["areas"] = nlohmann::ordered_json::array();
  for (const AreaLine& area : report.areas) {
    json["areas"].push_back(
        {{"name", area.name},
         {"bytes", area.bytes},
         {"age_seconds", area.age_seconds},
         {"in_use", area.unknown ? nlohmann::ordered_json() : nlohmann::ordered_json(area.in_use)},
         {"scratch", area.scratch},
         {"run_folder", area.run_folder}});
  }
  json["warnings"] = report.warnings;
  return json;
}

int report_all(const Options& options) {
  std::vector<DirectoryReport> reports;
  for (const std::string& directory : options.directories) reports.push_back(examine(directory));
  const bool fit = std::all_of(reports.begin(), reports.end(),
                               [](const DirectoryReport& report) { return report.unfit.empty(); });
  if (options.json) {
    nlohmann::ordered_json json;
    for (const DoctorLine& line : machine_lines()) json["machine"][line.name] = line.value;
    json["advice"] = machine_advice();
    json["directories"] = nlohmann::ordered_json::array();
    for (const DirectoryReport& report : reports) json["directories"].push_back(to_json(report));
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return fit ? 0 : 1;
  }
  print_lines(machine_lines(), "");
  for (const std::string& advice : machine_advice()) std::cout << "! " << advice << "\n";
  for (const DirectoryReport& report : reports) print_directory(report);
  if (reports.empty())
    std::cout << "\nTo look at a folder for swapping, and at what earlier runs left there: "
                 "zinf doctor DIR\n";
  return fit ? 0 : 1;
}

int remove_one(const Options& options) {
  if (options.directories.size() != 1)
    throw Error(ErrorKind::kUsage, "--remove needs exactly one DIR, the one that holds the area");
  const std::string& directory = options.directories[0];
  std::string names;
  for (const AreaLine& area : areas_in(directory)) {
    if (area.name == options.remove || area.name == options.remove + nvme::kAreaEnding) {
      nvme::remove_area(directory + "/" + area.name);
      log::info(str("removed ", area.name, " from ", directory, ": ", format_bytes(area.bytes),
                    " freed"));
      return 0;
    }
    names += (names.empty() ? "" : ", ") + area.name;
  }
  throw Error(ErrorKind::kUsage, str("--remove: ", directory, " has no area ", options.remove),
              names.empty() ? "it has none at all" : "it has " + names);
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "doctor", "report what this machine and these folders offer, and what earlier runs left");
  command->add_option("DIR", options->directories, "folders to swap to");
  command->add_option("--remove", options->remove,
                      "delete this area of DIR, and with it the states of the run it belongs to");
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->footer("Exit code 1: a DIR can't be used. Example: zinf doctor /mnt/nvme0");
  command->callback([options, &run] {
    run = [options] {
      return options->remove.empty() ? report_all(*options) : remove_one(*options);
    };
  });
}

}  // namespace zinf::cli
