#include "engine/plan/refusal.h"

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::plan {

namespace {

constexpr Bytes kUnlimited = Bytes{1} << 60;

Bytes in_mib(Bytes bytes) { return (bytes + kMiB - 1) / kMiB; }

Bytes& of(Budgets& budgets, Tier tier) {
  return tier == Tier::kDevice ? budgets.device : tier == Tier::kHost ? budgets.host : budgets.nvme;
}
Bytes of(const Need& need, Tier tier) {
  return tier == Tier::kDevice ? need.device : tier == Tier::kHost ? need.host : need.nvme;
}

Budgets with(Budgets budgets, Tier tier, Bytes bytes) {
  of(budgets, tier) = bytes;
  if (tier == Tier::kHost && budgets.device_follows_host) budgets.device = bytes / 4;
  return budgets;
}

// The least budget of `tier` with which this candidate fits, to the page; it does with `enough`.
Bytes least_of(Candidates& candidates, Lean lean, const Budgets& budgets, Tier tier, Bytes enough) {
  const auto fits = [&](Bytes bytes) {
    Lean tried = lean;
    return candidates.fit(tried, with(budgets, tier, bytes));
  };
  const Need most = candidates.need(lean);  // with all gradients in memory
  const Bytes device = budgets.device_follows_host ? 4 * most.device : 0;
  Bytes high = std::min(enough, tier == Tier::kHost ? std::max(most.host, device) : of(most, tier));
  if (!fits(high)) high = enough;
  for (Bytes low = 0; high - low > kPage;) {
    const Bytes middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  candidates.fit(lean, with(budgets, tier, high));
  const Bytes exact = of(candidates.need(lean), tier);
  return exact < high && fits(exact) ? exact : high;
}

// The least budget of `tier`, the others as given; absent: none is enough.
std::optional<Bytes> least(Candidates& candidates, const Budgets& budgets, Tier tier) {
  std::optional<Bytes> most;
  for (int rung = static_cast<int>(candidates.rungs().size()) - 1; rung >= 0; --rung) {
    for (int way = 0; way < static_cast<int>(candidates.ways().size()); ++way) {
      Lean lean = {way, rung};
      const Bytes enough = most ? *most - std::min(*most, kPage) : kUnlimited;
      if (candidates.fit(lean, with(budgets, tier, enough)))
        most = least_of(candidates, {way, rung}, budgets, tier, enough);
    }
  }
  if (most && tier == Tier::kHost) *most += budgets.host_base_varies;
  return most;
}

class Refusal {
 public:
  Refusal(const PlanRequest& request, const model::ModelSpec& model, Candidates& candidates)
      : request_(request), model_(model), candidates_(candidates) {}

  [[noreturn]] void raise() {
    change_one_budget();
    if (changes_.empty() && elsewhere_.empty()) change_several_budgets();
    change_settings();
    add_a_drive();
    changes_.insert(changes_.end(), elsewhere_.begin(), elsewhere_.end());
    std::string hint = "the smallest change that fits: ";
    for (std::size_t i = 0; i < changes_.size(); ++i) hint += (i > 0 ? " or " : "") + changes_[i];
    throw Error(ErrorKind::kDoesNotFit, "the run does not fit its budgets" + lacks_, hint);
  }

 private:
  void lacks(Tier tier, Bytes needed, const char* join) {
    const char* name = tier == Tier::kNvme ? "NVMe" : tier_name(tier);
    Budgets given = request_.budgets;
    lacks_ += str(lacks_.empty() ? "; " : join, name, " needs ", format_bytes(needed), " (", needed,
                  " bytes), given ", format_bytes(of(given, tier)));
  }

  bool beyond_machine(Tier tier, Bytes needed) const {
    return tier == Tier::kHost && request_.budgets.machine && needed > *request_.budgets.machine;
  }

  std::string change(Tier tier, Bytes needed) const {
    if (tier == Tier::kDevice) return str(request_.budgets.device_option, in_mib(needed), "MiB");
    if (tier == Tier::kHost) {
      return str(request_.budgets.host_option, in_mib(needed), "MiB",
                 beyond_machine(tier, needed) ? str(" (on another machine: this one has ",
                                                    format_bytes(*request_.budgets.machine), ")")
                                              : "");
    }
    const Bytes more = needed - request_.budgets.nvme;
    switch (request_.budgets.nvme_limit) {
      case Budgets::NvmeLimit::kGiven:
        return str("--nvme of ", in_mib(needed), "MiB");
      case Budgets::NvmeLimit::kCapacity:
        return str(in_mib(more), "MiB more memory.nvme[].capacity");
      case Budgets::NvmeLimit::kFreeSpace:  // of which a tenth is left alone
        break;
    }
    return str("free ", in_mib(more + more / 9 + 1), "MiB on the drives of memory.nvme");
  }

  void change_one_budget() {
    struct Change {
      Tier tier;
      Bytes needed, more;
    };
    std::vector<Change> found;
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      Budgets given = request_.budgets;
      if (tier == Tier::kNvme && given.nvme == 0) continue;
      const auto needed = least(candidates_, given, tier);
      if (needed) found.push_back({tier, *needed, *needed - of(given, tier)});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Change& a, const Change& b) { return a.more < b.more; });
    for (const Change& one : found) {
      lacks(one.tier, one.needed, "; or ");
      (beyond_machine(one.tier, one.needed) ? elsewhere_ : changes_)
          .push_back(change(one.tier, one.needed));
    }
  }

  // Settings that keep what is trained.
  void change_settings() {
    const Pins& pins = request_.pins;
    const auto offer = [&](const char* what, auto apply) {
      PlanRequest changed = request_;
      apply(changed);
      if (fits(changed)) changes_.emplace_back(what);
    };
    if (request_.slots == 2 && request_.may_drop_slot && request_.budgets.nvme > 0)
      offer("--set checkpoint.slots=1", [](PlanRequest& changed) { changed.slots = 1; });
    if (pins.recompute == false)
      offer("--set step.recompute=true",
            [](PlanRequest& changed) { changed.pins.recompute = true; });
    if (pins.group)
      offer("--set step.group=auto", [](PlanRequest& changed) { changed.pins.group.reset(); });
    if (pins.gradients && pins.gradients != Tier::kNvme && request_.budgets.nvme > 0)
      offer("--set placement.gradients=nvme",
            [](PlanRequest& changed) { changed.pins.gradients = Tier::kNvme; });
    if (pins.weights || pins.optimizer || pins.gradients || pins.activations)
      offer("--set placement=auto", [](PlanRequest& changed) { unpin_placement(changed.pins); });
  }

  void add_a_drive() {
    if (request_.budgets.nvme > 0) return;
    PlanRequest changed = request_;
    changed.budgets.nvme = kUnlimited;
    Candidates with_drive(changed, model_);
    if (const auto needed = least(with_drive, changed.budgets, Tier::kNvme))
      changes_.push_back(str("add a drive under memory.nvme, of ", in_mib(*needed), "MiB"));
  }

  // The least of the device's first, whatever the others take, then of the host's.
  void change_several_budgets() {
    Budgets budgets = request_.budgets;
    const Bytes given_nvme = budgets.nvme;
    budgets.device_follows_host = false;
    budgets.device = budgets.host = kUnlimited;
    if (!candidates_.any_fits(budgets)) budgets.nvme = kUnlimited;
    std::string all;
    const auto settle = [&](Tier tier, Bytes given) {
      const Bytes needed = least(candidates_, budgets, tier).value_or(given);
      of(budgets, tier) = std::max(given, in_mib(needed) * kMiB);
      if (needed <= given) return;
      lacks(tier, needed, "; ");
      all += (all.empty() ? "" : tier == Tier::kNvme ? " and " : " ") + change(tier, needed);
    };
    settle(Tier::kDevice, request_.budgets.device);
    settle(Tier::kHost, request_.budgets.host);
    if (budgets.nvme > given_nvme) settle(Tier::kNvme, given_nvme);
    changes_.push_back(all);
  }

  const PlanRequest& request_;
  const model::ModelSpec& model_;
  Candidates& candidates_;
  std::string lacks_;
  std::vector<std::string> changes_, elsewhere_;  // elsewhere: that this machine can't make
};

}  // namespace

void refuse(const PlanRequest& request, const model::ModelSpec& model, Candidates& candidates) {
  Refusal(request, model, candidates).raise();
}

}  // namespace zinf::plan
