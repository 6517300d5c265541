#include "engine/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/plan/builder.h"
#include "engine/plan/visits.h"

namespace zinf::plan {

namespace {

// From generous to lean: what runs ahead costs memory.
struct Rung {
  int prefetch;
  int ring_slots;
  std::int64_t chunk_elements;
};
constexpr std::int64_t kChunk = 1 << 20;
constexpr Rung kLadder[] = {{2, 8, kChunk},     {1, 6, kChunk},     {1, 4, kChunk / 2},
                            {1, 3, kChunk / 4}, {0, 3, kChunk / 4}, {0, 2, kChunk / 4},
                            {0, 2, kChunk / 16}};

struct Candidate {
  CompileInput input;
  ProgramSet programs;
  Forecast forecast;
  std::optional<Forecast> early;
  Bytes device = 0, host = 0, nvme = 0;
};

struct Shortage {
  Bytes device = 0, host = 0, nvme = 0;  // needed in all, where more than given; else 0
  bool any() const { return device > 0 || host > 0 || nvme > 0; }
};

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

class Search {
 public:
  Search(const PlanRequest& request, const model::ModelSpec& model)
      : request_(request), model_(model), chunk_scale_(chunk_scale(model)) {}

  std::optional<Candidate> best;
  std::vector<Rejected> rejected;
  std::vector<std::string> notes;
  std::optional<std::pair<Shortage, std::string>>
      nearest;  // the leanest candidate that did not fit

  void run() {
    for (const std::int64_t slice_rows : slices()) {
      // A table in slices is read twice: only where it lets visits be as large as they can.
      if (slice_rows > 0 && best && best->input.settings.group == groups().front()) break;
      slice_rows_ = slice_rows;
      for (const int group : groups()) {
        for (const Tier activations : activation_tiers()) {
          for (const bool recompute : recomputes()) try_settings(group, activations, recompute);
        }
      }
    }
    if (best) choose_early_updates();
  }

 private:
  bool has_nvme() const { return request_.budgets.nvme > 0; }

  std::vector<int> groups() const {
    if (request_.pins.group) return {std::clamp(*request_.pins.group, 1, request_.micro_batches)};
    std::vector<int> values;
    for (int group = request_.micro_batches; group > 1; group = (group + 1) / 2)
      values.push_back(group);
    values.push_back(1);
    return values;
  }

  std::vector<Tier> activation_tiers() const {
    if (request_.pins.activations) return {*request_.pins.activations};
    if (has_nvme()) return {Tier::kDevice, Tier::kHost, Tier::kNvme};
    return {Tier::kDevice, Tier::kHost};
  }

