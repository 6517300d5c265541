// Kept checkpoints: copies of older commits, each an area of its own with the layout of the run's
// area and a manifest of its own. Whole or absent: a copy is made under a temporary name, made
// durable and renamed on every drive, and its manifest comes last.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "nvme/area_mark.h"
#include "nvme/store.h"

namespace zinf::checkpoint {

// The area of the run that keeps them, and the folders that hold it and them now.
struct RunAt {
  std::string area;
  std::vector<std::string> drives;
};

// Not thread-safe; one process changes a run's kept checkpoints at a time.
class KeptCheckpoints {
 public:
  // owners: the run's, by whose mark copies that lie elsewhere than the run now are known as its
  // own; only for who removes.
  explicit KeptCheckpoints(std::string run_folder, std::vector<nvme::AreaOwner> owners = {})
      : folder_(std::move(run_folder)), manifests_(folder_, "kept-"), owners_(std::move(owners)) {}

  // Name of the area that holds the copy.
  static std::string area_name(const std::string& run_area, std::int64_t step);

  // Ascending; only those whose manifest is there.
  std::vector<std::int64_t> steps() const { return manifests_.steps(); }
  // Error(kUsage): not kept; the message lists those that are. Error(kFailed): damaged manifest.
  Manifest manifest(std::int64_t step) const;
  const ManifestFolder& manifests() const { return manifests_; }

  struct Made {
    Bytes bytes = 0;
    bool cloned = false;
    bool whole = false;  // false: go_on said to give up
  };
  // Copies the manifest's slot. ranges: where its bytes lie in the drives' files. pages: the
  // manifest's page table. go_on: see nvme/area_copy.h, over all drives. A copy of the same step is
  // replaced.
  Made make(const Manifest& live, const std::string& pages,
            const std::vector<nvme::FileRange>& ranges,
            const std::function<bool(Bytes done)>& go_on) const;

  // After the copy of `newest` is whole: keeps the `count` newest up to it, and drops the rest.
  // Copies of later steps belong to a future that was given up. Returns the steps dropped.
  std::vector<std::int64_t> prune(const RunAt& run, std::int64_t newest, std::int64_t count) const;
  void remove(const RunAt& run, std::int64_t step) const;
  // Removes what a killed process left unfinished in the drives' folders, and with `all` every
  // kept checkpoint.
  void clean(const RunAt& run, bool all) const;

 private:
  bool is_own(const nvme::AreaMark& mark, const std::string& place) const;

  std::string folder_;
  ManifestFolder manifests_;
  std::vector<nvme::AreaOwner> owners_;
};

}  // namespace zinf::checkpoint
