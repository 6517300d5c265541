// The data of a run, opened as its config, model and batch shape ask for.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/data/open_data.h"
#include "engine/train/model_input.h"
#include "engine/train/plan_run.h"

namespace zinf::train {

// cache: the folder for token files. Says what there is to say about the data in the log.
// Error(kUsage): the data can't be read as asked.
data::DataSet open_run_data(const config::RunConfig& config, const ModelInput& model,
                            const BatchShape& batch, const std::string& cache);

// As a manifest lists it.
std::vector<checkpoint::DataFile> data_files(const data::DataSet& data);

// The step after which the run's data begins. resume: the commit that the run goes on from; null: a
// new run. Data other than the commit's (by content, wherever it lies) begin where the run goes on
// if data.on_change says restart; else check_resume() will refuse them.
std::int64_t data_start(const checkpoint::Manifest* resume, const data::DataSet& data,
                        const config::RunConfig& config);

}  // namespace zinf::train
