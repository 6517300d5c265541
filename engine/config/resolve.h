// From the flat list of settings to a RunConfig: precedence, contradictions between sources, types,
// origins, notes.
#pragma once

#include <map>
#include <string>

#include "engine/config/collect.h"

namespace zinf::config {

// The settings that won, by option key. Values that failed to parse are not in it.
using Chosen = std::map<std::string, Setting>;

// Fills `config`; mistakes and notes go to `collected`.
Chosen resolve(Collected& collected, RunConfig& config);

// Combinations that are refused, or that leave a key without effect.
void check_combinations(const Chosen& chosen, RunConfig& config, Collected& collected);

}  // namespace zinf::config
