#include "engine/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/plan/builder.h"
#include "engine/plan/candidates.h"
#include "engine/plan/refusal.h"
#include "engine/plan/visits.h"

namespace zinf::plan {

namespace {

struct Candidate {
  CompileInput input;
  Need need;
  Forecast forecast;
  std::optional<Forecast> early;
};

class Search {
 public:
  Search(const PlanRequest& request, const model::ModelSpec& model)
      : request_(request), model_(model), candidates_(request, model) {}

  std::optional<Candidate> best;
  std::vector<Rejected> rejected;
  std::vector<std::string> notes;

  void run() {
    const std::vector<Candidates::Way>& ways = candidates_.ways();
    for (std::size_t way = 0; way < ways.size(); ++way) {
      // A table in slices is read twice: only where it lets visits be as large as they can.
      const bool first_in_slices =
          way > 0 && ways[way].slice_rows > 0 && ways[way - 1].slice_rows == 0;
      if (first_in_slices && best && best->input.settings.group == candidates_.largest_group())
        break;
      try_way(static_cast<int>(way));
    }
    if (!best) return;
    // What is asked for comes before what is only faster.
    if (request_.early_updates != EarlyUpdates::kAlways) keep_activations();
    choose_early_updates();
  }

  Candidates& candidates() { return candidates_; }

 private:
  // The most generous rung that fits; where that takes spilled gradients, also leaner ones with
  // fewer of them.
  void try_way(int way) {
    int fewest = std::numeric_limits<int>::max();
    for (int rung = 0; rung < static_cast<int>(candidates_.rungs().size()); ++rung) {
      Lean lean = {way, rung};
      if (!candidates_.fit(lean, request_.budgets)) {
        note_miss(candidates_.input(lean), candidates_.need(lean));
        continue;
      }
      if (lean.spilled >= fewest) continue;
      fewest = lean.spilled;
      Candidate candidate;
      candidate.input = candidates_.input(lean);
      candidate.need = candidates_.need(lean);
      use_leftover(candidate);
      keep_weights_at_turn(candidate);
      candidate.forecast = forecast(candidate.input, Cycle::kPlain);
      offer(std::move(candidate));
      if (lean.spilled == 0) return;
    }
  }

  Forecast forecast(const CompileInput& input, Cycle cycle) const {
    return simulate(compile_cycle(input, cycle), input, request_.hardware, cycle);
  }

  void note_miss(const CompileInput& input, const Need& need) {
    const Budgets& given = request_.budgets;
    Rejected miss;
    miss.what = describe(input);
    miss.why = "does not fit:";
    const auto lacks = [&](const char* tier, Bytes needed, Bytes budget) {
      if (needed <= budget) return;
      miss.why += str(" ", tier, " needs ", format_bytes(needed));
      miss.beyond += needed - budget;
    };
    lacks("device", need.device, given.device);
    lacks("host", need.host, given.host);
    lacks("nvme", need.nvme, given.nvme);
    rejected.push_back(std::move(miss));
  }

  // Traffic saved per byte of host memory: a weight is read twice and written once a step; other
  // states once each.
  void use_leftover(Candidate& candidate) const {
    if (request_.budgets.nvme == 0) return;
    Bytes left = request_.budgets.host - candidate.need.host;
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
    candidates_.settle(input);
    take_if_it_fits(candidate, std::move(input));
  }

  bool take_if_it_fits(Candidate& candidate, CompileInput input) const {
    const Need need = candidates_.need(input);
    if (!need.within(request_.budgets)) return false;
    candidate.input = std::move(input);
    candidate.need = need;
    return true;
  }

  void keep_weights_at_turn(Candidate& candidate) const {
    if (request_.pins.keep_at_turn || candidate.input.settings.group < request_.micro_batches)
      return;
    CompileInput input = candidate.input;
    input.settings.keep_at_turn = 1;
    take_if_it_fits(candidate, std::move(input));
  }

  Bytes left_on_device(const Need& need) const {
    const Budgets& given = request_.budgets;
    if (!need.within(given)) return 0;
    const Bytes device = given.device - need.device, host = given.host - need.host;
    return given.device_in_host ? std::min(device, host) : device;
  }

  // Most of the last stages whose activations `bytes` hold, in one group of micro-batches.
  int stages_kept_in(Bytes bytes, const CompileInput& input) const {
    int most = 0;
    for (int stage = candidates_.most_kept_stages() - 1; stage >= 0; --stage) {
      if (!input.can_keep_activations(stage)) continue;
      const Bytes kept =
          round_up(input.workspace[stage].kept, kPage) * static_cast<Bytes>(input.settings.group);
      if (kept > bytes) break;
      bytes -= kept;
      most = candidates_.most_kept_stages() - stage;
    }
    return most;
  }

