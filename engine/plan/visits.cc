#include "engine/plan/visits.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::plan {

using model::StageKind;
using model::StageSpec;

ModelFacts derive_facts(const model::ModelSpec& model) {
  ModelFacts facts;
  const std::size_t activations = model.activations.size();
  facts.stage_needs_backward.assign(model.stages.size(), false);
  facts.wants_gradient.assign(activations, false);
  facts.saved.assign(activations, false);
  facts.consumers.assign(activations, 0);
  facts.producer.assign(activations, -1);
  facts.from_lookup.assign(activations, false);
  facts.compute_stage.assign(model.pieces.size(), -1);
  facts.lookup_stage.assign(model.pieces.size(), -1);
  for (std::size_t s = 0; s < model.stages.size(); ++s) {
    const StageSpec& stage = model.stages[s];
    bool needs = false;
    for (const int input : stage.inputs) {
      ZINF_CHECK(facts.producer[input] >= 0,
                 str("stage ", stage.name, " comes after its inputs' producers"));
      needs = needs || facts.wants_gradient[input];
      ++facts.consumers[input];
    }
    for (const int piece : stage.pieces) {
      needs = needs || model.pieces[piece].trainable;
      int& user =
          stage.kind == StageKind::kLookup ? facts.lookup_stage[piece] : facts.compute_stage[piece];
      ZINF_CHECK(user < 0, str("piece ", model.pieces[piece].name,
                               " has one lookup and one other user at most"));
      user = static_cast<int>(s);
    }
    facts.stage_needs_backward[s] = needs;
    for (const int output : stage.outputs) {
      facts.producer[output] = static_cast<int>(s);
      facts.wants_gradient[output] = needs;
      facts.from_lookup[output] = stage.kind == StageKind::kLookup;
    }
    ZINF_CHECK((stage.kind == StageKind::kHead) == (s + 1 == model.stages.size()),
               "one head, the last stage");
    if (needs && stage.kind != StageKind::kLookup) {
      for (const int input : stage.inputs) facts.saved[input] = true;
    }
  }
  return facts;
}

int sliced_table(const CompileInput& input) {
  const StageSpec& head = input.model->stages.back();
  return input.settings.slice_rows > 0 && head.table >= 0 ? head.pieces[head.table] : -1;
}

bool can_update_early(const CompileInput& input, const ModelFacts& facts, int piece) {
  const PiecePlacement& placement = input.placement.pieces[piece];
  return input.model->pieces[piece].trainable && facts.lookup_stage[piece] < 0 &&
         piece != sliced_table(input) && placement.weights == Tier::kNvme &&
         placement.optimizer == Tier::kNvme;
}

int groups_of(const CompileSettings& settings) {
  return (settings.micro_batches + settings.group - 1) / settings.group;
}

namespace {
Visit visit(const CompileInput& input, int stage, bool backward, int group) {
  const CompileSettings& settings = input.settings;
  return {stage, backward, group, group * settings.group,
          std::min(settings.micro_batches, (group + 1) * settings.group)};
}
}  // namespace

std::vector<Visit> forward_visits(const CompileInput& input, int group) {
  std::vector<Visit> visits;
  for (std::size_t s = 0; s < input.model->stages.size(); ++s) {
    if (input.model->stages[s].kind == StageKind::kBlock)
      visits.push_back(visit(input, static_cast<int>(s), false, group));
  }
  return visits;
}

std::vector<Visit> backward_segment_visits(const CompileInput& input, const ModelFacts& facts) {
  std::vector<Visit> visits;
  for (int group = 0; group < groups_of(input.settings); ++group) {
    if (group > 0) {
      for (const Visit& forward : forward_visits(input, group)) visits.push_back(forward);
    }
    for (int s = static_cast<int>(input.model->stages.size()) - 1; s >= 0; --s) {
      const StageKind kind = input.model->stages[s].kind;
      // The head always runs: it also computes the loss.
      if (kind == StageKind::kHead ||
          (kind == StageKind::kBlock && facts.stage_needs_backward[s])) {
        visits.push_back(visit(input, s, true, group));
      }
    }
  }
  return visits;
}

}  // namespace zinf::plan
