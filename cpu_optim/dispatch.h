// Which instruction set the kernels use: chosen at run time, or forced. All sets give
// the same bits.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zinf::optim {

enum class Isa { kScalar, kAvx2, kAvx512 };

// Whether this processor (and its operating system) runs the set. kAvx2 also needs FMA and F16C,
// kAvx512 also the F, BW, DQ and VL parts.
bool is_available(Isa isa);
// The widest available set, or the one that the environment variable ZINF_ISA names. Throws
// Error(kUsage) where it can't be had.
Isa best_isa();
// All available sets, narrowest first.
std::vector<Isa> available_isas();

std::string_view name(Isa isa);                       // "scalar", "avx2", "avx512"
std::optional<Isa> parse_isa(std::string_view text);  // nullopt: no such name

// For a configuration or command-line value: "auto" or a name. Throws Error(kUsage) for an unknown
// name or a set that this processor lacks.
Isa choose_isa(const std::string& text);

}  // namespace zinf::optim
