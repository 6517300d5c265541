// Private to the planner: what a request that does not fit lacks, and what would make it fit.
#pragma once

#include "engine/plan/candidates.h"

namespace zinf::plan {

// Throws Error(kDoesNotFit): each tier's least need beside what is given, and the smallest changes
// that fit. Every change named has been tried: candidates that fit were found with it.
[[noreturn]] void refuse(const PlanRequest& request, const model::ModelSpec& model,
                         Candidates& candidates);

}  // namespace zinf::plan
