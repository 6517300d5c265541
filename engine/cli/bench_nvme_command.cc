#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/cli/terminal.h"
#include "nvme/bench.h"
#include "nvme/device_info.h"

namespace zinf::cli {

namespace {

struct Options {
  std::string directory, block_size = "1MiB", engine = "auto", file_size = "1GiB";
  std::vector<std::string> traffic = {"read", "write", "mixed"};
  int depth = 32, repetitions = 3;
  double seconds = 0.5;
  bool keep_file = false, under_load = false, json = false;
};

nvme::Traffic traffic_kind(const std::string& name) {
  return name == "read"    ? nvme::Traffic::kRead
         : name == "write" ? nvme::Traffic::kWrite
                           : nvme::Traffic::kMixed;
}

// Median of each figure over the repetitions of one kind of traffic.
struct Figures {
  std::string name;
  std::vector<double> rate, cpu, p50, p99;
  void add(const nvme::BenchResult& result) {
    rate.push_back(result.gb_per_second);
    cpu.push_back(result.cpu_seconds_per_gb);
    p50.push_back(result.p50_ms);
    p99.push_back(result.p99_ms);
  }
  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

nvme::BenchOptions bench_options(const Options& options) {
  nvme::BenchOptions bench;
  bench.engine = nvme::parse_engine_kind(options.engine);
  bench.block_size = size_option("--block-size", options.block_size);
  bench.depth = options.depth;
  bench.seconds = options.seconds;
  bench.memory_load = options.under_load;
  return bench;
}

void print_table(const std::string& directory, const nvme::DriveBench& bench,
                 const nvme::BenchResult& last, const std::vector<Figures>& all) {
  std::cout << directory << ": " << last.engine << ", blocks of " << format_bytes(last.block_size)
            << ", depth " << last.depth << ", " << (last.direct ? "direct I/O" : "buffered I/O")
            << ", " << (last.huge_pages ? "huge pages" : "4 KiB pages") << ", "
            << bench.facts().file_system << "\n          GB/s   CPU s/GB   p50 ms   p99 ms\n";
  for (const Figures& kind : all) {
    std::cout << "  " << left(kind.name, 6) << right(short_number(Figures::median(kind.rate)), 6)
              << right(short_number(Figures::median(kind.cpu)), 11)
              << right(short_number(Figures::median(kind.p50)), 9)
              << right(short_number(Figures::median(kind.p99)), 9) << "\n";
  }
  std::cout
      << "mixed: both directions together, in the ratio of the optimizer's reads and writes\n";
}

int measure(const Options& options) {
  nvme::BenchOptions settings = bench_options(options);
  const Bytes file_bytes = size_option("--file-size", options.file_size);
  for (const std::string& warning : nvme::directory_warnings(options.directory))
    log::warning(str(options.directory, ": ", warning));
  if (file_bytes == 0)
    throw Error(ErrorKind::kUsage, "--file-size: expected more than 0 bytes, found 0");
  nvme::DriveBench bench(options.directory, file_bytes, options.keep_file);
  std::vector<Figures> figures;
  for (const std::string& name : options.traffic) figures.push_back({name, {}, {}, {}, {}});
  nvme::BenchResult last;
  ProgressLine progress;
  // In turn, so that a drift of the drive meets all alike.
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Figures& kind : figures) {
      progress.show(str("bench nvme: repetition ", repetition + 1, " of ", options.repetitions));
      settings.traffic = traffic_kind(kind.name);
      last = bench.run(settings);
      kind.add(last);
    }
  }
  progress.clear();
  log::info(str(format_bytes(bench.bytes_written()), " written to ", options.directory));
  if (!options.json) {
    print_table(options.directory, bench, last, figures);
    return 0;
  }
  nlohmann::ordered_json json;
  json["directory"] = options.directory;
  json["engine"] = last.engine;
  json["block_size"] = last.block_size;
  json["depth"] = last.depth;
  for (const char* name : {"read", "write", "mixed"})
    json[std::string(name) + "_gb_per_second"] = nullptr;  // where it is not measured
  for (const Figures& kind : figures)
    json[kind.name + "_gb_per_second"] = Figures::median(kind.rate);
  json["cpu_seconds_per_gb"] = Figures::median(figures.back().cpu);
  json["p50_ms"] = Figures::median(figures.back().p50);
  json["p99_ms"] = Figures::median(figures.back().p99);
  json["direct"] = last.direct;
  json["huge_pages"] = last.huge_pages;
  json["file_system"] = bench.facts().file_system;
  json["file"] = bench.path();
  json["repetitions"] = options.repetitions;
  json["written_bytes"] = bench.bytes_written();
  std::cout << json.dump(2) << "\n";
  return 0;
}

}  // namespace

void add_bench_nvme(CLI::App& bench, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "nvme", "read, write and mixed rates of the drive behind a folder, at fixed settings");
  command->add_option("DIR", options->directory, "folder on the drive")->required();
  command->add_option("--block-size", options->block_size, "bytes of one transfer")
      ->capture_default_str();
  command->add_option("--depth", options->depth, "transfers in flight")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--engine", options->engine, "auto, io_uring, libaio or threads")
      ->capture_default_str();
  command->add_option("--file-size", options->file_size, "scratch file, removed at the end")
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "of one measurement")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 60.0));
  command->add_option("--traffic", options->traffic, "which of read, write, mixed, in this order")
      ->delimiter(',')
      ->expected(1, 3)
      ->check(CLI::IsMember({"read", "write", "mixed"}))
      ->capture_default_str();
  command->add_flag("--under-load", options->under_load,
                    "with memory traffic like the optimizer's beside it");
  command->add_flag("--keep-file", options->keep_file,
                    str("use the scratch file ", nvme::DriveBench::kKeptFile,
                        " and leave it there, to compare with other tools on the same file"));
  command->add_option("--repetitions", options->repetitions, "figures are medians of these")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->footer(
      "Writes the scratch file once, and then for a third of the time each in reading, writing and "
      "both.\nTo find the best settings: zinf tune DIR.");
  command->callback([options, &run] { run = [options] { return measure(*options); }; });
}

}  // namespace zinf::cli
