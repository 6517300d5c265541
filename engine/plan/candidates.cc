#include "engine/plan/candidates.h"

#include <algorithm>

#include "engine/plan/visits.h"

namespace zinf::plan {

namespace {

constexpr std::int64_t kChunk = 1 << 20;
constexpr Candidates::Rung kLadder[] = {{2, 8, kChunk},     {1, 6, kChunk},     {1, 4, kChunk / 2},
                                        {1, 3, kChunk / 4}, {0, 3, kChunk / 4}, {0, 2, kChunk / 4},
                                        {0, 2, kChunk / 16}};

// Larger models are updated in larger chunks: a program of tens of thousands of chunks takes long
// to plan and gains nothing. A power of two, so that chunks stay what the formats need.
std::int64_t chunk_scale(const model::ModelSpec& model) {
  constexpr std::int64_t kMostChunks = 2048;
  std::int64_t elements = 0;
  for (const model::PieceSpec& piece : model.pieces) elements += piece.elements;
  std::int64_t scale = 1;
  while (elements / (kChunk * scale) > kMostChunks) scale *= 2;
  return scale;
}

}  // namespace

void unpin_placement(Pins& pins) {
  for (std::optional<Tier>* pin :
       {&pins.weights, &pins.optimizer, &pins.gradients, &pins.activations})
    pin->reset();
}

Candidates::Candidates(const PlanRequest& request, const model::ModelSpec& model)
    : request_(request), model_(model), workspace_(request.workspace) {
  const ModelFacts facts = derive_facts(model);
  for (std::size_t stage = 0; stage < model.stages.size(); ++stage) {
    if (!facts.stage_needs_backward[stage] || model.stages[stage].kind != model::StageKind::kBlock)
      workspace_[stage].kept = 0;
  }
  for (const std::int64_t slice_rows : slices()) {
    for (const int group : groups()) {
      for (const Tier activations : activation_tiers()) {
        for (const int kept : kept_stages())
          ways_.push_back({slice_rows, group, activations, kept});
      }
    }
  }
  const std::int64_t scale = chunk_scale(model);
  for (const Rung& rung : kLadder) {
    if (!cuts_whole_pages(request.pins.chunk_elements.value_or(rung.chunk_elements))) continue;
    const Rung pinned = {request.pins.prefetch.value_or(rung.prefetch),
                         request.pins.ring_slots.value_or(rung.ring_slots),
                         request.pins.chunk_elements.value_or(rung.chunk_elements * scale)};
    if (rungs_.empty() || pinned != rungs_.back()) rungs_.push_back(pinned);
  }
  if (request.pins.gradients || !has_nvme()) return;
  // Last in update order first: they wait longest, so that their memory is what the peak is made
  // of.
  for (int piece = static_cast<int>(model.pieces.size()) - 1; piece >= 0; --piece) {
    if (model.pieces[piece].trainable) spill_order_.push_back(piece);
  }
}

std::vector<int> Candidates::groups() const {
  if (request_.pins.group) return {std::clamp(*request_.pins.group, 1, request_.micro_batches)};
  std::vector<int> values;
  for (int group = request_.micro_batches; group > 1; group = (group + 1) / 2)
    values.push_back(group);
  values.push_back(1);
  return values;
}

std::vector<Tier> Candidates::activation_tiers() const {
  if (request_.pins.activations) return {*request_.pins.activations};
  if (has_nvme()) return {Tier::kDevice, Tier::kHost, Tier::kNvme};
  return {Tier::kDevice, Tier::kHost};
}

// Rows of the head's table on the device at once: all (0), then about as much as the largest
// other piece.
std::vector<std::int64_t> Candidates::slices() const {
  if (request_.pins.slice_rows) return {*request_.pins.slice_rows};
  const model::StageSpec& head = model_.stages.back();
  if (head.table < 0) return {0};
  const int table = head.pieces[head.table];
  std::int64_t largest = 0;
  for (std::size_t s = 0; s + 1 < model_.stages.size(); ++s) {
    if (model_.stages[s].kind != model::StageKind::kBlock) continue;
    for (const int piece : model_.stages[s].pieces)
      largest = std::max(largest, model_.pieces[piece].elements);
  }
  const std::vector<std::int64_t>& shape = model_.pieces[table].tensors[0].shape;
  const std::int64_t unit = model::head_rows_per_slice(shape[1]);
  const std::int64_t rows = std::max<std::int64_t>(1, largest / shape[1] / unit) * unit;
  return rows < shape[0] ? std::vector<std::int64_t>{0, rows} : std::vector<std::int64_t>{0};
}

// All or none; the planner then looks for more where some fit.
std::vector<int> Candidates::kept_stages() const {
  if (request_.pins.recompute) return {*request_.pins.recompute ? 0 : most_kept_stages()};
  const bool can_keep = std::any_of(workspace_.begin(), workspace_.end(),
                                    [](const StageWorkspace& stage) { return stage.kept > 0; });
  return can_keep ? std::vector<int>{most_kept_stages(), 0} : std::vector<int>{0};
}

// Chunks start on blocks of the drive in every state; 8-bit moments, 260 bytes a quantum, do so
// only every 64 tiles.
bool Candidates::cuts_whole_pages(std::int64_t chunk) const {
  std::int64_t largest = 0;
  for (const model::PieceSpec& piece : model_.pieces) largest = std::max(largest, piece.elements);
  return chunk >= largest ||
         std::all_of(request_.states.begin(), request_.states.end(),
                     [&](const StateLayout& state) { return state.bytes(chunk) % kPage == 0; });
}

bool Candidates::all_on_nvme(const CompileInput& input) const {
  for (std::size_t p = 0; p < input.placement.pieces.size(); ++p) {
    const PiecePlacement& placement = input.placement.pieces[p];
    if (!model_.pieces[p].trainable) continue;
    if (placement.weights != Tier::kNvme || placement.optimizer != Tier::kNvme) return false;
  }
  return true;
}

CompileInput Candidates::input(const Lean& lean) const {
  const Way& way = ways_[static_cast<std::size_t>(lean.way)];
  const Rung& rung = rungs_[static_cast<std::size_t>(lean.rung)];
  CompileInput input;
  input.model = &model_;
  input.states = request_.states;
  input.gradient_type = request_.gradient_type;
  input.shape = request_.shape;
  input.workspace = workspace_;
  CompileSettings& settings = input.settings;
  settings.micro_batches = request_.micro_batches;
  settings.group = way.group;
  settings.kept_stages = way.kept_stages;
  settings.overlap = request_.overlap;
  settings.slots = request_.slots;
  settings.prefetch = rung.prefetch;
  settings.ring_slots = rung.ring_slots;
  settings.chunk_elements = rung.chunk_elements;
  settings.keep_at_turn = request_.pins.keep_at_turn.value_or(0);
  settings.early_updates = request_.pins.early_updates.value_or(0);
  settings.slice_rows = way.slice_rows;
  input.placement.activations = way.activations;
  const Tier lowest = has_nvme() ? Tier::kNvme : Tier::kHost;
  for (const model::PieceSpec& piece : model_.pieces) {
    PiecePlacement placement;
    placement.weights = request_.pins.weights.value_or(lowest);
    placement.optimizer = request_.pins.optimizer.value_or(lowest);
    placement.gradients = request_.pins.gradients.value_or(Tier::kHost);
    if (!piece.trainable) placement.optimizer = placement.weights;
    input.placement.pieces.push_back(placement);
  }
  for (int i = 0; i < lean.spilled; ++i)
    input.placement.pieces[spill_order_[static_cast<std::size_t>(i)]].gradients = Tier::kNvme;
  settle(input);
  return input;
}

void Candidates::settle(CompileInput& input) const {
  input.settings.commit_each_step =
      request_.commit_each_step.value_or(all_on_nvme(input) && request_.slots == 2);
}

Need Candidates::need(const CompileInput& input) const {
  const Sizes taken = sizes(input);
  Need need;
  need.device = taken.device;
  need.host = request_.budgets.host_base + taken.host +
              (request_.budgets.device_in_host ? taken.device : 0);
  // Without a drive commits go to the run folder, which is not budgeted.
  need.nvme = has_nvme() ? taken.nvme : 0;
  return need;
}

Need Candidates::need(const Lean& lean) {
  const auto [entry, made] = needs_.try_emplace({lean.way, lean.rung, lean.spilled});
  if (made) entry->second = need(input(lean));
  return entry->second;
}

bool Candidates::spill(Lean& lean, Bytes needed) const {
  Bytes freed = 0;
  const int before = lean.spilled;
  while (lean.spilled < static_cast<int>(spill_order_.size()) && freed < needed) {
    const int piece = spill_order_[static_cast<std::size_t>(lean.spilled++)];
    freed +=
        static_cast<Bytes>(model_.pieces[piece].elements) * model::size_of(request_.gradient_type);
  }
  return lean.spilled > before;
}

bool Candidates::fit(Lean& lean, const Budgets& budgets) {
  for (int round = 0;; ++round) {
    const Need taken = need(lean);
    if (taken.within(budgets)) return true;
    const bool only_host = taken.device <= budgets.device && taken.nvme <= budgets.nvme;
    // Gradients share memory in turn, so that spilling one may free less than its size: ask for
    // more and more.
    if (!only_host || !spill(lean, (taken.host - budgets.host) << std::min(round / 4, 20)))
      return false;
  }
}

// The leanest settings of the largest group first: most likely to fit, and soon sized.
bool Candidates::any_fits(const Budgets& budgets) {
  for (int rung = static_cast<int>(rungs_.size()) - 1; rung >= 0; --rung) {
    for (int way = 0; way < static_cast<int>(ways_.size()); ++way) {
      Lean lean = {way, rung};
      if (fit(lean, budgets)) return true;
    }
  }
  return false;
}

}  // namespace zinf::plan
