#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/checkpoint/kept.h"
#include "engine/checkpoint/manifest.h"
#include "engine/cli/command.h"
#include "engine/config/load.h"
#include "engine/train/train.h"

namespace zinf::cli {

namespace {
// The handlers go, and their thread ends, however the run ends.
struct StopSignals {
  explicit StopSignals(double grace) { install_stop_signals(grace); }
  ~StopSignals() { remove_stop_signals(); }
};

// On a terminal a run is not dropped without a question; scripts are taken at their word.
void confirm_fresh(const std::string& folder) {
  const checkpoint::ManifestFolder manifests(folder);
  const std::size_t kept = checkpoint::KeptCheckpoints(folder).steps().size();
  if ((!manifests.any() && kept == 0) || ::isatty(STDIN_FILENO) == 0 ||
      ::isatty(STDERR_FILENO) == 0)
    return;
  const auto newest = manifests.find().newest;
  std::cerr << folder << " holds a run" << (newest ? str(" of ", newest->step, " steps") : "")
            << (kept > 0 ? str(" and ", kept, " kept checkpoints") : "")
            << ". --fresh drops all of it. Go on? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return;
  throw Error(ErrorKind::kUsage, "nothing was dropped, nothing is trained",
              "without --fresh the run goes on; --run-dir starts another one beside it");
}
}  // namespace

void add_train(CLI::App& app, Run& run) {
  struct Options {
    std::string config;
    std::vector<std::string> sets;
    config::Overrides overrides;
    train::TrainOptions train;
    bool yes = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "train a model as a config file says");
  command->add_option("CONFIG", options->config, "YAML or JSON config file")->required();
  command->add_option("--set", options->sets, "a.b=c: set a config key, c is YAML; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--steps", options->overrides.steps, "train this many steps");
  command->add_option("--run-dir", options->overrides.run_dir, "run folder (wins over output_dir)");
  command->add_flag("--fresh", options->train.fresh,
                    "start over in a folder that holds a run, dropping that run");
  command->add_flag("--yes", options->yes, "do not ask before --fresh drops a run");
  command->add_option("--resume-from", options->train.resume_from,
                      "go on from this step, a kept checkpoint (checkpoint.keep)");
  command->add_flag("--allow", options->train.allow,
                    "resume although the config changed in what is trained");
  command->add_flag("--dry-run", options->train.dry_run,
                    "check everything, print the plan and one sample, train nothing");
  command->add_flag("--json", options->train.json, "results as JSON on stdout");
  command->add_flag("--trace", options->train.trace,
                    "write trace.json (open it in ui.perfetto.dev)");
  command->footer(
      "Exit codes: 0 done, 1 failed run, 2 usage or config, 3 does not fit, 128+signal "
      "interrupted.\n"
      "Config keys: docs/config.md. Example: zinf train configs/quickstart.yaml --set "
      "train.steps=50");
  command->callback([options, &run] {
    run = [options] {
      const config::LoadResult loaded =
          config::load(options->config, options->sets, options->overrides);
      if (options->train.fresh && options->train.resume_from) {
        throw Error(ErrorKind::kUsage, "--fresh and --resume-from exclude each other");
      }
      if (options->train.fresh && !options->train.dry_run && !options->yes)
        confirm_fresh(loaded.config.output_dir);
      const StopSignals signals(loaded.config.checkpoint.grace);
      return train::train(loaded, options->train);
    };
  });
}

}  // namespace zinf::cli
