#include "engine/train/resume_check.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/config/load.h"
#include "engine/config/reference.h"
#include "engine/train/commit.h"
#include "engine/train/read_slot.h"
#include "engine/train/relocation.h"
#include "engine/train/run_area.h"
#include "nvme/areas.h"

namespace zinf::train {

namespace {

// Keys, or sections, whose change moves bytes or says something, and changes no result. A key that
// is not listed anywhere is taken to mean something.
constexpr std::array<std::string_view, 17> kHarmless = {
    "model.path",
    "model.init",
    "data.train",
    "data.eval",
    "data.on_change",
    "train.on_nonfinite",
    "optimizer.threads",
    "train.stall_timeout",
    "eval.",
    "memory.",
    "placement",
    "step.",
    "io.",
    "checkpoint.",
    "export.",
    "output_dir",
    "zero_optimization.",
};

// Judged by the numbers that they come to, not by how they are written.
constexpr std::array<std::string_view, 5> kElsewhere = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "train.steps", "train.epochs"};

// What "auto" stands for in these shows in the state's format, which is compared.
constexpr std::array<std::string_view, 3> kInFormat = {"bf16.enabled", "fp16.enabled",
                                                       "optimizer.master_weights"};

template <std::size_t N>
bool listed(const std::array<std::string_view, N>& names, const std::string& key) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return name.back() == '.' || name == "placement" ? key.starts_with(name) : key == name;
  });
}

// Rates that depend on how long the whole run is.
bool schedule_follows_length(const config::SchedulerConfig& scheduler) {
  if (scheduler.total_num_steps) return false;
  switch (scheduler.type) {
    case config::SchedulerType::kConstant:
    case config::SchedulerType::kWarmupLR:
      return !scheduler.warmup_num_steps && scheduler.warmup_ratio > 0;
    default:
      return true;
  }
}

void compare_lengths(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                     const config::RunConfig& config, ResumeChanges& changes) {
  if (manifest.steps == now.steps) return;
  const std::string line = str("train.steps: ", manifest.steps, " -> ", now.steps);
  if (!schedule_follows_length(config.scheduler)) {
    changes.harmless.push_back(line);
    return;
  }
  const std::string stretched = line + ", which stretches the learning rate's schedule";
  // Typed for this very run: that is meant.
  const bool typed = config.origin("train.steps").starts_with("--");
  (typed ? changes.last_bits : changes.meaningful).push_back(stretched);
}

void compare_batches(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                     ResumeChanges& changes) {
  const auto text = [](const checkpoint::Manifest& m) {
    return str(m.micro_batch, " x ", m.accumulation);
  };
  if (text(manifest) == text(now)) return;
  const std::string line = str("micro-batch x accumulation: ", text(manifest), " -> ", text(now));
  const bool same_rows =
      manifest.micro_batch * manifest.accumulation == now.micro_batch * now.accumulation;
  (same_rows ? changes.last_bits : changes.meaningful).push_back(line);
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "; ") + line;
  return text;
}

// What the config says otherwise, most telling first: one of these keys may be the reason.
std::string changed_keys(const ResumeChanges& changes) {
  std::vector<std::string> lines = changes.meaningful;
  lines.insert(lines.end(), changes.harmless.begin(), changes.harmless.end());
  return lines.empty() ? "" : str("; what changed in the config: ", joined(lines));
}

// "layer 0 weight: 16384 bytes, 2 slots" of the first extent that differs.
std::string extent_text(const std::vector<checkpoint::ManifestExtent>& extents, std::size_t index) {
  if (index >= extents.size()) return str(extents.size(), " extents");
  const checkpoint::ManifestExtent& e = extents[index];
  return str(e.piece, " ", e.state, ": ", e.elements, " elements, ", e.bytes, " bytes, ", e.slots,
             e.slots == 1 ? " slot" : " slots");
}

