// Texts made from the option table and from a resolved configuration.
#pragma once

#include <string>
#include <vector>

#include "engine/config/run_config.h"

namespace zinf::config {

// docs/config.md.
std::string reference_markdown();
// The keys part of `zinf train --help`: one line per key that has an effect.
std::string help_text();

// "optimizer.params.lr = 5e-05 (default)", one per key that has an effect.
std::vector<std::string> describe(const RunConfig& config);

// Every key with its value as YAML, origins as comments. load() of this text gives an equal
// RunConfig.
std::string resolved_yaml(const RunConfig& config);

// Keys whose values differ, in the order of the table: what a resumed run tells about a changed
// config.
struct Difference {
  std::string key;
  std::string before;
  std::string after;
};
std::vector<Difference> differences(const RunConfig& before, const RunConfig& after);

}  // namespace zinf::config
