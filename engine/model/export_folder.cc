#include "engine/model/export_folder.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/model/posix_file.h"

namespace zinf::model {
namespace {

namespace fs = std::filesystem;

// Weights in any format, which the export replaces, and what half-done downloads leave.
constexpr const char* kNotCopied[] = {".safetensors", ".safetensors.index.json",
                                      ".bin",         ".bin.index.json",
                                      ".pt",          ".pth",
                                      ".ckpt",        ".pkl",
                                      ".pickle",      ".npz",
                                      ".gguf",        ".ggml",
                                      ".h5",          ".msgpack",
                                      ".ot",          ".onnx",
                                      ".onnx_data",   ".tflite",
                                      ".partial",     ".incomplete"};

bool is_weight_file(const std::string& name) {
  for (const std::string end : kNotCopied) {
    if (name.size() >= end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0)
      return true;
  }
  return false;
}

}  // namespace

ExportFolder::ExportFolder(const std::string& path) {
  fs::path final = fs::path(path).lexically_normal();
  if (!final.has_filename()) final = final.parent_path();  // "out/"
  final_ = final.string();
  partial_ = final_ + ".partial";
  parent_ = final.parent_path().empty() ? "." : final.parent_path().string();
  std::error_code ignored;
  const bool taken = fs::exists(fs::symlink_status(final, ignored)) &&
                     !(fs::is_directory(final, ignored) && fs::is_empty(final, ignored));
  if (taken || final_.empty()) {
    throw Error(ErrorKind::kUsage,
                str("cannot export to ", path, ": it exists and is not an empty folder"),
                "give a new folder, or remove this one");
  }
}

ExportFolder::~ExportFolder() {
  std::error_code ignored;
  if (created_) fs::remove_all(partial_, ignored);
}

void ExportFolder::check_space(Bytes needed) const {
  std::error_code ignored;
  fs::path place = parent_;
  while (!fs::exists(place, ignored) && place.has_relative_path()) {
    place = place.parent_path().empty() ? fs::path(".") : place.parent_path();
  }
  struct statvfs info {};
  if (::statvfs(place.c_str(), &info) != 0) return;  // unknown: the writes will tell
  const Bytes free = static_cast<Bytes>(info.f_bavail) * info.f_frsize;
  if (needed <= free) return;
  throw Error(ErrorKind::kDoesNotFit,
              str("the export to ", final_, " needs ", format_bytes(needed), " but only ",
                  format_bytes(free), " are free there"),
              "free some space or export to another drive");
}

const std::string& ExportFolder::create() {
  std::error_code error;
  if (fs::exists(partial_, error))
    log::info(str("removing ", partial_, ", left by an interrupted export"));
  fs::remove_all(partial_, error);
  if (!error) fs::create_directories(partial_, error);
  if (error)
    throw Error(ErrorKind::kFailed, str("cannot create folder ", partial_, ": ", error.message()));
  created_ = true;
  return partial_;
}

std::string ExportFolder::publish() {
  sync_folder(partial_);
  if (std::rename(partial_.c_str(), final_.c_str()) != 0) {
    const int error = errno;
    throw Error(ErrorKind::kFailed,
                str("renaming ", partial_, " to ", final_, ": ", std::strerror(error)));
  }
  created_ = false;
  sync_folder(parent_);
  return final_;
}

std::vector<SideFile> list_side_files(const std::string& model_folder) {
  std::vector<SideFile> files;
  const fs::path root = model_folder;
  for (const fs::path& place : {root, root / "additional_chat_templates"}) {
    std::error_code error;
    for (fs::directory_iterator entry(place, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      std::error_code ignored;
      if (!entry->is_regular_file(ignored) || name.front() == '.' || is_weight_file(name)) continue;
      if (place == root && name == "config.json") continue;
      files.push_back({entry->path().lexically_relative(root).string(), entry->file_size(ignored)});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SideFile& a, const SideFile& b) { return a.name < b.name; });
  return files;
}

void copy_side_file(const std::string& from_folder, const std::string& to_folder,
                    const SideFile& file) {
  const fs::path to = fs::path(to_folder) / file.name;
  fs::create_directories(to.parent_path());
  const PosixFile source = PosixFile::open_read((fs::path(from_folder) / file.name).string());
  PosixFile target = PosixFile::create(to.string());
  std::vector<char> buffer(kMiB);
  const Bytes size = source.size();
  for (Bytes done = 0; done < size;) {
    const Bytes count = std::min<Bytes>(buffer.size(), size - done);
    source.read(done, count, buffer.data());
    target.append(buffer.data(), count);
    done += count;
  }
  target.sync();
}

}  // namespace zinf::model
