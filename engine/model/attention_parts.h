// How a micro-batch's attention is cut into calls. Private to tape_attention.cc and
// dropout_attention.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/batch_view.h"

namespace zinf::model {

// Queries that are computed in one call, and the keys that they may see.
struct AttentionPart {
  std::int64_t first, length;          // queries: from this position of the micro-batch, per row
  std::int64_t key_first, key_length;  // keys and values
  std::int64_t rows = 1;
  bool masked = false;  // by the window; else plainly causal, queries and keys being the same
};

// All rows in one call when each is one document; else one call per document, which then sees
// nothing else. A window cuts long documents into blocks of its own size, so that masks stay small.
std::vector<AttentionPart> attention_parts(const BatchView& batch, std::int64_t window);

}  // namespace zinf::model
