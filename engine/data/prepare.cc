#include "engine/data/prepare.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/signals.h"
#include "engine/base/str.h"
#include "engine/data/table_file.h"

namespace zinf::data {
namespace {

namespace fs = std::filesystem;

// Part of the cache key: goes up when the tool gives other tokens or masks for the same input.
constexpr const char* kRules = "2";

// Everything in a model folder that decides about tokens and masks.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "chat_template.jinja",
                                           "vocab.json",
                                           "merges.txt"};

std::string hash_of(const std::string& text) {
  Hasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.hex();
}

std::string tokenizer_hash(const std::string& folder) {
  std::string all;
  for (const char* name : kTokenizerFiles) {
    const fs::path path = fs::path(folder) / name;
    if (fs::is_regular_file(path))
      all += str(name, " ", identify(FileReader(path.string())).hash, "\n");
  }
  return hash_of(all);
}

// File names matter to the format (.txt or .jsonl), not to the content: only the ending counts.
std::string source_hash(const std::vector<std::string>& sources) {
  std::string all;
  for (const std::string& source : sources) {
    const SourceIdentity found = identify(FileReader(source));
    const std::string name = fs::path(source).filename().string();
    const auto dot = name.find('.');
    all += str(dot == std::string::npos ? "" : name.substr(dot), " ", found.bytes, " ", found.hash,
               "\n");
  }
  return hash_of(all);
}

// Held while the file is made, so that a second process waits for it instead of making it too.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (fd_ < 0)
      throw Error(ErrorKind::kFailed, str("can't open ", path, ": ", std::strerror(errno)));
    bool told = false;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (const int signal = stop_requested(); signal != 0)
        throw Error(ErrorKind::kFailed, str("stopped by ", signal_name(signal),
                                            " while another process prepares the same data"));
      if (!told)
        log::info(str("waits for another process that prepares the same data (", path, ")"));
      told = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  ~CacheLock() { ::close(fd_); }
  CacheLock(const CacheLock&) = delete;

 private:
  int fd_;
};

std::string last_error(const std::string& talk) {
  const auto at = talk.rfind("error: ");
  if (at != std::string::npos && (at == 0 || talk[at - 1] == '\n')) {
    std::string message = talk.substr(at + 7);
    while (!message.empty() && message.back() == '\n') message.pop_back();
    return message;
  }
  // A traceback: its last line says what happened.
  const auto end = talk.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const auto begin = talk.rfind('\n', end);
  return talk.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? -1 : begin));
}

}  // namespace

void check_child(const ChildResult& result, const std::string& doing) {
  if (result.exit_code == 0) return;
  if (const int signal = stop_requested(); signal != 0) {
    throw Error(ErrorKind::kFailed, str(doing, " was stopped by ", signal_name(signal)));
  }
  if (result.silent_seconds > 0) {
    throw Error(
        ErrorKind::kFailed,
        str("the data lane hangs: ", doing, ": the tool has said nothing for ",
            static_cast<long long>(result.silent_seconds), " s, longer than train.stall_timeout"));
  }
  if (result.exit_code > 128) {
    throw Error(
        ErrorKind::kFailed,
        str(doing, ": the data preparation was ended by signal ", result.exit_code - 128),
        result.exit_code == 128 + 9 ? "often the system's way to say that memory ran out" : "");
  }
  if (result.exit_code == 2) throw Error(ErrorKind::kUsage, last_error(result.talk));
  const bool module = result.talk.find("ModuleNotFoundError") != std::string::npos;
  throw Error(ErrorKind::kFailed,
              str(doing, " failed (exit code ", result.exit_code, "): ", last_error(result.talk)),
              module
                  ? "tools/setup.sh installs what is missing; ZINF_PYTHON names another interpreter"
                  : "");
}