void check_possible(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                    const ResumeChanges& changes, bool copied) {
  const auto refuse = [&](const std::string& what, const std::string& expected,
                          const std::string& found, const std::string& own = "model and config") {
    throw Error(ErrorKind::kUsage,
                str("resume: the run's ", what, " is ", expected, ", this one's is ", found,
                    changed_keys(changes)),
                str("give the run's own ", own, ", --fresh to start over, or another --run-dir"));
  };
  if (manifest.model != now.model)
    refuse("model (sizes, names, frozen tensors)", manifest.model, now.model);
  if (manifest.format != now.format)
    refuse("optimizer and state format", manifest.format, now.format);
  const auto same = [](checkpoint::ManifestExtent a, const checkpoint::ManifestExtent& b) {
    a.slots = b.slots;  // compared below, all at once
    return a == b;
  };
  const auto differs = std::mismatch(manifest.extents.begin(), manifest.extents.end(),
                                     now.extents.begin(), now.extents.end(), same);
  if (differs.first != manifest.extents.end() || differs.second != now.extents.end()) {
    const auto index = static_cast<std::size_t>(differs.first - manifest.extents.begin());
    refuse("layout of the state area", extent_text(manifest.extents, index),
           extent_text(now.extents, index));
  }
  if (copied) return;
  // The drives' folders may have other names now, as long as the area is there.
  const bool there = nvme::area_is_there(now.area, now.drives);
  if ((manifest.drives != now.drives && !there) || manifest.area != now.area ||
      slots_of(manifest) != slots_of(now)) {
    refuse("state area", str(drives_text(manifest.drives), " ", manifest.area),
           str(drives_text(now.drives), " ", now.area),
           "drives in memory.nvme, or those that its area was moved to");
  }
}

void check_data(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                const config::RunConfig& config) {
  if (config.data.on_change != config::OnChange::kRefuse) return;
  const std::optional<ChangedFile> changed = changed_file(manifest.data, now.data);
  if (!changed) return;
  throw Error(
      ErrorKind::kUsage,
      str("resume: the data changed: ", changed->before.path, " had hash ", changed->before.hash,
          ", now ", changed->after.path, " has ", changed->after.hash),
      "restore the data, or set data.on_change: restart to begin the new data from its start");
}

}  // namespace

std::optional<ChangedFile> changed_file(const std::vector<checkpoint::DataFile>& before,
                                        const std::vector<checkpoint::DataFile>& after) {
  for (std::size_t i = 0; i < std::max(before.size(), after.size()); ++i) {
    ChangedFile file;
    if (i < before.size()) file.before = before[i];
    if (i < after.size()) file.after = after[i];
    if (file.before.hash != file.after.hash || file.before.bytes != file.after.bytes) return file;
  }
  return std::nullopt;
}

void require_data(const checkpoint::Manifest& manifest,
                  const std::vector<checkpoint::DataFile>& now) {
  const auto changed = changed_file(manifest.data, now);
  if (!changed) return;
  throw Error(ErrorKind::kUsage,
              str("the data of step ", manifest.step, " changed: ", changed->before.path,
                  " had hash ", changed->before.hash),
              "restore it: the loss is that of this data's next batch");
}

ResumeChanges compare(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                      const config::RunConfig& config) {
  ResumeChanges changes;
  const config::RunConfig before =
      config::load_text(manifest.resolved_config, "the run's config").config;
  for (const config::Difference& difference : differences(before, config)) {
    if (listed(kElsewhere, difference.key)) continue;
    // Spelled out in one of them, and the same.
    if (difference.key == "optimizer.params.betas" &&
        before.optimizer.effective_betas() == config.optimizer.effective_betas())
      continue;
    const bool was_auto = difference.before == "auto" || difference.after == "auto";
    if (was_auto && listed(kInFormat, difference.key) && manifest.format == now.format) continue;
    const std::string line = str(difference.key, ": ", difference.before, " -> ", difference.after);
    (listed(kHarmless, difference.key) ? changes.harmless : changes.meaningful).push_back(line);
  }
  compare_lengths(manifest, now, config, changes);
  compare_batches(manifest, now, changes);
  const std::vector<std::string> machine = machine_changes(manifest, now);
  changes.last_bits.insert(changes.last_bits.end(), machine.begin(), machine.end());
  return changes;
}

