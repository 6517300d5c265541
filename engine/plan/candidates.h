// Private to the planner: the ways in which a request could run, from generous to lean, and what
// memory each takes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/plan/planner.h"

namespace zinf::plan {

// A candidate before leftover memory is used: a way to run the step, how much runs ahead, and how
// many gradients wait on NVMe.
struct Lean {
  int way = 0;
  int rung = 0;
  int spilled = 0;
};

struct Need {
  Bytes device = 0, host = 0, nvme = 0;  // in all, as Budgets count
  bool within(const Budgets& budgets) const {
    return device <= budgets.device && host <= budgets.host && nvme <= budgets.nvme;
  }
};

void unpin_placement(Pins& pins);

class Candidates {
 public:
  // Both outlive it. Budgets play no part, but for whether there is a drive.
  Candidates(const PlanRequest& request, const model::ModelSpec& model);

  // How a step is run. A table in slices is read twice, so that those ways come last.
  struct Way {
    std::int64_t slice_rows = 0;
    int group = 1;
    Tier activations = Tier::kDevice;
    int kept_stages = 0;
  };
  // What runs ahead costs memory.
  struct Rung {
    int prefetch;
    int ring_slots;
    std::int64_t chunk_elements;
    bool operator==(const Rung&) const = default;
  };
  const std::vector<Way>& ways() const { return ways_; }
  const std::vector<Rung>& rungs() const { return rungs_; }
  int most_kept_stages() const { return static_cast<int>(model_.stages.size()) - 1; }
  int largest_group() const { return ways_.front().group; }

  CompileInput input(const Lean& lean) const;
  // After a change of placement: whether each step is committed follows from it.
  void settle(CompileInput& input) const;
  Need need(const CompileInput& input) const;
  Need need(const Lean& lean);  // remembered

  // Moves gradients to NVMe as far as the host's budget demands. false: it does not fit so, and
  // `lean` is the leanest that was tried.
  bool fit(Lean& lean, const Budgets& budgets);
  bool any_fits(const Budgets& budgets);

 private:
  bool has_nvme() const { return request_.budgets.nvme > 0; }
  std::vector<int> groups() const;
  std::vector<Tier> activation_tiers() const;
  std::vector<std::int64_t> slices() const;
  std::vector<int> kept_stages() const;
  bool cuts_whole_pages(std::int64_t chunk) const;
  bool all_on_nvme(const CompileInput& input) const;
  bool spill(Lean& lean, Bytes needed) const;

  const PlanRequest& request_;
  const model::ModelSpec& model_;
  std::vector<StageWorkspace> workspace_;  // nothing kept where no backward pass would read it
  std::vector<Way> ways_;
  std::vector<Rung> rungs_;
  std::vector<int> spill_order_;  // pieces whose gradients may go to NVMe
  std::map<std::array<int, 3>, Need> needs_;
};

}  // namespace zinf::plan
