// Text into token files by tools/prepare_data.py, kept in a cache by content.
#pragma once

#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::data {

struct PrepareTool {
  std::string python;   // interpreter with tokenizers, jinja2, numpy (and pyarrow for parquet)
  std::string script;   // prepare_data.py
  double patience = 0;  // seconds that it may say nothing, then it hangs; 0: for ever
};

// python: `wanted` if not empty, else $ZINF_PYTHON, else .venv/bin/python beside tools/, in the
// tree that the running program lies in or was built from. Error(kUsage) lists where it looked.
PrepareTool find_prepare_tool(const std::string& wanted = "");

struct PrepareRequest {
  std::vector<std::string> sources;  // files, patterns already expanded
  std::string format = "auto";       // auto, text, messages, conversations, alpaca
  std::string model_folder;          // with the tokenizer
  bool train_on_prompt = false;
  bool append_eos = false;
  std::string cache_folder;  // created with mode 0700 when missing
  std::string python;        // as for find_prepare_tool
  double patience = 0;       // of the tool
};

struct Prepared {
  std::string path;  // token file
  bool cached = false;
};

// 32 hexadecimal digits over the contents of sources and tokenizer files, the options and the
// version of the rules: equal keys mean equal token files.
std::string cache_key(const PrepareRequest& request);

// The token file for the request, made by the tool if the cache lacks it (its progress goes to
// stderr). Two processes that want the same file make it once. The tool's error becomes an Error:
// exit code 2 kUsage, else kFailed.
Prepared prepare(const PrepareRequest& request);

// Every pattern's files, sorted, in the order of the patterns. Error(kUsage): nothing matches.
std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

}  // namespace zinf::data
