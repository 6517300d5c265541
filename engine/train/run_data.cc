#include "engine/train/run_data.h"

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/train/resume_check.h"

namespace zinf::train {

data::DataSet open_run_data(const config::RunConfig& config, const ModelInput& model,
                            const BatchShape& batch, const std::string& cache) {
  data::DataRequest request;
  request.data = config.data;
  request.seed = static_cast<std::uint64_t>(config.train.seed);
  request.micro_batch = static_cast<int>(batch.micro);
  request.accumulation = static_cast<int>(batch.accumulation);
  request.vocabulary = static_cast<std::uint64_t>(model.model.spec.vocabulary);
  request.seq_len = static_cast<int>(row_length(config, model));
  request.token_width = static_cast<int>(config.data.token_width.value_or(0));
  if (request.token_width != 0 && request.token_width != 16 && request.token_width != 32) {
    throw Error(ErrorKind::kUsage,
                str("data.token_width: expected 16 or 32, found ", request.token_width));
  }
  request.feature_width = static_cast<int>(model.model.spec.feature_width);
  request.model_folder = model.folder_path();
  request.cache_folder = cache;
  request.patience = config.train.stall_timeout;
  data::DataSet data = open_data(request);
  for (const std::string& note : data.notes) log::info(note);
  return data;
}

std::vector<checkpoint::DataFile> data_files(const data::DataSet& data) {
  std::vector<checkpoint::DataFile> files;
  for (const data::SourceIdentity& source : data.identity)
    files.push_back({source.path, source.bytes, source.hash});
  return files;
}

std::int64_t data_start(const checkpoint::Manifest* resume, const data::DataSet& data,
                        const config::RunConfig& config) {
  if (resume == nullptr) return 0;
  if (config.data.on_change == config::OnChange::kRefuse ||
      !changed_file(resume->data, data_files(data)))
    return resume->data_start;
  log::warning(str("resume: the data changed (data.on_change: restart): step ", resume->step + 1,
                   " begins the new data at its start"));
  return resume->step;
}

}  // namespace zinf::train
