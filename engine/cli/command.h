// The commands of `zinf`, one file each. Each adds its options to the app and says what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace zinf::cli {

// Set by the command that the user chose; returns the exit code, throws Error.
using Run = std::function<int()>;

inline constexpr const char* kVersion = "0.1.0";

void add_train(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);  // its own commands are the next two
void add_bench_nvme(CLI::App& bench, Run& run);
void add_bench_optimizer(CLI::App& bench, Run& run);
void add_tune(CLI::App& app, Run& run);
void add_export(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);

}  // namespace zinf::cli
