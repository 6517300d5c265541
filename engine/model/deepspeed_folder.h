// DeepSpeed's checkpoints are pickles, which could run code: they are recognised and never read.
#pragma once

#include <string>

namespace zinf::model {

// Error(kUsage) naming DeepSpeed's own converter when the folder is such a checkpoint. what: of the
// folder in the message, "model folder".
void refuse_deepspeed(const std::string& folder, const std::string& what);

}  // namespace zinf::model
