#include "engine/train/holds.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/str.h"

namespace zinf::train {

Holds::Holds(const HoldsParts& parts) : parts_(parts), last_kept_(now_seconds()) {}

bool Holds::due(std::int64_t step) {
  if (parts_.keep_every.steps) return step % *parts_.keep_every.steps == 0;
  return parts_.keep_every.seconds && now_seconds() - last_kept_ >= *parts_.keep_every.seconds;
}

bool Holds::step_done(std::int64_t step, bool finite, bool last) {
  collect();
  mind_readers(step, finite);
  if (parts_.keeper == nullptr || last || failure_) return false;
  owed_ |= due(step);
  if (!owed_ || !finite) return false;
  if (parts_.keeper->busy()) {
    log::info(str("step ", step, " is to be kept, and the copy before is not done: waits for it"));
    settle(false);
  }
  if (held() || failure_) return false;  // by a reader: kept as soon as it is gone
  log::info(str("step ", step, " is being kept: nothing is committed until its copy is whole"));
  owed_ = false;
  last_kept_ = now_seconds();
  parts_.keeper->request(step);
  parts_.trainer->hold_next_commit();
  return true;
}

void Holds::collect() {
  try {
    if (parts_.keeper != nullptr && parts_.keeper->collect()) release_if_free();
  } catch (...) {
    failure_ = std::current_exception();
    release_if_free();
  }
}

void Holds::mind_readers(std::int64_t step, bool finite) {
  if (parts_.readers == nullptr) return;
  const bool wanted = parts_.readers->wanted();
  if (wanted && !reader_) {
    const bool copying = parts_.keeper != nullptr && parts_.keeper->busy();
    if (copying) {
      parts_.readers->promise(parts_.keeper->step());
      if (parts_.keeper->started()) parts_.readers->published(parts_.keeper->step());
    } else if (!parts_.commits_in_program) {
      if (!parts_.last_commit) return;
      parts_.trainer->hold();
      parts_.readers->say(*parts_.last_commit);
    } else if (finite) {
      parts_.readers->promise(step);
      parts_.trainer->hold_next_commit();
    } else {
      return;  // this step commits nothing
    }
    reader_ = true;
    log::info("a command reads the state: nothing is committed until it is done");
  } else if (!wanted && reader_) {
    reader_ = false;
    log::info("the state has been read: commits go on");
    release_if_free();
  }
}

void Holds::release_if_free() {
  if (!reader_ && (parts_.keeper == nullptr || !parts_.keeper->busy())) parts_.trainer->release();
}

void Holds::settle(bool interrupted) {
  if (parts_.keeper == nullptr) {
    parts_.trainer->release();
    return;
  }
  parts_.executor->wait_all();  // a commit under way is published, so that its copy has begun
  try {
    interrupted ? parts_.keeper->abandon() : parts_.keeper->wait();
  } catch (...) {
    failure_ = std::current_exception();
  }
  release_if_free();
}

}  // namespace zinf::train
