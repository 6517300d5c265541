#include "engine/train/keeper.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "engine/train/kept_runs.h"

namespace zinf::train {

Keeper::Keeper(KeeperOptions options)
    : options_(std::move(options)), kept_(options_.run_folder, options_.owners) {}

Keeper::~Keeper() { give_up_ = true; }

void Keeper::request(std::int64_t step) {
  ZINF_CHECK(!busy_, "one copy at a time");
  busy_ = true;
  step_ = step;
  const std::lock_guard lock(mutex_);
  requested_ = step;
  started_ = false;
}

void Keeper::published(const checkpoint::Manifest& manifest, const std::string& pages) {
  std::jthread before;
  const std::lock_guard lock(mutex_);
  if (requested_ != manifest.step) return;  // the commit before may come late
  requested_.reset();
  copied_ = false;
  started_ = true;
  before = std::move(thread_);  // an export may still be running: it is waited for below
  thread_ = std::jthread([this, manifest, pages, before = std::move(before)]() mutable {
    if (before.joinable()) before.join();
    copy(manifest, pages);
  });
}

// Sleeps in small parts, so that hurry and give-up are heard.
bool Keeper::pace(Bytes done, double start) {
  while (!give_up_ && !hurry_ && options_.bytes_per_second > 0) {
    const double ahead =
        static_cast<double>(done) / options_.bytes_per_second - (now_seconds() - start);
    if (ahead <= 0) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(ahead, 0.05)));
  }
  return !give_up_;
}

void Keeper::copy(const checkpoint::Manifest& manifest, const std::string& pages) {
  std::exception_ptr failure;
  bool whole = false;
  try {
    const double start = now_seconds();
    const auto made =
        kept_.make(manifest, pages, options_.ranges[static_cast<std::size_t>(manifest.slot)],
                   [&](Bytes done) { return pace(done, start); });
    whole = made.whole;
    if (whole) {
      log::info(str("step ", manifest.step, " is kept: ", format_bytes(made.bytes),
                    made.cloned ? " shared with" : " copied from", " the live state in ",
                    static_cast<int>((now_seconds() - start) * 10) / 10.0, " s; commits go on"));
      for (const std::int64_t step :
           kept_.prune({manifest.area, manifest.drives}, manifest.step, options_.count))
        drop(step);
    }
  } catch (const std::exception& error) {
    failure = std::make_exception_ptr(Error(
        ErrorKind::kFailed, str("keeping a copy of step ", manifest.step, ": ", error.what())));
  }
  {
    const std::lock_guard lock(mutex_);
    copied_ = true;
    failure_ = failure;
  }
  if (!whole || !options_.after) return;
  try {
    options_.after(manifest.step, give_up_);
  } catch (const std::exception& error) {
    // The checkpoint is whole all the same.
    if (give_up_) {
      log::warning(str("the export of step ", manifest.step, " is given up: zinf export ",
                       options_.run_folder, " DIR --step ", manifest.step, " makes it"));
    } else {
      log::error(str("exporting step ", manifest.step, ": ", error.what()));
    }
  }
}

bool Keeper::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

void Keeper::drop(std::int64_t step) const {
  std::error_code ignored;
  std::filesystem::remove_all(kept_export(options_.run_folder, step), ignored);
  log::info(str("the kept checkpoint of step ", step, " is dropped"));
}

bool Keeper::collect() {
  const std::lock_guard lock(mutex_);
  if (!copied_) return false;
  copied_ = busy_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return true;
}

void Keeper::wait() {
  hurry_ = true;
  std::jthread thread;
  {
    const std::lock_guard lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  hurry_ = false;
  collect();
}

void Keeper::abandon() {
  give_up_ = true;
  std::jthread thread;
  {
    const std::lock_guard lock(mutex_);
    requested_.reset();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  give_up_ = false;
  const std::lock_guard lock(mutex_);
  copied_ = busy_ = false;
  failure_ = nullptr;
}

}  // namespace zinf::train
