#include "engine/model/attention_parts.h"

#include <algorithm>

namespace zinf::model {

std::vector<AttentionPart> attention_parts(const BatchView& batch, std::int64_t window) {
  if (batch.whole_rows && (window <= 0 || batch.length <= window)) {
    return {{0, batch.length, 0, batch.length, batch.rows}};
  }
  std::vector<AttentionPart> parts;
  for (const Segment& segment : batch.segments) {
    const std::int64_t first =
        static_cast<std::int64_t>(segment.row) * batch.length + segment.start;
    if (window <= 0 || segment.length <= window) {
      parts.push_back({first, segment.length, first, segment.length});
      continue;
    }
    for (std::int64_t start = 0; start < segment.length; start += window) {
      const std::int64_t length = std::min<std::int64_t>(window, segment.length - start);
      const std::int64_t key_start = std::max<std::int64_t>(0, start - window + 1);
      parts.push_back(
          {first + start, length, first + key_start, start + length - key_start, 1, true});
    }
  }
  return parts;
}

}  // namespace zinf::model
