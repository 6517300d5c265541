#include "engine/train/sample.h"

#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/data/tokenizer_tool.h"

namespace zinf::train {

data::PrepareTool tool_for(const config::RunConfig& config) {
  data::PrepareTool tool = data::find_prepare_tool();
  tool.patience = config.train.stall_timeout;
  return tool;
}

Sampler::Sampler(const config::RunConfig& config, const ModelInput& model,
                 const plan::ShapeClass& shape) {
  if (!config.eval.sample || model.model.spec.vocabulary == 0) return;
  prompt_ = *config.eval.sample;
  tool_ = tool_for(config);
  model_folder_ = model.folder_path();
  ids_ = data::encode_text(tool_, model_folder_, prompt_);
  longest_ = static_cast<std::size_t>(shape.length);
  if (ids_.size() + kNewTokens > longest_) {
    log::warning(str("eval.sample: the prompt has ", ids_.size(), " tokens; with ", kNewTokens,
                     " more it exceeds the sequence length ", longest_, ", so nothing is sampled"));
    ids_.clear();
  }
}

void Sampler::print(step::Trainer& trainer, const std::string& when) const {
  if (ids_.empty()) return;
  std::vector<std::int32_t> ids = ids_;
  for (int i = 0; i < kNewTokens; ++i) {
    data::MicroBatch micro;
    micro.rows = 1;
    micro.length = static_cast<int>(ids.size());
    micro.ids = ids;
    micro.targets.assign(ids.size(), data::kIgnore);
    micro.documents.assign(ids.size(), 0);
    for (std::size_t p = 0; p < ids.size(); ++p)
      micro.positions.push_back(static_cast<std::int32_t>(p));
    data::StepBatch batch;
    batch.micro_batches.push_back(std::move(micro));
    ids.push_back(trainer.next_token(batch));
  }
  log::info(str("sample ", when, ": ", data::decode_ids(tool_, model_folder_, ids)));
}

}  // namespace zinf::train
