// Reads every state of a stored run and looks for what no healthy run commits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "engine/train/stored_run.h"

namespace zinf::cli {

struct StatesReport {
  Bytes bytes = 0;              // read
  std::int64_t states = 0;      // of all pieces
  std::int64_t unreadable = 0;  // ranges whose reading failed: a damaged page, an I/O error
  // "layer 3: exp_avg: 2 values are not finite, the first is element 17"
  std::vector<std::string> problems;
};

// on_read(done, all) before every part, in bytes. Goes on after a part that can't be read; its
// problem names file, offset and page.
StatesReport verify_states(train::StoredRun& stored,
                           const std::function<void(Bytes, Bytes)>& on_read);

// Values of `count` elements of a state, as stored, that are NaN or infinite. first: index of the
// first of them, or untouched.
std::int64_t count_non_finite(const optim::StateSpec& state, optim::WeightDtype weight,
                              const std::byte* bytes, std::int64_t count, std::int64_t& first);

}  // namespace zinf::cli
