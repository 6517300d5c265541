#include <csignal>
#include <exception>
#include <string>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/cli/command.h"
#include "engine/cli/thread_waits.h"

int main(int argc, char** argv) {
  zinf::cli::let_waiting_threads_sleep(argv);
  // A write beyond a file-size limit comes back as an error instead of a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(
      "zinf trains models that do not fit in GPU memory: weights, gradients and optimizer states "
      "stream\n"
      "between device, host memory and NVMe while it computes.");
  app.set_version_flag("--version", std::string("zinf ") + zinf::cli::kVersion);
  app.footer(
      "First steps: zinf doctor DIR (does this machine do?), zinf tune DIR (once a drive),\n"
      "zinf plan CONFIG (does it fit?), zinf train CONFIG. The same command goes on where a run\n"
      "stopped. Options of a command: zinf COMMAND --help. Results are on stdout, talk on stderr.");
  app.require_subcommand(1);
  app.fallthrough();
  bool quiet = false, verbose = false;
  app.add_flag("-q,--quiet", quiet, "only warnings and errors");
  app.add_flag("-v,--verbose", verbose, "more detail");
  zinf::cli::Run run;
  zinf::cli::add_train(app, run);
  zinf::cli::add_plan(app, run);
  zinf::cli::add_export(app, run);
  zinf::cli::add_inspect(app, run);
  zinf::cli::add_verify(app, run);
  zinf::cli::add_tune(app, run);
  zinf::cli::add_bench(app, run);
  zinf::cli::add_doctor(app, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (quiet) zinf::log::set_level(zinf::log::Level::kWarning);
  if (verbose) zinf::log::set_level(zinf::log::Level::kDebug);
  try {
    return run();
  } catch (const zinf::Error& error) {
    zinf::log::error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    zinf::log::error(error.what());
    return 1;
  }
}