  // Memory that is left, or that running less far ahead leaves, keeps activations of the last
  // stages: what is kept is not computed again. Until that makes no step faster.
  void keep_activations() {
    if (request_.pins.recompute || best->input.settings.kept_stages > 0) return;
    const CompileInput plain = best->input;
    int before = 0;
    for (const Candidates::Rung& rung : candidates_.rungs()) {
      // With nothing ahead compute would wait for what it gains.
      if (rung.prefetch == 0 && plain.settings.prefetch > 0) return;
      CompileInput input = plain;
      CompileSettings& settings = input.settings;
      settings.prefetch = std::min(settings.prefetch, rung.prefetch);
      settings.ring_slots = std::min(settings.ring_slots, rung.ring_slots);
      settings.chunk_elements = std::min(settings.chunk_elements, rung.chunk_elements);
      Candidate candidate = *best;
      int most = stages_kept_in(left_on_device(candidates_.need(input)), input);
      for (; most > before; --most) {
        settings.kept_stages = most;
        if (take_if_it_fits(candidate, input)) break;
      }
      if (most <= before) continue;
      before = most;
      candidate.forecast = forecast(candidate.input, Cycle::kPlain);
      const bool faster = candidate.forecast.step_seconds < best->forecast.step_seconds * 0.995;
      const Candidate& loser = faster ? *best : candidate;
      reject(loser.input, loser.forecast);
      if (!faster) return;
      best = std::move(candidate);
    }
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
      Candidate candidate = *best;
      if (!take_if_it_fits(candidate, input)) {
        note_miss(input, candidates_.need(input));
        if (obstacle.empty()) obstacle = str(rejected.back().what, " ", rejected.back().why);
        continue;
      }
      candidate.early = forecast(candidate.input, Cycle::kEarly);
      if (candidate.early->step_seconds >= shortest) {
        reject(candidate.input, *candidate.early);
        continue;
      }
      shortest = candidate.early->step_seconds;
      if (chosen) reject(chosen->input, *chosen->early);
      chosen = std::move(candidate);
    }
    return chosen;
  }

  void reject(const CompileInput& input, const Forecast& forecast) {
    const double seconds = forecast.step_seconds;
    rejected.push_back({describe(input),
                        str("slower: ", std::round(seconds * 1000) / 1000, " s a step"), seconds});
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
    reject(loser.input, loser.forecast);
    if (better) best = std::move(candidate);
  }

  const PlanRequest& request_;
  const model::ModelSpec& model_;
  Candidates candidates_;
};

// The fastest first, then those that come closest to fitting.
void rank(std::vector<Rejected>& rejected) {
  std::stable_sort(rejected.begin(), rejected.end(), [](const Rejected& a, const Rejected& b) {
    if (a.step_seconds && b.step_seconds) return *a.step_seconds < *b.step_seconds;
    if (a.step_seconds || b.step_seconds) return a.step_seconds.has_value();
    return a.beyond < b.beyond;
  });
}

void note_spilled(Plan& plan, const PlanRequest& request) {
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
}

bool updates_early(const Candidate& candidate, const PlanRequest& request) {
  return candidate.early && (!request.clips || request.early_updates == EarlyUpdates::kAlways);
}

// Of the steps to expect.
Forecast expected(const Candidate& candidate, const PlanRequest& request) {
  return updates_early(candidate, request) ? *candidate.early : candidate.forecast;
}

// Of a step whose placement is free, where that is faster than `pinned`.
std::optional<double> faster_without_pins(const PlanRequest& request, const model::ModelSpec& model,
                                          double pinned) {
  const Pins& pins = request.pins;
  if (!pins.weights && !pins.optimizer && !pins.gradients && !pins.activations) return std::nullopt;
  PlanRequest unpinned = request;
  unpin_placement(unpinned.pins);
  Search search(unpinned, model);
  search.run();
  if (!search.best) return std::nullopt;
  const double seconds = expected(*search.best, unpinned).step_seconds;
  return seconds < pinned * 0.99 ? std::optional(seconds) : std::nullopt;
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  Plan plan;
  plan.model = std::make_unique<model::ModelSpec>(request.model);
  Search search(request, *plan.model);
  search.run();
  if (!search.best) refuse(request, *plan.model, search.candidates());
  Candidate& best = *search.best;
  plan.input = std::move(best.input);
  plan.programs = compile(plan.input);
  plan.waiting = best.forecast;
  plan.early = best.early;
  plan.forecast = expected(best, request);
  plan.traffic =
      traffic(plan.programs, updates_early(best, request) ? Cycle::kEarly : Cycle::kPlain);
  plan.budgets = request.budgets;
  plan.device_bytes = best.need.device;
  plan.host_arena_bytes = plan.programs.peak[static_cast<int>(Arena::kHost)];
  plan.host_bytes = best.need.host;
  // Without extents there is no I/O that would gain by it.
  if (request.pin && !plan.programs.extents.empty()) plan.pinned_bytes = plan.host_arena_bytes;
  plan.nvme_bytes = best.need.nvme;
  plan.rejected = std::move(search.rejected);
  rank(plan.rejected);
  plan.notes = std::move(search.notes);
  note_spilled(plan, request);
  if (const auto unpinned = faster_without_pins(request, *plan.model, plan.forecast.step_seconds))
    plan.unpinned_step_seconds = unpinned;
  return plan;
}

bool fits(const PlanRequest& request) {
  Candidates candidates(request, request.model);
  return candidates.any_fits(request.budgets);
}

}  // namespace zinf::plan
