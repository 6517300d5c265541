// Model names: a folder, or a Hub id ("org/name") whose snapshot lies in the local cache. Never
// uses the network.
#pragma once

#include <string>

namespace zinf::model {

// The folder that `path_or_id` means: itself (relative paths against `base`, "" for the working
// folder), or the snapshot that refs/main names in HF_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or
// ~/.cache/huggingface/hub, whichever is set first. Else Error(kUsage) with the exact download
// command.
std::string resolve_model_path(const std::string& path_or_id, const std::string& base = "");

}  // namespace zinf::model
