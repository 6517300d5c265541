// Tiny models and batches for this folder's tests.
#pragma once

#include <string>
#include <vector>

#include "engine/base/random.h"
#include "engine/base/str.h"
#include "engine/data/batch.h"
#include "engine/model/json_config.h"
#include "engine/model/model.h"

namespace zinf::model {

inline JsonConfig config_of(const std::string& text) {
  return JsonConfig::parse(text, "config.json");
}

// `extra` starts with a comma: ", \"head_dim\": 16".
inline std::string llama_text(const std::string& extra = "", const std::string& hidden = "48") {
  return str(R"({"model_type": "llama", "vocab_size": 61, "hidden_size": )", hidden,
             R"(, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2)",
             extra, "}");
}

inline std::string gpt2_text(const std::string& extra = "") {
  return str(
      R"({"model_type": "gpt2", "vocab_size": 61, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64,
               "initializer_range": 0.2)",
      extra, "}");
}

// One micro-batch whose rows hold documents of the given lengths, filled up with padding.
inline data::MicroBatch packed_batch(
    int length, const std::vector<std::vector<std::vector<std::int32_t>>>& rows) {
  data::MicroBatch batch;
  batch.rows = static_cast<int>(rows.size());
  batch.length = length;
  for (const auto& documents : rows) {
    int used = 0, number = 0;
    for (const auto& document : documents) {
      for (std::size_t i = 0; i < document.size(); ++i) {
        batch.ids.push_back(document[i]);
        batch.targets.push_back(i + 1 < document.size() ? document[i + 1] : data::kIgnore);
        batch.positions.push_back(static_cast<std::int32_t>(i));
        batch.documents.push_back(number);
      }
      used += static_cast<int>(document.size());
      ++number;
    }
    batch.tokens += used;
    for (; used < length; ++used) {
      batch.ids.push_back(0);
      batch.targets.push_back(data::kIgnore);
      batch.positions.push_back(0);
      batch.documents.push_back(-1);
    }
  }
  for (const std::int32_t target : batch.targets) batch.target_tokens += target != data::kIgnore;
  return batch;
}

inline std::vector<std::int32_t> random_document(int length, std::uint64_t key,
                                                 int vocabulary = 61) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < length; ++i)
    ids.push_back(static_cast<std::int32_t>(random_below(key, i, vocabulary)));
  return ids;
}

inline data::StepBatch step_of(std::vector<data::MicroBatch> micro_batches) {
  data::StepBatch step;
  for (data::MicroBatch& batch : micro_batches) {
    step.tokens += batch.tokens;
    step.target_tokens += batch.target_tokens;
    step.micro_batches.push_back(std::move(batch));
  }
  return step;
}

// Whole rows, packed rows, padded rows: three micro-batches of 2 x 16.
inline data::StepBatch mixed_step() {
  return step_of(
      {packed_batch(16, {{random_document(16, 1)}, {random_document(16, 2)}}),
       packed_batch(16, {{random_document(5, 3), random_document(11, 4)}, {random_document(9, 5)}}),
       packed_batch(16, {{random_document(3, 6)}, {random_document(16, 7)}})});
}

}  // namespace zinf::model
