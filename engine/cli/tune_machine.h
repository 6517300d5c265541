// The part of `zinf tune --all` that is not drives.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/config/run_config.h"

namespace zinf::cli {

// Measures compute at the config's shapes, copies, memory and the optimizer, and writes
// zinf-hardware.yaml into the folder. `print`: a table on stdout. Returns the figures.
nlohmann::ordered_json tune_machine(const std::optional<config::RunConfig>& config,
                                    const std::string& directory, bool print);

}  // namespace zinf::cli
