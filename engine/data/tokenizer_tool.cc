#include "engine/data/tokenizer_tool.h"

#include <charconv>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/child_process.h"

namespace zinf::data {

void check_child(const ChildResult& result, const std::string& doing);  // prepare.cc

namespace {

std::string json_list(std::span<const std::int32_t> values) {
  std::string text = "[";
  for (const std::int32_t value : values)
    text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

std::string ask(const PrepareTool& tool, const char* command, const std::string& model_folder,
                const std::string& input) {
  const ChildResult result = run_child({tool.python, tool.script, command, "--model", model_folder},
                                       {.input = input, .patience = tool.patience});
  check_child(result, str("tokenizer of ", model_folder));
  return result.output;
}

}  // namespace

std::vector<std::int32_t> encode_text(const PrepareTool& tool, const std::string& model_folder,
                                      const std::string& text) {
  const std::string output = ask(tool, "encode", model_folder, text);
  std::vector<std::int32_t> ids;
  const char* at = output.data();
  const char* end = at + output.size();
  while (at != end) {
    std::int32_t id = 0;
    const auto [behind, code] = std::from_chars(at, end, id);
    if (code == std::errc()) ids.push_back(id);
    at = code == std::errc() ? behind : at + 1;
  }
  return ids;
}

std::string decode_ids(const PrepareTool& tool, const std::string& model_folder,
                       std::span<const std::int32_t> ids) {
  return ask(tool, "decode", model_folder, json_list(ids));
}

std::string show_sample(const PrepareTool& tool, const std::string& model_folder,
                        const MicroBatch& batch, int row) {
  ZINF_CHECK(row >= 0 && row < batch.rows && !batch.ids.empty(),
             str("row ", row, " of ", batch.rows));
  const std::size_t begin = static_cast<std::size_t>(row) * batch.length;
  std::size_t length = 0;
  while (length < static_cast<std::size_t>(batch.length) && batch.documents[begin + length] == 0)
    ++length;
  return ask(tool, "show", model_folder,
             str("{\"ids\":", json_list({batch.ids.data() + begin, length}),
                 ",\"targets\":", json_list({batch.targets.data() + begin, length}), "}"));
}

}  // namespace zinf::data
