// From the config's data section to loaders: the room's front door.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/config/run_config.h"
#include "engine/data/loader.h"

namespace zinf::data {

struct DataRequest {
  config::DataConfig data;
  std::uint64_t seed = 0;
  int micro_batch = 1;
  int accumulation = 1;
  int rank = 0;
  int world = 1;
  // Language models: the number of rows of the embedding table. 0: regression.
  std::uint64_t vocabulary = 0;
  int seq_len = 0;           // data.seq_len, resolved
  int token_width = 0;       // token files without a header: 16 or 32 bits per id (nanoGPT: 16)
  int feature_width = 0;     // regression: what the model expects
  std::string model_folder;  // tokenizer; texts need it
  std::string cache_folder;  // where token files made from texts are kept
  std::string python;        // see prepare.h
  double patience = 0;       // see prepare.h
};

struct DataSet {
  std::unique_ptr<Loader> train;
  std::unique_ptr<Loader>
      eval;  // null: no evaluation data. Not shuffled; one micro-batch per rank and step
  std::vector<std::string> notes;        // for the user, one line each
  std::vector<SourceIdentity> identity;  // of train, for the manifest
  Bytes index_bytes = 0;                 // memory kept for the run
};

// Opens, and prepares first where needed. Everything wrong with the data: Error(kUsage).
DataSet open_data(const DataRequest& request);

}  // namespace zinf::data