  // Rows of the head's table on the device at once: all (0), then about as much as the largest
  // other piece.
  std::vector<std::int64_t> slices() const {
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

  std::vector<bool> recomputes() const {
    if (request_.pins.recompute) return {*request_.pins.recompute};
    bool can_keep = false;
    for (const StageWorkspace& stage : request_.workspace) can_keep |= stage.kept > 0;
    return can_keep ? std::vector<bool>{false, true} : std::vector<bool>{true};
  }

  CompileInput lean_input(int group, Tier activations, bool recompute, const Rung& rung) const {
    CompileInput input;
    input.model = &model_;
    input.states = request_.states;
    input.gradient_type = request_.gradient_type;
    input.shape = request_.shape;
    input.workspace = request_.workspace;
    CompileSettings& settings = input.settings;
    settings.micro_batches = request_.micro_batches;
    settings.group = group;
    settings.recompute = recompute;
    settings.overlap = request_.overlap;
    settings.slots = request_.slots;
    settings.prefetch = request_.pins.prefetch.value_or(rung.prefetch);
    settings.ring_slots = request_.pins.ring_slots.value_or(rung.ring_slots);
    settings.chunk_elements =
        request_.pins.chunk_elements.value_or(rung.chunk_elements * chunk_scale_);
    settings.keep_at_turn = request_.pins.keep_at_turn.value_or(0);
    settings.early_updates = request_.pins.early_updates.value_or(0);
    settings.slice_rows = slice_rows_;
    input.placement.activations = activations;
    const Tier lowest = has_nvme() ? Tier::kNvme : Tier::kHost;
    for (const model::PieceSpec& piece : model_.pieces) {
      PiecePlacement placement;
      placement.weights = request_.pins.weights.value_or(lowest);
      placement.optimizer = request_.pins.optimizer.value_or(lowest);
      placement.gradients = request_.pins.gradients.value_or(Tier::kHost);
      if (!piece.trainable) placement.optimizer = placement.weights;
      input.placement.pieces.push_back(placement);
    }
    return input;
  }

  bool all_on_nvme(const CompileInput& input) const {
    for (std::size_t p = 0; p < input.placement.pieces.size(); ++p) {
      const PiecePlacement& placement = input.placement.pieces[p];
      if (!model_.pieces[p].trainable) continue;
      if (placement.weights != Tier::kNvme || placement.optimizer != Tier::kNvme) return false;
    }
    return true;
  }

  Candidate build(CompileInput input) const {
    input.settings.commit_each_step =
        request_.commit_each_step.value_or(all_on_nvme(input) && request_.slots == 2);
    Candidate candidate;
    candidate.programs = compile(input, /*with_edges=*/false);
    candidate.device = candidate.programs.peak[static_cast<int>(Arena::kDevice)];
    candidate.host = request_.budgets.host_base +
                     candidate.programs.peak[static_cast<int>(Arena::kHost)] +
                     (request_.budgets.device_in_host ? candidate.device : 0);
    for (const Extent& extent : candidate.programs.extents) {
      if (!has_nvme()) break;  // commits go to the run folder, which is not budgeted
      candidate.nvme += round_up(extent.bytes, kPage) * static_cast<Bytes>(extent.slots);
    }
    candidate.input = std::move(input);
    return candidate;
  }

  Shortage shortage(const Candidate& candidate) const {
    Shortage result;
    if (candidate.device > request_.budgets.device) result.device = candidate.device;
    if (candidate.host > request_.budgets.host) result.host = candidate.host;
    if (candidate.nvme > request_.budgets.nvme) result.nvme = candidate.nvme;
    return result;
  }

  // Moves the gradients of the largest pieces to NVMe until the host's shortage is covered.
  bool spill_gradients(CompileInput& input, Bytes needed) const {
    if (request_.pins.gradients || !has_nvme()) return false;
    std::vector<int> order;
    for (int p = 0; p < static_cast<int>(model_.pieces.size()); ++p) {
      if (model_.pieces[p].trainable && input.placement.pieces[p].gradients == Tier::kHost)
        order.push_back(p);
    }
    // Last in update order first: they wait longest, so that their memory is what the peak is made
    // of.
    Bytes freed = 0;
    bool any = false;
    while (!order.empty() && freed < needed) {
      const int piece = order.back();
      order.pop_back();
      input.placement.pieces[piece].gradients = Tier::kNvme;
      freed += input.gradient_bytes(model_.pieces[piece].elements);
      any = true;
    }
    return any;
  }

  std::optional<Candidate> fit(CompileInput input) {
    Candidate candidate = build(std::move(input));
    for (int round = 0;; ++round) {
      const Shortage missing = shortage(candidate);
      if (!missing.any()) return candidate;
      CompileInput next = candidate.input;
      const bool only_host = missing.host > 0 && missing.device == 0 && missing.nvme == 0;
      // Gradients share memory in turn, so that spilling one may free less than its size: ask for
      // more and more.
      const Bytes more = (missing.host - request_.budgets.host) << std::min(round / 4, 20);
      if (!only_host || !spill_gradients(next, more)) {
        note_miss(candidate, missing);
        return std::nullopt;
      }
      candidate = build(std::move(next));
    }
  }

  void note_miss(const Candidate& candidate, const Shortage& missing) {
    std::string why = "does not fit:";
    if (missing.device > 0) why += str(" device needs ", format_bytes(missing.device));
    if (missing.host > 0) why += str(" host needs ", format_bytes(missing.host));
    if (missing.nvme > 0) why += str(" nvme needs ", format_bytes(missing.nvme));
    rejected.push_back({describe(candidate.input), why});
    const auto beyond = [&](const Shortage& s) {
      const auto more = [](Bytes needed, Bytes given) {
        return needed > given ? needed - given : 0;
      };
      return more(s.device, request_.budgets.device) + more(s.host, request_.budgets.host) +
             more(s.nvme, request_.budgets.nvme);
    };
    if (!nearest || beyond(missing) < beyond(nearest->first))
      nearest.emplace(missing, describe(candidate.input));
  }

  // Traffic saved per byte of host memory: a weight is read twice and written once a step; other
  // states once each.
  void use_leftover(Candidate& candidate) const {
    if (!has_nvme()) return;
    Bytes left = request_.budgets.host - candidate.host;
    CompileInput input = candidate.input;
    const auto take = [&](bool weights) {
      for (std::size_t p = 0; p < model_.pieces.size(); ++p) {
        Tier& tier =
            weights ? input.placement.pieces[p].weights : input.placement.pieces[p].optimizer;
        if (tier != Tier::kNvme || (!weights && !model_.pieces[p].trainable)) continue;
        Bytes bytes = 0;
        for (std::size_t s = 0; s < request_.states.size(); ++s) {
          if ((s == 0) == weights)
            bytes += round_up(request_.states[s].bytes(model_.pieces[p].elements), kPage);
        }
        if (bytes > left) continue;
        left -= bytes;
        tier = Tier::kHost;
      }
    };
    if (!request_.pins.weights) take(true);
    if (!request_.pins.optimizer) take(false);
    Candidate fuller = build(std::move(input));
    if (!shortage(fuller).any()) candidate = std::move(fuller);
  }

  // Chunks start on blocks of the drive in every state; 8-bit moments, 260 bytes a quantum, do so
  // only every 64 tiles.
  bool cuts_whole_pages(std::int64_t chunk) const {
    std::int64_t largest = 0;
    for (const model::PieceSpec& piece : model_.pieces) largest = std::max(largest, piece.elements);
    return chunk >= largest ||
           std::all_of(request_.states.begin(), request_.states.end(),
                       [&](const StateLayout& state) { return state.bytes(chunk) % kPage == 0; });
  }

  int spilled(const CompileInput& input) const {
    int count = 0;
    for (std::size_t p = 0; p < model_.pieces.size(); ++p)
      count += model_.pieces[p].trainable && input.placement.pieces[p].gradients == Tier::kNvme;
    return count;
  }

  // The most generous rung that fits; where that takes spilled gradients, also leaner ones with
  // fewer of them.
  void try_settings(int group, Tier activations, bool recompute) {
    int fewest = std::numeric_limits<int>::max();
    for (const Rung& rung : kLadder) {
      if (!cuts_whole_pages(request_.pins.chunk_elements.value_or(rung.chunk_elements))) continue;
      std::optional<Candidate> candidate = fit(lean_input(group, activations, recompute, rung));
      if (!candidate) continue;
      const int spills = request_.pins.gradients ? 0 : spilled(candidate->input);
      if (spills >= fewest) continue;
      fewest = spills;
      use_leftover(*candidate);
      keep_weights_at_turn(*candidate);
      add_edges(candidate->programs, request_.overlap);
      candidate->forecast = simulate(candidate->programs, candidate->input, request_.hardware);
      offer(std::move(*candidate));
      if (spills == 0) return;
    }
  }

  void keep_weights_at_turn(Candidate& candidate) const {
    if (request_.pins.keep_at_turn || candidate.input.settings.group < request_.micro_batches)
      return;
    CompileInput input = candidate.input;
    input.settings.keep_at_turn = 1;
    Candidate kept = build(std::move(input));
    if (!shortage(kept).any()) candidate = std::move(kept);
  }

  int pieces_for_early_updates() const {
    const ModelFacts facts = derive_facts(model_);
    int count = 0;
    for (std::size_t p = 0; p < model_.pieces.size(); ++p)
      count += can_update_early(best->input, facts, static_cast<int>(p));
    return count;
  }

  // Why nothing can be updated during backward; empty where something can. It takes a slot that
  // holds no commit, so that each step has to be committed.
  std::string early_updates_obstacle() const {
    if (best->input.settings.slots != 2) return "checkpoint.slots: 1 leaves no slot to write to";
    if (!best->input.settings.commit_each_step) {
      return request_.commit_each_step
                 ? "checkpoint.every is not each step"
                 : "states are in memory, so that not each step is committed; with placement: "
                   "{weights: nvme, optimizer: nvme} it is";
    }
    if (pieces_for_early_updates() == 0) return "there are only vocabulary tables to update";
    return "";
  }

  // How many pieces to update during backward: as many as make the simulated step shortest.
  void choose_early_updates() {
    const bool pinned = request_.pins.early_updates.has_value();
    if (!pinned && request_.early_updates == EarlyUpdates::kNever) return;
    std::string obstacle = pinned ? "" : early_updates_obstacle();
    std::optional<Candidate> chosen;
    if (obstacle.empty()) chosen = early_candidate(obstacle);
    if (chosen) {
      best = std::move(chosen);
    } else if (request_.early_updates == EarlyUpdates::kAlways) {
      notes.push_back("step.speculate: always has no effect: " + obstacle);
    }
  }

  // obstacle: what the least that was tried lacks, where nothing fits.
  std::optional<Candidate> early_candidate(std::string& obstacle) {
    const int most = pieces_for_early_updates();
    const bool required =
        request_.pins.early_updates || request_.early_updates == EarlyUpdates::kAlways;
    double shortest =
        required ? std::numeric_limits<double>::infinity() : best->forecast.step_seconds * 0.99;
    std::optional<Candidate> chosen;
    int before = 0;
    for (const int quarters : {1, 2, 3, 4}) {
      const int count = request_.pins.early_updates.value_or((most * quarters + 3) / 4);
      if (count == 0 || count == before) continue;
      before = count;
      CompileInput input = best->input;
      input.settings.early_updates = count;
      Candidate candidate = build(std::move(input));
      if (const Shortage missing = shortage(candidate); missing.any()) {
        note_miss(candidate, missing);
        if (obstacle.empty()) obstacle = str(rejected.back().what, " ", rejected.back().why);
        continue;
      }
      add_edges(candidate.programs, request_.overlap);
      candidate.forecast = best->forecast;
      candidate.early =
          simulate(candidate.programs, candidate.input, request_.hardware, Cycle::kEarly);
      if (candidate.early->step_seconds >= shortest) {
        rejected.push_back({describe(candidate.input), slower(*candidate.early)});
        continue;
      }
      shortest = candidate.early->step_seconds;
      chosen = std::move(candidate);
    }
    return chosen;
  }

  static std::string slower(const Forecast& forecast) {
    return str("slower: ", std::round(forecast.step_seconds * 1000) / 1000, " s a step");
  }

  // Ranked by simulated step time; ties within 1 % go to fewer bytes written.
  void offer(Candidate candidate) {
    if (!best) {
      best = std::move(candidate);
      return;
    }
    const auto written = [](const Candidate& c) {
      return c.forecast.lanes[static_cast<int>(Lane::kWrite)].bytes;
    };
    const double a = candidate.forecast.step_seconds, b = best->forecast.step_seconds;
    const bool better = a < b * 0.99 || (a < b * 1.01 && written(candidate) < written(*best));
    const Candidate& loser = better ? *best : candidate;
    rejected.push_back({describe(loser.input), slower(loser.forecast)});
    if (better) best = std::move(candidate);
  }

  const PlanRequest& request_;
  const model::ModelSpec& model_;
  std::int64_t chunk_scale_;
  std::int64_t slice_rows_ = 0;
};

[[noreturn]] void refuse(const PlanRequest& request, const Search& search) {
  const auto& [missing, settings] = *search.nearest;
  std::string message = "the run does not fit its budgets";
  std::string hint = "the smallest change that fits:";
  const auto line = [&](const char* tier, const char* key, Bytes needed, Bytes given) {
    if (needed == 0) return;
    message += str("; ", tier, " needs ", format_bytes(needed), " (", needed, " bytes), given ",
                   format_bytes(given));
    hint += str(" --set ", key, "=", (needed + kMiB - 1) / kMiB, "MiB");
  };
  line("device", "memory.device", missing.device, request.budgets.device);
  line("host", "memory.host", missing.host, request.budgets.host);
  if (missing.nvme > 0) {
    message += str("; NVMe needs ", format_bytes(missing.nvme), ", given ",
                   format_bytes(request.budgets.nvme));
    hint += request.budgets.nvme == 0
                ? " add a drive under memory.nvme"
                : str(" free ", format_bytes(missing.nvme - request.budgets.nvme),
                      " on the drives of memory.nvme, or checkpoint.slots=1");
  }
  if (request.budgets.nvme == 0 && missing.host > 0) hint += " or add a drive under memory.nvme";
  const Pins& pins = request.pins;
  if (pins.weights || pins.optimizer || pins.gradients || pins.activations)
    hint += " or --set placement=auto";
  throw Error(ErrorKind::kDoesNotFit, message + str(" (leanest tried: ", settings, ")"), hint);
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  Plan plan;
  plan.model = std::make_unique<model::ModelSpec>(request.model);
  Search search(request, *plan.model);
  search.run();
  if (!search.best) refuse(request, search);
  Candidate& best = *search.best;
  plan.input = std::move(best.input);
  plan.programs = std::move(best.programs);
  const bool early =
      best.early.has_value() && (!request.clips || request.early_updates == EarlyUpdates::kAlways);
  plan.waiting = best.forecast;
  plan.early = best.early;
  plan.forecast = early ? *plan.early : plan.waiting;
  plan.traffic = traffic(plan.programs, early ? Cycle::kEarly : Cycle::kPlain);
  plan.budgets = request.budgets;
  plan.device_bytes = best.device;
  plan.host_arena_bytes = plan.programs.peak[static_cast<int>(Arena::kHost)];
  plan.host_bytes = best.host;
  // Without extents there is no I/O that would gain by it.
  if (request.pin && !plan.programs.extents.empty()) plan.pinned_bytes = plan.host_arena_bytes;
  plan.nvme_bytes = best.nvme;
  plan.rejected = std::move(search.rejected);
  plan.notes = std::move(search.notes);
  int spilled = 0;
  Bytes spilled_bytes = 0;
  plan.all_on_nvme = true;
  for (std::size_t p = 0; p < plan.model->pieces.size(); ++p) {
    const PiecePlacement& placement = plan.input.placement.pieces[p];
    if (!plan.model->pieces[p].trainable) continue;
    plan.all_on_nvme =
        plan.all_on_nvme && placement.weights == Tier::kNvme && placement.optimizer == Tier::kNvme;
    if (placement.gradients != Tier::kNvme) continue;
    ++spilled;
    spilled_bytes += plan.input.gradient_bytes(plan.model->pieces[p].elements);
  }
  if (spilled > 0) {
    const bool pinned = request.pins.gradients == Tier::kNvme;
    plan.notes.push_back(str(plan.input.rounds_gradients() ? "bf16" : "fp32", " gradients ",
                             pinned ? "are placed on NVMe" : "exceed the host budget",
                             ": those of ", spilled, " pieces (", format_bytes(spilled_bytes),
                             pinned ? ")" : ") spill to NVMe"));
  }
  return plan;
}

}  // namespace zinf::plan
