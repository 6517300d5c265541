#include "engine/cli/verify_states.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "cpu_optim/state_schema.h"
#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/train/plan_run.h"

namespace zinf::cli {

namespace {

// All bits of the exponent set: NaN or infinite. Works on bits, so that no compiler option matters.
template <typename Bits>
std::int64_t count_by_exponent(const std::byte* bytes, std::int64_t count, Bits exponent,
                               std::int64_t& first) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits value;
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    if ((value & exponent) != exponent) continue;
    if (found++ == 0) first = i;
  }
  return found;
}

constexpr std::uint32_t kExponent32 = 0x7F800000;
constexpr std::uint16_t kExponentBf16 = 0x7F80;
constexpr std::uint16_t kExponentFp16 = 0x7C00;

std::int64_t count_bad_scales(Bytes quantum_bytes, const std::byte* bytes, std::int64_t count,
                              std::int64_t& first) {
  std::int64_t found = 0, ignored = 0;
  for (std::int64_t i = 0; i < count; i += optim::kQuantum, bytes += quantum_bytes) {
    if (count_by_exponent(bytes + optim::kQuantum, 1, kExponent32, ignored) == 0) continue;
    if (found == 0) first = i;
    found += std::min(optim::kQuantum, count - i);
  }
  return found;
}

struct Walk {
  train::StoredRun& stored;
  const std::function<void(Bytes, Bytes)>& on_read;
  optim::WeightDtype weight = optim::WeightDtype::kFp32;
  std::vector<std::byte> buffer{};
  Bytes all = 0;
  StatesReport report{};

  void state(int piece, int index, const optim::StateSpec& spec) {
    const model::PieceSpec& of = stored.model().model.spec.pieces[static_cast<std::size_t>(piece)];
    std::int64_t bad = 0, first_bad = 0, unreadable = 0;
    for (std::int64_t first = 0; first < of.elements; first += step::StateAccess::kElements) {
      const std::int64_t count = std::min(step::StateAccess::kElements, of.elements - first);
      report.bytes += spec.bytes(count);
      on_read(report.bytes, all);
      try {
        stored.states().read(piece, index, stored.manifest().slot, first, count, buffer.data());
      } catch (const Error& error) {
        if (unreadable++ == 0)
          report.problems.push_back(str(of.name, ": ", spec.name, ": ", error.what()));
        continue;  // what else is damaged is worth knowing
      }
      std::int64_t at = 0;
      const std::int64_t found = count_non_finite(spec, weight, buffer.data(), count, at);
      if (found > 0 && bad == 0) first_bad = first + at;
      bad += found;
    }
    ++report.states;
    report.unreadable += unreadable;
    if (unreadable > 1)
      report.problems.back() += str("\n  and ", unreadable - 1, " more ranges of this state");
    if (bad > 0) {
      report.problems.push_back(str(of.name, ": ", spec.name, ": ", bad, " of ", of.elements,
                                    " values are not finite, the first is element ", first_bad));
    }
  }
};

}  // namespace

std::int64_t count_non_finite(const optim::StateSpec& state, optim::WeightDtype weight,
                              const std::byte* bytes, std::int64_t count, std::int64_t& first) {
  if (state.name == "remainder") return 0;  // an integer
  if (state.quantum_bytes == 4 * optim::kQuantum)
    return count_by_exponent(bytes, count, kExponent32, first);
  if (state.quantum_bytes == 2 * optim::kQuantum) {
    const bool half = state.name == "weight" && weight == optim::WeightDtype::kFp16;
    return count_by_exponent(bytes, count, half ? kExponentFp16 : kExponentBf16, first);
  }
  ZINF_CHECK(state.quantum_bytes == optim::kQuantum + 4, "codes of 8 bits with their scale");
  return count_bad_scales(state.quantum_bytes, bytes, count, first);
}

StatesReport verify_states(train::StoredRun& stored,
                           const std::function<void(Bytes, Bytes)>& on_read) {
  const optim::Format format =
      train::optimizer_format(stored.config(), stored.model().compute_type());
  const std::vector<optim::StateSpec> states = optim::schema(format);
  const auto& pieces = stored.model().model.spec.pieces;
  Walk walk{.stored = stored, .on_read = on_read, .weight = format.weight};
  // Moments before the first update are zero by a flag; what lies in their extents means nothing.
  const auto wanted = [&](const model::PieceSpec& piece, std::size_t state) {
    return state == 0 ||
           (piece.trainable && !(states[state].is_moment && stored.manifest().moments_are_zero));
  };
  Bytes widest = 0;
  for (std::size_t s = 0; s < states.size(); ++s) {
    widest = std::max(widest, states[s].bytes(step::StateAccess::kElements));
    for (const model::PieceSpec& piece : pieces)
      walk.all += wanted(piece, s) ? states[s].bytes(piece.elements) : 0;
  }
  walk.buffer.resize(widest);
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (wanted(pieces[p], s)) walk.state(static_cast<int>(p), static_cast<int>(s), states[s]);
    }
  }
  return walk.report;
}

}  // namespace zinf::cli
