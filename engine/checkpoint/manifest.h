// Numbered manifests: what makes the bytes in a state area a commit. docs/formats/manifest.md
// describes the file.
//
// manifest-<step>.json is written aside, synced and renamed, after every byte that it speaks of is
// durable. The newest one that reads whole is the state of the run. A kill at any moment leaves the
// old or the new.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu_optim/loss_scaler.h"
#include "engine/base/bytes.h"

namespace zinf::checkpoint {

// One state's place in the area, in the area's order.
struct ManifestExtent {
  std::string piece;
  std::string state;
  std::int64_t elements = 0;
  Bytes bytes = 0;
  int slots = 1;
  bool operator==(const ManifestExtent&) const = default;
};

struct DataFile {
  std::string path;
  Bytes bytes = 0;
  std::string hash;
  bool operator==(const DataFile&) const = default;
};

struct Manifest {
  static constexpr int kFormat = 1;
  std::int64_t step = 0;   // steps done
  std::int64_t steps = 0;  // of the whole run, as planned
  // The step after which the data began; above 0 once data.on_change has restarted it. What step s
  // trains on is a function of s - data_start.
  std::int64_t data_start = 0;
  std::int64_t version = 0;  // updates applied (skipped steps do not count)
  int slot = 0;              // which slot of the mutable extents holds this state
  bool moments_are_zero = true;
  bool finished = false;
  std::string area;                 // name of the area on every drive
  std::vector<std::string> drives;  // folders that hold it, in order
  std::vector<ManifestExtent> extents;
  std::string model;   // family and sizes: a hash over pieces, tensors and shapes
  std::string format;  // "adamw bf16 split fp32"
  std::vector<DataFile> data;
  std::string resolved_config;  // YAML
  // What the bits may depend on; a difference is said at resume.
  std::string library;  // LibTorch's version
  std::string instruction_set;
  int compute_threads = 0;
  int micro_batch = 0;
  int accumulation = 0;
  int world = 1;
  std::string pages;  // hash of the page table's file; empty: the run does not verify
  double loss = 0;    // of the last step
  std::optional<optim::LossScaleState> loss_scale;  // fp16: for the step to come
};

// As text, with a checksum over everything before it.
std::string manifest_text(const Manifest& manifest);
// Error(kFailed) says what is wrong: torn, damaged, of another format version.
Manifest parse_manifest(const std::string& text, const std::string& path);

// Folder of the run's manifests. One writer at a time.
class ManifestFolder {
 public:
  // prefix: of the files' names; "" for the run's own state.
  explicit ManifestFolder(std::string run_folder, std::string prefix = "")
      : folder_(std::move(run_folder)), prefix_(std::move(prefix)) {}

  // Durable when it returns. Manifests older than the newest `keep` are removed afterwards.
  // pages: the page table of the state's extents (empty: none); it is written first, as
  // pages-<step>.bin.
  void publish(Manifest manifest, const std::string& pages = "", int keep = 2) const;
  // The page table that the manifest names; empty: it names none. Error(kFailed): missing or
  // damaged.
  std::string pages(const Manifest& manifest) const;

  struct Found {
    std::optional<Manifest> newest;
    std::vector<std::string> skipped;  // "manifest-12.json: damaged: ...", newer than the one found
    // The newest manifest that reads whole, when it was skipped for its page table.
    std::optional<std::int64_t> without_pages;
  };
  // area: manifests that name it and whose page table is missing or damaged are skipped too; those
  // of another run are the caller's to refuse.
  Found find(const std::string& area = "") const;
  // Error(kFailed): missing, torn, damaged, of another format version.
  Manifest read(std::int64_t step) const;
  std::vector<std::int64_t> steps() const;  // ascending
  // Whether there is any manifest file.
  bool any() const;
  void remove(std::int64_t step) const;
  // Every manifest after `step`, for good: gone before anything is written to the slots that they
  // name. The newest goes last, so that a kill leaves it or none of them. Error(kFailed).
  void remove_after(std::int64_t step) const;
  void remove_all() const { remove_after(-1); }
  std::string path(std::int64_t step) const;
  const std::string& folder() const { return folder_; }
  std::string pages_path(std::int64_t step) const;

 private:
  std::string folder_, prefix_;
};

}  // namespace zinf::checkpoint
