#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/train/finish.h"
#include "engine/train/stored_run.h"

namespace zinf::cli {

namespace {

Bytes parsed_shard_size(const std::string& text) {
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes > 0) return *bytes;
  throw Error(ErrorKind::kUsage,
              str("--shard-size: expected a size above 0 such as 2GB, found \"", text, "\""));
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  struct Options {
    std::string run, folder, dtype = "auto";
    bool single_file = false;
    std::string shard_size;
    std::optional<std::int64_t> step;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("export", "write a commit of a run, training or not, as an HF folder");
  command->add_option("RUN", options->run, "run folder")->required();
  command->add_option("DIR", options->folder, "folder to write; must not exist or be empty")
      ->required();
  command->add_option("--dtype", options->dtype, "bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  command->add_option("--step", options->step, "a kept checkpoint instead of the newest commit");
  CLI::Option* const single = command->add_flag("--single-file", options->single_file,
                                                "one model.safetensors whatever its size");
  command
      ->add_option("--shard-size", options->shard_size,
                   "most bytes of a file, such as 2GB; a larger tensor has one of its own; "
                   "default: as the run's export.shard_size says, 5GB")
      ->excludes(single);
  command->callback([options, &run] {
    run = [options] {
      std::optional<Bytes> shard_bytes;  // of the command line
      if (options->single_file) shard_bytes = 0;
      if (!options->shard_size.empty()) shard_bytes = parsed_shard_size(options->shard_size);
      train::StoredRun stored(options->run, options->step);
      model::DType type = train::export_type(stored.config(), stored.model().compute_type());
      if (options->dtype == "bf16") type = model::DType::kBFloat16;
      if (options->dtype == "fp32") type = model::DType::kFloat32;
      const model::ExportResult result = train::export_model(
          stored.model(), stored.states(), stored.manifest().slot, options->folder, type,
          shard_bytes.value_or(train::shard_bytes(stored.config())));
      std::cout << "step " << stored.manifest().step << " exported to " << result.path << ": "
                << result.tensors << " tensors, " << format_bytes(result.weight_bytes) << " in "
                << result.files << " file(s)\n";
      return 0;
    };
  });
}

}  // namespace zinf::cli
