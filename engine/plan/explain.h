// The plan for people and for scripts.
#pragma once

#include <string>

#include "engine/plan/planner.h"

namespace zinf::plan {

// One table: tiers with bytes against budgets, lanes with bytes and seconds, what was rejected and
// why.
std::string explain(const Plan& plan);
// The JSON of `zinf plan --json`, see the contract's field names.
std::string explain_json(const Plan& plan, int ranks = 1);

// The same for a run that does not fit: "fits" is false, "reason" says what was needed and would
// do.
std::string refusal_json(const model::ModelSpec& model, const Budgets& budgets,
                         const std::string& reason, int ranks = 1);

// Bytes per rank of classic mixed-precision training (2 weight + 2 gradient + 12 optimizer bytes a
// parameter) under ZeRO stages 0 to 3: the column that every paper prints.
double textbook_bytes_per_rank(double parameters, int stage, int ranks);

}  // namespace zinf::plan
