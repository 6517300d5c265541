// Requests for small models with all the room that they need, and what refusals say.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <regex>
#include <string>

#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "tests/plan/random_input.h"

namespace zinf::testing {

inline constexpr Bytes kPlenty = Bytes{1} << 40;

inline const optim::Format kSplit = {.weight = optim::WeightDtype::kBf16,
                                     .master = optim::MasterWeights::kSplit};

inline plan::PlanRequest request_for(int layers, std::int64_t layer_elements,
                                     const optim::Format& format = kSplit) {
  plan::PlanRequest request;
  request.model = small_spec(
      {.layers = layers, .width = 64, .layer_elements = layer_elements, .vocabulary = 4000});
  request.states = layouts(format);
  request.shape = {1, 64};
  request.micro_batches = 4;
  request.workspace.assign(request.model.stages.size(),
                           {100000, 300000, 200000, 50000, 120000, 250000});
  request.budgets = {kPlenty, kPlenty, 100 * kMiB, kPlenty, true};
  request.hardware = {"given", 1e11, 5e9, 5e9, 2e9, 1e9, 2e9, 1e10, {}};
  for (model::StageSpec& stage : request.model.stages) stage.forward_flops_per_position = 1e6;
  return request;
}

struct Refusal {
  std::string text;
  Bytes device = 0, host = 0;  // "needs ... (N bytes)"
};

inline Bytes number_after(const std::string& text, const std::string& pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? std::stoull(match[1]) : 0;
}

inline std::optional<Refusal> refusal(const plan::PlanRequest& request) {
  try {
    make_plan(request);
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDoesNotFit);
    Refusal result;
    result.text = error.what();
    result.device = number_after(result.text, "device needs [^(]*\\((\\d+) bytes\\)");
    result.host = number_after(result.text, "host needs [^(]*\\((\\d+) bytes\\)");
    return result;
  }
}

}  // namespace zinf::testing
