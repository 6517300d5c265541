// Text from and to ids for people to read, through tools/prepare_data.py: prompts, samples,
// --dry-run. Each call starts the tool once (about half a second). Errors as in prepare.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/data/batch.h"
#include "engine/data/prepare.h"

namespace zinf::data {

// With the special tokens that the tokenizer puts around a text.
std::vector<std::int32_t> encode_text(const PrepareTool& tool, const std::string& model_folder,
                                      const std::string& text);
std::string decode_ids(const PrepareTool& tool, const std::string& model_folder,
                       std::span<const std::int32_t> ids);

// The first document of a micro-batch's row, one line per run of tokens that is only read or that
// is learnt, e.g. `learn     3 tokens  "Green.<|im_end|>"`.
// Where the model's folder has no tokenizer, ids take the text's place.
std::string show_sample(const PrepareTool& tool, const std::string& model_folder,
                        const MicroBatch& batch, int row);

}  // namespace zinf::data
