// Placement + settings -> programs with assigned buffers and edges. Pure: no I/O, no allocation of
// what it plans.
#pragma once

#include "engine/plan/placement.h"
#include "engine/plan/program.h"

namespace zinf::plan {

// with_edges: false leaves out what ops wait for (Op::after, links), most of the work: enough to
// see what memory a candidate takes. add_edges() in builder.h fills it in.
ProgramSet compile(const CompileInput& input, bool with_edges = true);

// Bytes of a piece's state range as transferred: rounded up to the 4 KiB that direct I/O wants.
constexpr Bytes kPage = 4096;

}  // namespace zinf::plan
