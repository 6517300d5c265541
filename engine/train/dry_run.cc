#include "engine/train/dry_run.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/data/tokenizer_tool.h"
#include "engine/plan/explain.h"
#include "engine/train/plan_run.h"
#include "engine/train/sample.h"

namespace zinf::train {

namespace {

// A row's first document: what is read, and whether each token is learnt from what comes before it.
struct FirstSample {
  std::vector<std::int32_t> ids;
  std::vector<bool> learn;
};

FirstSample first_document(const data::MicroBatch& batch) {
  FirstSample sample;
  std::int32_t target = data::kIgnore;  // of the position before
  for (std::size_t i = 0; i < static_cast<std::size_t>(batch.length) && batch.documents[i] == 0;
       ++i) {
    sample.ids.push_back(batch.ids[i]);
    sample.learn.push_back(target != data::kIgnore);
    target = batch.targets[i];
  }
  if (target == data::kIgnore) return sample;
  sample.ids.push_back(target);
  sample.learn.push_back(true);
  return sample;
}

void show_first_sample(const config::RunConfig& config, const ModelInput& model,
                       const data::Loader& loader) {
  const data::StepBatch batch = loader.step_batch(0);
  const data::MicroBatch& micro = batch.micro_batches.front();
  std::cout << "\nFirst sample:\n";
  if (model.model.spec.vocabulary > 0) {
    std::cout << data::show_sample(tool_for(config), model.folder_path(), micro, 0);
    return;
  }
  std::cout << "features";
  constexpr std::int64_t kShown = 16;
  for (std::int64_t i = 0; i < std::min(kShown, model.model.spec.feature_width); ++i)
    std::cout << " " << micro.features[static_cast<std::size_t>(i)];
  if (model.model.spec.feature_width > kShown)
    std::cout << " ... (" << model.model.spec.feature_width << ")";
  std::cout << "\nlearn    " << micro.labels[0] << "\n";
}

std::string add_first_sample(const std::string& json, const config::RunConfig& config,
                             const ModelInput& model, const data::Loader& loader) {
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(json);
  nlohmann::ordered_json& sample = out["sample"];
  const data::StepBatch batch = loader.step_batch(0);
  const data::MicroBatch& micro = batch.micro_batches.front();
  if (model.model.spec.vocabulary > 0) {
    const FirstSample first = first_document(micro);
    sample["ids"] = first.ids;
    sample["learn"] = first.learn;
    sample["text"] = data::show_sample(tool_for(config), model.folder_path(), micro, 0);
  } else {
    sample["features"] = std::vector(micro.features.begin(),
                                     micro.features.begin() + model.model.spec.feature_width);
    sample["label"] = micro.labels[0];
  }
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void show_dry_run(const config::RunConfig& config, const ModelInput& model,
                  const data::Loader& loader, const plan::Plan& plan, bool json) {
  if (json) {
    std::cout << add_first_sample(plan::explain_json(plan), config, model, loader);
    return;
  }
  show_settings(config);
  std::cout << plan::explain(plan);
  show_first_sample(config, model, loader);
}

void show_dry_refusal(const config::RunConfig& config, const ModelInput& model,
                      const data::Loader& loader, const std::string& reason) {
  const model::ModelSpec& spec = model.model.spec;
  const plan::Budgets budget = budgets_now(config, spec.compute_type);
  std::cout << add_first_sample(plan::refusal_json(spec, budget, reason), config, model, loader);
}

}  // namespace zinf::train
