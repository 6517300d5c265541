#include "engine/base/str.h"
#include "engine/plan/planner.h"

namespace zinf::plan {

namespace {
std::string activations_text(const CompileInput& input) {
  const int stages = static_cast<int>(input.model->stages.size());
  int kept = 0, could = 0;
  for (int stage = 0; stage + 1 < stages; ++stage) {
    kept += input.keeps_activations(stage);
    could += input.can_keep_activations(stage);
  }
  if (kept == 0) return "recompute";
  if (kept == could) return "kept activations";
  return str("recompute, kept activations: ", kept, " of ", could, " layers");
}
}  // namespace

std::string describe(const CompileInput& input) {
  const CompileSettings& s = input.settings;
  int host_weights = 0, host_optimizer = 0, spilled = 0, trainable = 0, device_weights = 0;
  for (std::size_t p = 0; p < input.placement.pieces.size(); ++p) {
    const PiecePlacement& placement = input.placement.pieces[p];
    host_weights += placement.weights == Tier::kHost;
    device_weights += placement.weights == Tier::kDevice;
    if (!input.model->pieces[p].trainable) continue;
    ++trainable;
    host_optimizer += placement.optimizer == Tier::kHost;
    spilled += placement.gradients == Tier::kNvme;
  }
  std::string text = str("group ", s.group, ", ", activations_text(input), ", stage inputs on ",
                         tier_name(input.placement.activations));
  const auto count = [&](int number, const char* what) {
    if (number > 0) text += str(", ", what, " ", number);
  };
  if (input.rounds_gradients()) text += ", bf16 gradients";
  count(device_weights, "weights on device:");
  count(host_weights, "weights in host memory:");
  count(host_optimizer, "optimizer states in host memory:");
  count(spilled, "gradients on NVMe:");
  if (s.slice_rows > 0) text += str(", the head's table in slices of ", s.slice_rows, " rows");
  count(s.early_updates, "updated during backward:");
  text += str(" of ", trainable, " pieces, ", s.ring_slots, " slots of ", s.chunk_elements,
              " elements, prefetch ", s.prefetch);
  return text;
}

}  // namespace zinf::plan