PrepareTool find_prepare_tool(const std::string& wanted) {
  std::vector<fs::path> roots;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (fs::path folder = program.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    roots.push_back(folder);
  }
  roots.emplace_back(ZINF_SOURCE_FOLDER);
  PrepareTool tool;
  fs::path home;
  for (const fs::path& root : roots) {
    if (!fs::is_regular_file(root / "tools/prepare_data.py", ignored)) continue;
    tool.script = (root / "tools/prepare_data.py").string();
    home = root;
    break;
  }
  if (tool.script.empty()) {
    throw Error(ErrorKind::kUsage, str("tools/prepare_data.py was found neither above ",
                                       program.string(), " nor in ", ZINF_SOURCE_FOLDER));
  }
  const char* variable = std::getenv("ZINF_PYTHON");
  if (!wanted.empty()) {
    tool.python = wanted;
  } else if (variable != nullptr && *variable != '\0') {
    tool.python = variable;
  } else {
    tool.python = (home / ".venv/bin/python").string();
    if (::access(tool.python.c_str(), X_OK) != 0) {
      throw Error(ErrorKind::kUsage,
                  "texts need the Python environment, and " + tool.python + " does not exist",
                  "run tools/setup.sh, or set ZINF_PYTHON to an interpreter with tokenizers, "
                  "jinja2 and numpy");
    }
  }
  return tool;
}

std::string cache_key(const PrepareRequest& request) {
  return hash_of(str("rules ", kRules, "\n", source_hash(request.sources), "\n",
                     tokenizer_hash(request.model_folder), "\n", request.format,
                     request.train_on_prompt ? " prompt" : "", request.append_eos ? " eos" : ""));
}

Prepared prepare(const PrepareRequest& request) {
  std::error_code failed;
  if (fs::create_directories(request.cache_folder, failed)) {
    fs::permissions(request.cache_folder, fs::perms::owner_all, failed);
  }
  if (failed) {
    throw Error(ErrorKind::kFailed,
                str("can't create the token cache ", request.cache_folder, ": ", failed.message()));
  }
  const std::string key = cache_key(request);
  const std::string path = (fs::path(request.cache_folder) / (key + ".tokens")).string();
  if (fs::is_regular_file(path)) return {path, true};
  const CacheLock lock((fs::path(request.cache_folder) / (key + ".lock")).string());
  if (fs::is_regular_file(path)) return {path, true};

  PrepareTool tool = find_prepare_tool(request.python);
  tool.patience = request.patience;
  std::vector<std::string> command{tool.python,
                                   tool.script,
                                   "build",
                                   "--model",
                                   request.model_folder,
                                   "--out",
                                   path,
                                   "--format",
                                   request.format,
                                   "--source-hash",
                                   source_hash(request.sources),
                                   "--tokenizer-hash",
                                   tokenizer_hash(request.model_folder)};
  if (request.train_on_prompt) command.push_back("--train-on-prompt");
  if (request.append_eos) command.push_back("--append-eos");
  command.push_back("--");
  command.insert(command.end(), request.sources.begin(), request.sources.end());
  log::info(str("preparing texts with the tokenizer of ", request.model_folder));
  check_child(run_child(command, {.relay_talk = true, .patience = tool.patience}),
              "preparing " + request.sources[0]);
  if (!fs::is_regular_file(path))
    throw Error(ErrorKind::kFailed, "the data preparation left no file " + path);
  return {path, false};
}

std::vector<std::string> expand_paths(const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    std::error_code ignored;
    if (fs::is_regular_file(pattern, ignored)) {  // also names that hold a bracket
      paths.push_back(pattern);
      continue;
    }
    if (fs::is_directory(pattern, ignored)) {
      throw Error(ErrorKind::kUsage, pattern + " is a folder, expected files",
                  "for all its texts: " + pattern + "/*.txt");
    }
    const std::size_t before = paths.size();
    glob_t found{};
    const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
    for (std::size_t i = 0; code == 0 && i < found.gl_pathc; ++i) {
      if (fs::is_regular_file(found.gl_pathv[i], ignored)) paths.emplace_back(found.gl_pathv[i]);
    }
    const bool none = code != 0 || found.gl_pathc == 0;
    ::globfree(&found);
    if (paths.size() > before) continue;
    const bool magic = pattern.find_first_of("*?[") != std::string::npos;
    throw Error(ErrorKind::kUsage, magic  ? "no file matches " + pattern
                                   : none ? pattern + " does not exist"
                                          : pattern + " is no regular file");
  }
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    if (!seen.insert(path).second)
      log::warning_once(str(path, " is named more than once: it is read each time"));
  }
  return paths;
}

}  // namespace zinf::data
