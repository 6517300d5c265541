// From trees to a flat list of settings: unknown and misplaced keys, aliases and sections given as
// one word.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/config/load.h"
#include "engine/config/node.h"
#include "engine/config/options.h"
#include "engine/config/text.h"

namespace zinf::config {

// One text that keys come from.
struct Source {
  std::string name;            // for messages: the file as the user gave it, or "--set a.b=c"
  std::filesystem::path base;  // relative paths
  int level = 1;  // higher wins; files are 1, --set 2 and up, the command line's own options above
  bool is_file = true;
};

struct Setting {
  const Option* option = nullptr;
  std::string path;     // as written; may be an alias
  Node value;           // translated from the alias's way of saying it
  std::string written;  // as written, for messages
  std::string where;    // "run.yaml:12" or "--set a.b=c"
  std::filesystem::path base;
  int level = 1;

  bool is_auto() const { return value.is_scalar() && lower(value.text) == "auto"; }
  // "run.yaml:12", or "ds.json:7: zero_optimization.offload_param.device" when the key was another.
  std::string origin() const;
};

// Mistakes are gathered so that a user sees all of them at once, in the order of the file.
class Problems {
 public:
  void add(const std::string& where, const std::string& text, const std::string& hint = "");
  void add(const std::string& line);
  // Throws Error(kUsage) when there is any.
  void throw_if_any() const;
  bool empty() const { return problems_.empty(); }

 private:
  struct Problem {
    std::string file;  // "" for --set and the like, which come last
    int line = 0;
    std::string text;
  };
  std::vector<Problem> problems_;
};

struct Collected {
  std::vector<Setting> settings;
  std::vector<Note> notes;
  Problems problems;
};

// Adds all settings of the tree `root`. `deepspeed: FILE` stays a setting; load() follows it.
void collect(const Node& root, const Source& source, Collected& out);

// "a.b=VALUE"; VALUE is YAML.
void collect_set(const std::string& text, const std::filesystem::path& base, int level,
                 Collected& out);

}  // namespace zinf::config
