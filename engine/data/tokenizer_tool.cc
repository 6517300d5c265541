#include "engine/data/tokenizer_tool.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/str.h"

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

// As the tool shows it: position i's target is token i + 1.
std::string show_ids(std::span<const std::int32_t> of_row, std::span<const std::int32_t> targets) {
  std::vector<std::int32_t> ids(of_row.begin(), of_row.end());
  if (!targets.empty() && targets.back() >= 0) ids.push_back(targets.back());
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    const auto learnt = [&](std::size_t i) { return i > 0 && targets[i - 1] >= 0; };
    for (end = begin + 1; end < ids.size() && learnt(end) == learnt(begin);) ++end;
    char head[48];
    std::snprintf(head, sizeof head, "%s %5zu tokens  ", learnt(begin) ? "learn" : "read ",
                  end - begin);
    text += head + json_list(std::span(ids).subspan(begin, end - begin)) + "\n";
  }
  return text;
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
  const std::span ids(batch.ids.data() + begin, length);
  const std::span targets(batch.targets.data() + begin, length);
  if (!std::filesystem::exists(model_folder + "/tokenizer.json")) return show_ids(ids, targets);
  return ask(tool, "show", model_folder,
             str("{\"ids\":", json_list(ids), ",\"targets\":", json_list(targets), "}"));
}

}  // namespace zinf::data
