#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/cli/terminal.h"
#include "engine/cli/tune_machine.h"
#include "engine/config/load.h"
#include "nvme/tune.h"

namespace zinf::cli {

namespace {

struct Options {
  std::vector<std::string> directories;
  std::string config, file_size = "1GiB";
  double seconds = 0;  // 0: as long as time allows
  bool sustained = false, under_load = false, quick = false, all = false, json = false;
};

constexpr int kBarWidth = 16;
constexpr double kNoisy = 0.2;    // a spread that other work on the drive explains best
constexpr double kFastDrive = 7;  // GB/s: what it may write is told for such a drive

std::vector<std::string> directories(const Options& options,
                                     const std::optional<config::RunConfig>& config) {
  std::vector<std::string> list = options.directories;
  if (list.empty() && config) {
    for (const config::NvmeDrive& drive : config->memory.nvme) list.push_back(drive.path);
  }
  if (list.empty()) {
    throw Error(ErrorKind::kUsage, "tune: no folder given",
                "zinf tune DIR..., or --config CONFIG with memory.nvme in it");
  }
  return list;
}

nvme::TuneOptions tune_options(const Options& options, const std::string& directory,
                               std::size_t folders) {
  nvme::TuneOptions tune;
  tune.directory = directory;
  tune.file_bytes = size_option("--file-size", options.file_size);
  if (options.seconds > 0) tune.seconds = options.seconds;
  tune.sustained = options.sustained;
  tune.under_load = options.under_load;
  if (options.quick) {
    tune.block_sizes = {512 * kKiB, kMiB, 4 * kMiB};
    tune.depths = {8, 32};
    tune.most_repeats = tune.least_repeats;
  }
  nvme::TuneOptions paced = nvme::paced(tune, folders);
  if (options.seconds > 0) paced.seconds = options.seconds;
  return paced;
}

// "512 KiB", "4 MiB".
std::string block_text(Bytes bytes) {
  return bytes % kMiB == 0 ? str(bytes / kMiB, " MiB") : str(bytes / kKiB, " KiB");
}

std::string row_text(const nvme::TuneRow& row) {
  return str(row.engine, ", blocks of ", block_text(row.block_size), ", depth ", row.depth);
}

// "2.71 +-3 %": the median, and half the spread where it was repeated.
std::string rate(const nvme::Measured& measured) {
  if (measured.repeats == 0) return "-";
  std::string text = short_number(measured.median);
  if (measured.repeats > 1)
    text += str(" +-", static_cast<int>(measured.spread() * 50 + 0.5), " %");
  return text;
}

// Engines that were only looked at first, then the best one's rows by block size and depth.
std::vector<nvme::TuneRow> in_order(const nvme::TuneReport& report) {
  std::vector<nvme::TuneRow> rows = report.rows;
  const auto place = [&](const nvme::TuneRow& row) {
    return std::tuple(row.engine == nvme::engine_kind_name(report.profile.engine), row.engine,
                      row.block_size, row.depth);
  };
  std::sort(rows.begin(), rows.end(),
            [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return rows;
}

void print_rows(const nvme::TuneReport& report) {
  double best = 0;
  for (const nvme::TuneRow& row : report.rows) best = std::max(best, row.mixed.median);
  std::cout << "  engine   block   depth  " << left("mixed GB/s", kBarWidth + 13)
            << "read        write       CPU s/GB  p99 ms\n";
  for (const nvme::TuneRow& row : in_order(report)) {
    std::cout << (row.chosen ? "> " : "  ") << left(row.engine, 9)
              << left(block_text(row.block_size), 8) << right(str(row.depth), 5) << "  "
              << nvme::rate_bar(row.mixed.median, best, kBarWidth) << " "
              << left(rate(row.mixed), 12) << left(rate(row.read), 12) << left(rate(row.write), 12)
              << right(short_number(row.cpu_seconds_per_gb), 8)
              << right(short_number(row.p99_ms), 8) << "\n";
  }
}

// What the writing before the measurements of --sustained has found.
void print_settled(const nvme::Settled& settled) {
  std::cout << "written first: " << format_bytes(settled.bytes) << " in "
            << short_number(settled.seconds) << " s, ";
  if (settled.fell) {
    std::cout << "from " << short_number(settled.best_gb_per_second) << " down to "
              << short_number(settled.gb_per_second)
              << " GB/s: the figures below are past the drive's write cache\n";
  } else {
    std::cout << "steadily at " << short_number(settled.gb_per_second)
              << " GB/s: the drive has no write cache, or a larger one\n";
  }
}

void print_report(const std::string& directory, const nvme::TuneReport& report, bool under_load) {
  std::cout << directory << ": " << report.device << ", " << report.profile.file_system << ", "
            << (report.profile.direct ? "direct I/O" : "buffered I/O") << ", "
            << (report.huge_pages ? "huge pages" : "4 KiB pages") << "\n";
  if (under_load) std::cout << "with memory traffic like the optimizer's beside it\n";
  if (report.settled) print_settled(*report.settled);
  std::cout << "\n";
  print_rows(report);
  std::cout
      << "  mixed: reads and writes together, in the optimizer's ratio; +-: half the spread of "
         "the\n  repetitions; p99: 99 of 100 blocks took no longer\n\n";
  for (const std::string& engine : report.skipped) std::cout << "not available: " << engine << "\n";
  const nvme::NvmeProfile& profile = report.profile;
  std::cout << "chosen (>): " << nvme::engine_kind_name(profile.engine) << ", blocks of "
            << block_text(profile.block_size) << ", depth " << profile.depth
            << ": of those as good as the best, the one with the least in flight\n";
  const bool noisy = std::any_of(report.rows.begin(), report.rows.end(), [](const auto& row) {
    return row.chosen && row.mixed.spread() > kNoisy;
  });
  if (noisy) {
    std::cout << "Rates of the same settings differ much from run to run: something else uses the "
                 "drive, or it\nthrottles. Measure again when the machine is quiet.\n";
  }
  if (report.fio) {
    std::cout << "fio gives " << short_number(report.fio->fio_gb_per_second) << " GB/s, zinf "
              << short_number(report.fio->zinf_gb_per_second) << " in turn with it"
              << (under_load ? ", without other memory traffic" : "") << ": "
              << short_number(report.fio->ratio) << " times fio's rate\n";
  } else {
    std::cout << (report.why_no_fio.empty() ? "no time was left for fio" : report.why_no_fio)
              << ": nothing to compare with\n";
  }
  std::cout << "fio line (fio makes the file, and leaves it): " << report.fio_line << "\n\n";
}

nlohmann::ordered_json measured_json(const nvme::Measured& measured) {
  if (measured.repeats == 0) return nullptr;
  return {{"median", measured.median},
          {"least", measured.least},
          {"most", measured.most},
          {"repeats", measured.repeats}};
}

nlohmann::ordered_json to_json(const std::string& directory, const nvme::TuneReport& report,
                               bool under_load) {
  nlohmann::ordered_json json;
  json["directory"] = directory;
  json["device"] = report.device;
  json["file_system"] = report.profile.file_system;
  json["direct"] = report.profile.direct;
  json["huge_pages"] = report.huge_pages;
  json["under_load"] = under_load;
  json["rows"] = nlohmann::ordered_json::array();
  for (const nvme::TuneRow& row : report.rows) {
    json["rows"].push_back({{"engine", row.engine},
                            {"block_size", row.block_size},
                            {"depth", row.depth},
                            {"mixed_gb_per_second", measured_json(row.mixed)},
                            {"read_gb_per_second", measured_json(row.read)},
                            {"write_gb_per_second", measured_json(row.write)},
                            {"cpu_seconds_per_gb", row.cpu_seconds_per_gb},
                            {"p99_ms", row.p99_ms},
                            {"chosen", row.chosen}});
  }
  const nvme::NvmeProfile& profile = report.profile;
  json["chosen"] = {{"engine", nvme::engine_kind_name(profile.engine)},
                    {"block_size", profile.block_size},
                    {"depth", profile.depth},
                    {"read_gb_per_second", profile.read_gb_per_second},
                    {"write_gb_per_second", profile.write_gb_per_second},
                    {"mixed_gb_per_second", profile.mixed_gb_per_second}};
  json["fio_line"] = report.fio_line;
  json["fio_gb_per_second"] = nullptr;  // where it is not installed
  json["zinf_to_fio"] = nullptr;
  if (report.fio) {
    json["fio_gb_per_second"] = report.fio->fio_gb_per_second;
    json["zinf_to_fio"] = report.fio->ratio;
  }
  if (report.settled) {
    json["settled"] = {{"fell", report.settled->fell},
                       {"best_write_gb_per_second", report.settled->best_gb_per_second},
                       {"write_gb_per_second", report.settled->gb_per_second},
                       {"written_bytes", report.settled->bytes},
                       {"seconds", report.settled->seconds}};
  }
  json["skipped"] = report.skipped;
  json["warnings"] = report.warnings;
  json["written_bytes"] = report.bytes_written;
  json["profile"] = nvme::profile_path(directory);
  return json;
}

nvme::TuneReport tune_one(const Options& options, const std::string& directory,
                          std::size_t folders) {
  const nvme::TuneOptions tune = tune_options(options, directory, folders);
  log::info(str("tuning ", directory, ": this writes at most ",
                format_bytes(nvme::tune_will_write(tune, 1)), " on a drive that takes 1 GB/s, ",
                format_bytes(nvme::tune_will_write(tune, kFastDrive)), " on one that takes ",
                kFastDrive, " GB/s"));
  ProgressLine progress;
  int rows = 0;
  nvme::TuneReport report = nvme::tune(
      tune,
      [&](const nvme::TuneRow& row) {
        const char* pass = row.read.repeats > 0 ? "second pass" : "first pass";
        progress.show(str("measurement ", ++rows, " (", pass, "): ", row_text(row), ": ",
                          short_number(row.mixed.median), " GB/s"));
      },
      [&](const std::string& what) { progress.show(what); });
  progress.clear();
  for (const std::string& warning : report.warnings) log::warning(str(directory, ": ", warning));
  nvme::save_profile(directory, report.profile);
  log::info(str(nvme::profile_path(directory), " written; zinf plan and zinf train read it (",
                format_bytes(report.bytes_written), " written to the drive in all)"));
  return report;
}

int tune_all(const Options& options) {
  std::optional<config::RunConfig> config;
  if (!options.config.empty()) config = config::load(options.config, {}).config;
  const std::vector<std::string> list = directories(options, config);
  // Every folder is looked at before the first is measured.
  for (const std::string& directory : list) nvme::probe_directory(directory);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const std::string& directory : list) {
    const nvme::TuneReport report = tune_one(options, directory, list.size());
    if (options.json) {
      json.push_back(to_json(directory, report, options.under_load));
    } else {
      print_report(directory, report, options.under_load);
    }
  }
  if (options.all) json.push_back(tune_machine(config, list.front(), !options.json));
  if (options.json) std::cout << json.dump(2) << "\n";
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "tune", "find a drive's best settings by measuring, for plan and train to use");
  command->add_option("DIR", options->directories, "folders, one on each drive");
  command->add_option("--config", options->config,
                      "its memory.nvme where no DIR is given; its shapes for --all");
  command->add_flag("--all", options->all,
                    "also measure compute (at the config's shapes, else GPT-2 125M's), copies, "
                    "memory and the optimizer: zinf-hardware.yaml in the first folder");
  command->add_flag(
      "--sustained", options->sustained,
      "first write until the rate has fallen and is steady, for a minute at most: past "
      "the drive's write cache");
  command->add_flag("--under-load", options->under_load,
                    "with memory traffic like the optimizer's beside it");
  command->add_flag("--quick", options->quick, "fewer settings and repetitions");
  command->add_option("--file-size", options->file_size, "scratch file, removed at the end")
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "of one measurement; default: 0.4, less for more than two folders, so that all "
                   "are done in under two minutes")
      ->check(CLI::Range(0.01, 60.0));
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->footer("Writes zinf-nvme.yaml into each DIR. Example: zinf tune /mnt/nvme0 /mnt/nvme1");
  command->callback([options, &run] { run = [options] { return tune_all(*options); }; });
}

}  // namespace zinf::cli
