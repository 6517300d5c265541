#include "engine/cli/command.h"

namespace zinf::cli {

void add_bench(CLI::App& app, Run& run) {
  CLI::App* bench =
      app.add_subcommand("bench", "measure a drive or the optimizer, as training uses them");
  bench->require_subcommand(1);
  add_bench_nvme(*bench, run);
  add_bench_optimizer(*bench, run);
}

}  // namespace zinf::cli
