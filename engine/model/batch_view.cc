#include "engine/model/batch_view.h"

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {

BatchView view_batch(const data::MicroBatch& batch) {
  BatchView view;
  view.batch = &batch;
  view.rows = batch.rows;
  view.length = batch.length;
  view.whole_rows = true;
  ZINF_CHECK(batch.rows > 0 && batch.length > 0,
             str("micro-batch of ", batch.rows, " x ", batch.length));
  if (batch.documents.empty()) return view;  // regression
  const auto positions = static_cast<std::size_t>(view.positions());
  ZINF_CHECK(batch.documents.size() == positions && batch.positions.size() == positions &&
                 batch.targets.size() == positions,
             str("micro-batch of ", batch.rows, " x ", batch.length, ": documents ",
                 batch.documents.size(), ", positions ", batch.positions.size(), ", targets ",
                 batch.targets.size()));
  for (int row = 0; row < batch.rows; ++row) {
    const std::int32_t* documents =
        batch.documents.data() + static_cast<std::ptrdiff_t>(row) * batch.length;
    for (int start = 0; start < batch.length;) {
      int end = start + 1;
      while (end < batch.length && documents[end] == documents[start]) ++end;
      if (documents[start] >= 0) view.segments.push_back({row, start, end - start});
      view.whole_rows = view.whole_rows && documents[start] >= 0 && end - start == batch.length;
      start = end;
    }
  }
  return view;
}

}  // namespace zinf::model
