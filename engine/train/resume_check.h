// Whether a config, its model and its data can go on from a commit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/run_config.h"
#include "swap/tiers.h"

namespace zinf::train {

// The first file whose content differs, as it was and as it is; a missing one is empty. Names don't
// count: files may move.
struct ChangedFile {
  checkpoint::DataFile before, after;
};
std::optional<ChangedFile> changed_file(const std::vector<checkpoint::DataFile>& before,
                                        const std::vector<checkpoint::DataFile>& after);

// Error(kUsage) where one differs.
void require_data(const checkpoint::Manifest& manifest,
                  const std::vector<checkpoint::DataFile>& now);

// Every difference, by what it means. Lines are "KEY: BEFORE -> AFTER", ready to print.
struct ResumeChanges {
  std::vector<std::string> harmless;    // changes no result
  std::vector<std::string> meaningful;  // changes what is trained
  std::vector<std::string> last_bits;   // the same mathematics, perhaps other last bits
};
ResumeChanges compare(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                      const config::RunConfig& config);
// Of them what lies in the machine and its libraries: where there is none, the bits are the same.
std::vector<std::string> machine_changes(const checkpoint::Manifest& manifest,
                                         const checkpoint::Manifest& now);
// Whether there is none, of this process.
bool of_this_machine(const checkpoint::Manifest& manifest);

// Error(kUsage): a run does not become shorter than it is.
void check_length(const checkpoint::Manifest& manifest, std::int64_t steps);

// Error(kUsage): what makes going on impossible (another model, format, layout, area, data), or,
// without `allow`, every difference that changes what is trained. All else is logged.
// copied: the state will be copied into the area from elsewhere, so that drives and slots may be
// others.
void check_resume(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                  const config::RunConfig& config, bool allow, bool copied);

// The commit to go on from, if there is one; says what is skipped. verified_area: the run's, whose
// commits need their page tables; "" without io.verify.
// Error(kFailed), with `needed`: there are manifests, and none of them will do.
checkpoint::ManifestFolder::Found newest_commit(const checkpoint::ManifestFolder& manifests,
                                                const std::string& verified_area, bool needed);

// Going on from the newest commit but one (found.skipped says why): the step after the newest may
// have begun to overwrite it. Error(kFailed) unless every page is as `pages`, its page table, says.
// Without checksums that can't be told, which is said; with `verify` they are asked for.
void check_older_commit(const checkpoint::ManifestFolder::Found& found, swap::Tiers& tiers,
                        const std::string& pages, bool verify);

}  // namespace zinf::train
