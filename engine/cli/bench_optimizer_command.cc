#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cpu_optim/bench.h"
#include "engine/base/error.h"
#include "engine/base/machine.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/cli/terminal.h"

namespace zinf::cli {

namespace {

struct Options {
  std::int64_t elements = 1 << 24;
  int repetitions = 9, threads = 0;
  std::string isa = "auto";
  std::vector<std::string> formats;
  bool json = false, checksums = false;
};

std::vector<optim::Format> chosen_formats(const Options& options) {
  const std::vector<optim::Format> all = optim::bench_formats();
  if (options.formats.empty()) return all;
  std::vector<optim::Format> chosen;
  for (const std::string& text : options.formats) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const optim::Format& format) {
      return optim::format_name(format) == text;
    });
    if (found == all.end()) {
      std::string names;
      for (const optim::Format& format : all) names += " " + optim::format_name(format);
      throw Error(ErrorKind::kUsage, str("--format: found \"", text, "\""),
                  str("expected one of:", names));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

void check_memory(const Options& options, const std::vector<optim::Format>& formats) {
  Bytes most = 0;
  for (const optim::Format& format : formats)
    most = std::max(most, optim::bench_bytes(format, options.elements));
  const Bytes usable = usable_memory();
  if (most <= usable) return;
  throw Error(
      ErrorKind::kDoesNotFit,
      str("bench optimizer: ", options.elements, " elements need ", format_bytes(most),
          " of memory, ", format_bytes(usable), " are available"),
      str("give --elements ",
          static_cast<std::int64_t>(static_cast<double>(options.elements) * 0.8 *
                                    static_cast<double>(usable) / static_cast<double>(most))));
}

nlohmann::ordered_json to_json(const optim::BenchRow& row) {
  nlohmann::ordered_json json;
  json["algorithm"] = name(row.format.algorithm);
  json["weights"] = name(row.format.weight);
  json["state_dtype"] = name(row.format.moments);
  json["master_weights"] = name(row.format.master);
  json["isa"] = name(row.isa);
  json["threads"] = row.threads;
  json["elements"] = row.elements;
  json["bytes_per_element"] = row.bytes_per_element;
  json["seconds"] = row.seconds;
  json["elements_per_second"] = row.elements_per_second;
  json["gb_per_second"] = row.gb_per_second;
  json["share_of_bandwidth"] = row.share_of_bandwidth;
  json["shares_of_bandwidth"] = row.shares;
  json["phase_seconds"] = row.phase_seconds;
  if (!row.checksum_ratios.empty()) json["checksum_ratios"] = row.checksum_ratios;
  return json;
}

void print_table(const std::vector<optim::BenchRow>& rows) {
  std::cout << rows[0].elements << " elements, " << name(rows[0].isa) << ", " << rows[0].threads
            << " thread(s); bytes an element: states, gradient, read and written\n"
            << "weights  moments  master     bytes   ms      M elements/s   GB/s   of bandwidth\n";
  for (const optim::BenchRow& row : rows) {
    std::cout << left(name(row.format.weight), 9) << left(name(row.format.moments), 9)
              << left(name(row.format.master), 8) << right(short_number(row.bytes_per_element), 8)
              << right(short_number(row.seconds * 1e3), 7)
              << right(short_number(row.elements_per_second / 1e6), 16)
              << right(short_number(row.gb_per_second), 7)
              << right(str(static_cast<int>(row.share_of_bandwidth * 100 + 0.5), " %"), 14) << "\n";
  }
  for (const optim::BenchRow& row : rows) {
    if (row.checksum_ratios.empty()) continue;
    std::vector<double> ratios = row.checksum_ratios;
    std::sort(ratios.begin(), ratios.end());
    std::cout << optim::format_name(row.format)
              << " with checksums: " << short_number(ratios[ratios.size() / 2])
              << " times as long (" << short_number(ratios.front()) << " to "
              << short_number(ratios.back()) << ")\n";
  }
  std::cout << "of bandwidth: against a loop with the same loads and stores and no arithmetic, "
               "timed in turn\n";
}

int measure(const Options& options) {
  const std::vector<optim::Format> formats = chosen_formats(options);
  check_memory(options, formats);
  const optim::Isa isa = optim::choose_isa(options.isa);
  optim::Pool pool(options.threads > 0 ? options.threads : optim::default_threads());
  std::vector<optim::BenchRow> rows;
  ProgressLine progress;
  for (const optim::Format& format : formats) {
    progress.show(
        str("bench optimizer: moments ", name(format.moments), ", master ", name(format.master)));
    rows.push_back(optim::bench_update(format, isa, pool, options.elements, options.repetitions,
                                       options.checksums));
  }
  progress.clear();
  if (!options.json) {
    print_table(rows);
    return 0;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const optim::BenchRow& row : rows) json.push_back(to_json(row));
  std::cout << json.dump(2) << "\n";
  return 0;
}

}  // namespace

void add_bench_optimizer(CLI::App& bench, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("optimizer",
                                           "the AdamW update in every state format, beside the "
                                           "memory's own rate");
  command->add_option("--elements", options->elements, "parameters to update")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command->add_option("--repetitions", options->repetitions, "times are medians of these")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--threads", options->threads, "default: the cores this process may use")
      ->check(CLI::Range(1, 4096));
  command->add_flag("--checksums", options->checksums,
                    "also the update that sums the pages it reads and writes, relative to this");
  command->add_option("--isa", options->isa, "auto, scalar, avx2 or avx512")->capture_default_str();
  command
      ->add_option("--format", options->formats,
                   "weights/moments/master, such as bf16/int8/split; may be repeated. Default: all")
      ->expected(1)
      ->take_all();
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->callback([options, &run] { run = [options] { return measure(*options); }; });
}

}  // namespace zinf::cli
