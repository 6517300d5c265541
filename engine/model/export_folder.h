// An export's folder: written aside, published whole; and the source's files that go along. Private
// to hf_export.
#pragma once

#include <string>
#include <vector>

#include "engine/base/bytes.h"

namespace zinf::model {

// "<path>.partial" until publish() renames it; removed by the destructor when that has not
// happened.
class ExportFolder {
 public:
  // Error(kUsage) when `path` exists and is not an empty folder.
  explicit ExportFolder(const std::string& path);
  ~ExportFolder();
  ExportFolder(const ExportFolder&) = delete;
  ExportFolder& operator=(const ExportFolder&) = delete;

  // Error(kDoesNotFit) when the file system has less free.
  void check_space(Bytes needed) const;
  // Makes the empty folder and returns its path; what an interrupted export left there goes.
  const std::string& create();
  // Syncs and renames; returns the final path.
  std::string publish();

 private:
  std::string final_, partial_, parent_;
  bool created_ = false;
};

struct SideFile {
  std::string name;  // relative to the model folder
  Bytes bytes = 0;
};
// Tokenizer, chat templates, generation settings, licence: all that is neither weights nor
// config.json nor hidden.
std::vector<SideFile> list_side_files(const std::string& model_folder);
void copy_side_file(const std::string& from_folder, const std::string& to_folder,
                    const SideFile& file);

}  // namespace zinf::model
