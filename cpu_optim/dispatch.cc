#include "cpu_optim/dispatch.h"

#include <cstdlib>

#include "cpu_optim/kernel_table.h"
#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::optim {

bool is_available(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return is_available(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
}

namespace {
// what: who asks, for messages.
Isa named_isa(const std::string& text, const char* what) {
  const std::optional<Isa> isa = parse_isa(text);
  if (!isa) {
    throw Error(ErrorKind::kUsage,
                str(what, ": expected auto, scalar, avx2 or avx512, found \"", text, "\""));
  }
  if (!is_available(*isa)) {
    throw Error(ErrorKind::kUsage,
                str(what, ": ", text, " was asked for, but this processor does not have it"),
                str("the widest set here is ", name(available_isas().back()), "; auto takes it"));
  }
  return *isa;
}
}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (is_available(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() {
  static const Isa best = [] {
    const char* forced = std::getenv("ZINF_ISA");
    return forced == nullptr || std::string_view(forced) == "auto" ? available_isas().back()
                                                                   : named_isa(forced, "ZINF_ISA");
  }();
  return best;
}

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "";
}

std::optional<Isa> parse_isa(std::string_view text) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (text == name(isa)) return isa;
  }
  return std::nullopt;
}

Isa choose_isa(const std::string& text) {
  return text == "auto" ? best_isa() : named_isa(text, "instruction set");
}

const KernelTable& kernels(Isa isa) {
  ZINF_CHECK(is_available(isa), str("instruction set ", name(isa), " is not available"));
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2_kernels();
  if (isa == Isa::kAvx512) return avx512_kernels();
#endif
  return scalar_kernels();
}

}  // namespace zinf::optim
