#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/cli/command.h"
#include "engine/cli/terminal.h"
#include "engine/cli/verify_states.h"
#include "engine/observe/summary.h"
#include "engine/train/run_folder.h"
#include "engine/train/train.h"

namespace zinf::cli {

namespace {

struct Options {
  std::string run;
  std::optional<std::int64_t> step;  // a kept checkpoint; none: the newest commit
  bool loss = false;
  bool json = false;
};

struct Verdict {
  std::int64_t step = 0;
  StatesReport states;
  step::StateAccess::Hashes hashes;
  bool compared = false;            // with summary.json
  bool checksums = true;            // the commit has a page table that was compared
  std::uint64_t unknown_pages = 0;  // without a checksum in it
  std::vector<std::string> problems;
};

// Newer manifests than the one that reads whole, and a manifest that speaks of another run's area.
void check_manifests(const std::string& folder, std::vector<std::string>& problems) {
  const std::string expected = train::area_name(folder);
  const checkpoint::ManifestFolder::Found found = checkpoint::ManifestFolder(folder).find(expected);
  problems.insert(problems.end(), found.skipped.begin(), found.skipped.end());
  if (!found.newest) return;  // StoredRun says so
  if (found.newest->area != expected) {
    throw Error(ErrorKind::kFailed,
                str(folder, "/manifest-", found.newest->step, ".json belongs to another run: it ",
                    "names the area ", found.newest->area, ", this folder's is ", expected),
                "put back this run's own manifest");
  }
}

// The summary tells the hash of the state that the run ended with.
std::optional<observe::Summary> summary_of(const std::string& folder) {
  std::ifstream in(folder + "/summary.json");
  if (!in) return std::nullopt;
  std::stringstream text;
  text << in.rdbuf();
  return observe::parse_summary(text.str());
}

void check_hashes(const std::string& folder, Verdict& verdict) {
  const auto summary = summary_of(folder);
  if (!summary || static_cast<std::int64_t>(summary->steps) != verdict.step ||
      summary->state_hash.empty())
    return;
  verdict.compared = true;
  if (summary->state_hash == verdict.hashes.state) return;
  verdict.problems.push_back(
      str("the state is not the one that the run ended with: summary.json "
          "has state_hash ",
          summary->state_hash, ", the area gives ", verdict.hashes.state));
}

Verdict examine(const std::string& folder, std::optional<std::int64_t> step) {
  Verdict verdict;
  if (!step) check_manifests(folder, verdict.problems);
  train::StoredRun stored(folder, step);
  const checkpoint::Manifest& manifest = stored.manifest();
  if (stored.kept() && !train::is_kept_here(folder, manifest.area, manifest.drives)) {
    verdict.problems.push_back(str("the manifest of the kept step ", manifest.step,
                                   " belongs to another run: it names the area ", manifest.area,
                                   ", this folder's are ", train::area_name(folder), "-kept-*"));
  }
  verdict.step = manifest.step;
  verdict.checksums = !stored.pages().empty();
  ProgressLine progress;
  double shown = 0;
  verdict.states = verify_states(stored, [&](Bytes done, Bytes all) {
    if (now_seconds() - shown < 0.1) return;
    shown = now_seconds();
    progress.show(str("verify: step ", manifest.step, ", ", format_bytes(done), " of ",
                      format_bytes(all), " read"));
  });
  // Moments that no update has written yet have none, and are not read by the first.
  if (verdict.checksums && !manifest.moments_are_zero)
    verdict.unknown_pages = stored.tiers().store()->page_counters().unknown;
  for (const std::string& problem : verdict.states.problems) verdict.problems.push_back(problem);
  if (verdict.states.unreadable > 0) return verdict;  // nothing whole to hash
  progress.show("verify: hashing the states");
  verdict.hashes =
      stored.states().hashes(manifest.version, manifest.slot, manifest.moments_are_zero);
  progress.clear();
  check_hashes(folder, verdict);
  return verdict;
}

void print_json(const Verdict& verdict) {
  nlohmann::ordered_json json;
  json["whole"] = verdict.problems.empty();
  json["step"] = verdict.step;
  json["states"] = verdict.states.states;
  json["bytes"] = verdict.states.bytes;
  json["weights_hash"] = verdict.hashes.weights;
  json["state_hash"] = verdict.hashes.state;
  json["checksums"] = verdict.checksums;
  json["pages_without_checksum"] = verdict.unknown_pages;
  json["compared_with_summary"] = verdict.compared;
  json["problems"] = verdict.problems;
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

// The batch after the commit, by the commit's weights, against what training logged for it.
int verify_loss(const Options& options) {
  const train::StoredLoss loss = train::stored_loss(options.run, options.step);
  // Kernels of another machine round otherwise: by far less than wrong weights show.
  constexpr double kOtherMachine = 5e-3;
  const bool agree = !loss.logged || *loss.logged == loss.next ||
                     (!loss.same_machine &&
                      std::abs(*loss.logged - loss.next) <= kOtherMachine * std::abs(*loss.logged));
  if (options.json) {
    nlohmann::ordered_json json;
    json["step"] = loss.step;
    json["loss_before_update"] =
        std::isfinite(loss.trained) ? nlohmann::ordered_json(loss.trained) : nullptr;
    json["loss_of_next_batch"] = loss.next;
    json["logged"] = loss.logged ? nlohmann::ordered_json(*loss.logged) : nullptr;
    json["agree"] = loss.logged ? nlohmann::ordered_json(agree) : nullptr;
    json["same_machine"] = loss.same_machine;
    std::cout << json.dump(2) << "\n";
  } else {
    std::printf("step                  %lld\nloss of the next batch %.9g\n",
                static_cast<long long>(loss.step), loss.next);
    if (loss.logged)
      std::printf("logged by the run      %.9g\n", *loss.logged);
    else
      std::printf(
          "logged by the run      not yet: that step is still to come; nothing was compared\n");
    if (loss.logged && !loss.same_machine) {
      std::printf(
          "compared within 0.5 %%: library, instruction set or threads are not the run's\n");
    }
  }
  if (agree) return 0;
  char losses[80];
  std::snprintf(losses, sizeof losses, "expected %.9g, found %.9g", *loss.logged, loss.next);
  log::error(str("the weights of step ", loss.step,
                 " give another loss than the run logged for step ", loss.step + 1, ": ", losses));
  return 1;
}

std::string conclusion(const Verdict& verdict) {
  if (!verdict.problems.empty())
    return str("damaged: ", verdict.problems.size(), " problem(s), named on stderr");
  if (verdict.unknown_pages > 0) {
    return str("whole as far as can be told: ", verdict.unknown_pages,
               " pages have no checksum, since io.verify was false when they were written; every "
               "state was read and every value is finite");
  }
  if (verdict.checksums)
    return "whole: every state was read, every page has its checksum and every value is finite";
  return str("no checksums: io.verify was false; every state was read and every value is finite",
             verdict.compared ? "" : ", which a flipped bit may leave so");
}

int verify(const Options& options) {
  if (options.loss) return verify_loss(options);
  const Verdict verdict = examine(options.run, options.step);
  for (const std::string& problem : verdict.problems) log::error(problem);
  if (options.json) {
    print_json(verdict);
  } else {
    std::cout << "step          " << verdict.step << "\nread          " << verdict.states.states
              << " states, " << format_bytes(verdict.states.bytes) << "\nweights_hash  "
              << verdict.hashes.weights << "\nstate_hash    " << verdict.hashes.state
              << (verdict.compared ? verdict.problems.empty() ? ", as in summary.json" : ""
                                   : " (no summary.json of this step to compare with)")
              << "\n"
              << conclusion(verdict) << "\n";
  }
  return verdict.problems.empty() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", "read all that a commit of a run holds");
  command->add_option("RUN", options->run, "run folder")->required();
  command->add_option("--step", options->step, "a kept checkpoint instead of the newest commit");
  command->add_flag("--loss", options->loss,
                    "compute the loss of the next step's batch instead, and compare it with what "
                    "the run logged");
  command->add_flag("--json", options->json, "as JSON on stdout");
  command->footer(
      "Exit code 1: something is damaged or missing; what, is said on stderr. A run that is "
      "training commits nothing while it is read.");
  command->callback([options, &run] { run = [options] { return verify(*options); }; });
}

}  // namespace zinf::cli
