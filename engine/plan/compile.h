// Placement + settings -> programs with assigned buffers and edges. Pure: no I/O, no allocation of
// what it plans.
#pragma once

#include "engine/plan/placement.h"
#include "engine/plan/program.h"

namespace zinf::plan {

ProgramSet compile(const CompileInput& input);

// Which segments a steady step runs: with early updates or without.
enum class Cycle { kPlain, kEarly };
struct Steady {
  Segment forward, backward;
};
Steady steady(Cycle cycle);

// What candidates are judged by; the same buffers at the same offsets as compile()'s.
// Only the programs that simulate() plays; the others have no ops.
ProgramSet compile_cycle(const CompileInput& input, Cycle cycle);
// Only what memory it takes: many times cheaper.
struct Sizes {
  Bytes device = 0, host = 0;  // arenas
  Bytes nvme = 0;              // extents with their slots
};
Sizes sizes(const CompileInput& input);

// Bytes of a piece's state range as transferred: rounded up to the 4 KiB that direct I/O wants.
constexpr Bytes kPage = 4096;

}  // namespace zinf::plan