std::vector<std::string> machine_changes(const checkpoint::Manifest& manifest,
                                         const checkpoint::Manifest& now) {
  std::vector<std::string> lines;
  const auto compared = [&](const char* what, const auto& was, const auto& is) {
    if (was != is) lines.push_back(str(what, ": ", was, " -> ", is));
  };
  compared("library", manifest.library, now.library);
  compared("instruction set", manifest.instruction_set, now.instruction_set);
  compared("compute threads", manifest.compute_threads, now.compute_threads);
  compared("ranks", manifest.world, now.world);
  return lines;
}

bool of_this_machine(const checkpoint::Manifest& manifest) {
  checkpoint::Manifest now;
  note_machine(now);
  return machine_changes(manifest, now).empty();
}

void check_length(const checkpoint::Manifest& manifest, std::int64_t steps) {
  if (steps >= manifest.step) return;
  throw Error(ErrorKind::kUsage,
              str("train.steps: expected at least the ", manifest.step,
                  " steps that the run has made, found ", steps),
              "give more steps, --resume-from STEP to go back to a kept checkpoint, or --fresh to "
              "start over");
}

void check_resume(const checkpoint::Manifest& manifest, const checkpoint::Manifest& now,
                  const config::RunConfig& config, bool allow, bool copied) {
  const ResumeChanges changes = compare(manifest, now, config);
  check_possible(manifest, now, changes, copied);
  for (const std::string& line : changes.harmless)
    log::info(str("resume: ", line, ", which changes no result"));
  for (const std::string& line : changes.last_bits)
    log::warning(str("resume: ", line, "; results may not be those of the run undisturbed"));
  if (!changes.meaningful.empty() && !allow) {
    throw Error(
        ErrorKind::kUsage,
        str("resume: what is trained would change: ", joined(changes.meaningful)),
        "give --allow to go on with the new values, --fresh to start over, or restore the config "
        "(config.yaml in the run folder)");
  }
  if (!changes.meaningful.empty())
    log::warning(str("resume: going on with ", joined(changes.meaningful), " (--allow)"));
  // Last: a changed key may be why random data are others.
  check_data(manifest, now, config);
}

checkpoint::ManifestFolder::Found newest_commit(const checkpoint::ManifestFolder& manifests,
                                                const std::string& verified_area, bool needed) {
  const checkpoint::ManifestFolder::Found found = manifests.find(verified_area);
  for (const std::string& skipped : found.skipped) log::warning(str("resume: skipped ", skipped));
  if (found.newest || found.skipped.empty() || !needed) return found;
  throw Error(ErrorKind::kFailed,
              str("no commit in ", manifests.folder(), " reads whole; the state is not touched"),
              str("put a whole manifest and its page table back, go on from a kept step "
                  "(--resume-from), ",
                  found.without_pages ? str("from step ", *found.without_pages,
                                            " unverified (--set io.verify=false), ")
                                      : std::string(),
                  "or start over (--fresh)"));
}

void check_older_commit(const checkpoint::ManifestFolder::Found& found, swap::Tiers& tiers,
                        const std::string& pages, bool verify) {
  if (found.skipped.empty()) return;
  const std::int64_t step = found.newest->step;
  if (!verify) {
    log::warning(str("resume: io.verify is false: whether step ", step,
                     " is still whole can't be told; the step after the newest commit may have "
                     "begun to overwrite it"));
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw Error(
        ErrorKind::kFailed,
        str("resume: ", joined(found.skipped), "; and the commit before, step ", step, ", ", why),
        found.without_pages ? str("set io.verify: false to go on from step ", *found.without_pages,
                                  " unverified, or go on from a kept step (--resume-from)")
                            : std::string("go on from a kept step (--resume-from), or start over "
                                          "(--fresh)"));
  };
  const int extents = static_cast<int>(found.newest->extents.size());
  if (pages.empty()) refuse("has no page table, so whether it is still whole can't be told");
  tiers.load_pages(found.newest->slot, extents, pages, str("step ", step));
  log::info(str("resume: reads all of step ", step, ", which may have been overwritten in part"));
  try {
    read_slot(tiers, found.newest->slot, extents, [](int, Bytes, std::byte*, Bytes) {});
  } catch (const Error& error) {
    const std::string text = error.what();
    refuse(str("is no longer whole: ", text.substr(0, text.find("\n  hint: "))));
  }
}

}  // namespace zinf::train
