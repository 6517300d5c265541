#include "engine/step/update_pages.h"

#include <algorithm>

#include "engine/base/error.h"

namespace zinf::step {

using plan::Op;
using plan::Operand;
using plan::OpKind;
using plan::Role;

namespace {

bool waits_for(const Op& op, int before) {
  return std::find(op.after.begin(), op.after.end(), before) != op.after.end();
}

// The update's state that lies where this operand does; -1: none.
int state_at(const Op& update, const Operand& operand) {
  for (const Operand& state : update.operands) {
    if (state.role == Role::kState && state.buffer == operand.buffer &&
        state.offset == operand.offset)
      return state.index;
  }
  return -1;
}

// How far the ops of one chunk lie apart, at most: what looks for an update's write looks no
// further.
constexpr int kReach = 64;

}  // namespace

UpdatePages::UpdatePages(const plan::ProgramSet& programs, swap::Tiers& tiers,
                         const OpRunner& runner, bool enabled)
    : set_(programs), tiers_(tiers), runner_(runner) {
  for (const plan::Program& program : set_.programs) {
    OfProgram of;
    of.matches.resize(program.ops.size());
    of.read.resize(program.ops.size());
    of.written.resize(program.ops.size());
    for (int op = 0; enabled && op < static_cast<int>(program.ops.size()); ++op) {
      if (program.ops[static_cast<std::size_t>(op)].kind != OpKind::kUpdate) continue;
      match_reads(program, op, of);
      match_writes(program, op, of);
    }
    programs_.push_back(std::move(of));
  }
}

// A read is the update's own if nothing else waits for it but what waits for the update too: nobody
// uses its bytes before they have been verified.
void UpdatePages::match_reads(const plan::Program& program, int update, OfProgram& of) const {
  const Op& op = program.ops[static_cast<std::size_t>(update)];
  for (const int before : op.after) {
    const Op& read = program.ops[static_cast<std::size_t>(before)];
    if (read.kind != OpKind::kRead || read.piece != op.piece || read.first != op.first ||
        read.count != op.count || read.after_update)
      continue;
    const int end = std::min(static_cast<int>(program.ops.size()), update + kReach);
    bool own = true;
    for (int other = before + 1; other < static_cast<int>(program.ops.size()); ++other) {
      const Op& user = program.ops[static_cast<std::size_t>(other)];
      if (other != update && waits_for(user, before))
        own = own && other < end && waits_for(user, update);
    }
    if (!own) continue;
    std::vector<Match> matches(read.operands.size());
    Ranges ranges;
    for (std::size_t i = 0; i < read.operands.size(); ++i) {
      const int state = state_at(op, read.operands[i]);
      if (state < 0 || set_.extents[static_cast<std::size_t>(read.extents[i].extent)].kind !=
                           plan::ExtentKind::kState)
        continue;
      matches[i] = {update, state};
      ranges[static_cast<std::size_t>(state)] = read.extents[i];
    }
    of.matches[static_cast<std::size_t>(before)] = std::move(matches);
    of.read[static_cast<std::size_t>(update)] = ranges;
  }
}

void UpdatePages::match_writes(const plan::Program& program, int update, OfProgram& of) const {
  const Op& op = program.ops[static_cast<std::size_t>(update)];
  const int end = std::min(static_cast<int>(program.ops.size()), update + kReach);
  for (int after = update + 1; after < end; ++after) {
    const Op& write = program.ops[static_cast<std::size_t>(after)];
    if (write.kind != OpKind::kWrite || write.piece != op.piece || write.first != op.first ||
        write.count != op.count || !waits_for(write, update))
      continue;
    std::vector<Match> matches(write.operands.size());
    Ranges ranges;
    for (std::size_t i = 0; i < write.operands.size(); ++i) {
      const int state = state_at(op, write.operands[i]);
      if (state < 0) continue;
      matches[i] = {update, state};
      ranges[static_cast<std::size_t>(state)] = write.extents[i];
    }
    of.matches[static_cast<std::size_t>(after)] = std::move(matches);
    of.written[static_cast<std::size_t>(update)] = ranges;
    return;
  }
}

const UpdatePages::Match& UpdatePages::match(plan::Segment segment, int op,
                                             std::size_t operand) const {
  static const Match none;
  const std::vector<Match>& matches = of(segment).matches[static_cast<std::size_t>(op)];
  return operand < matches.size() ? matches[operand] : none;
}

std::optional<optim::UpdatePages> UpdatePages::request(plan::Segment segment, int op,
                                                       const SegmentArgs& args) const {
  if (!tiers_.verifies()) return std::nullopt;
  const std::optional<Ranges>& read = of(segment).read[static_cast<std::size_t>(op)];
  const std::optional<Ranges>& written = of(segment).written[static_cast<std::size_t>(op)];
  if (!read && !written) return std::nullopt;
  optim::UpdatePages pages;
  for (std::size_t s = 0; s < pages.state.size(); ++s) {
    optim::StatePages& state = pages.state[s];
    const auto place = [&](const std::optional<Ranges>& ranges) {
      if (!ranges || (*ranges)[s].extent < 0) return false;
      const plan::ExtentRange& range = (*ranges)[s];
      ZINF_CHECK(state.bytes == 0 || (state.offset == range.offset && state.bytes == range.bytes),
                 "an update writes the range that it reads");
      state.offset = range.offset;
      state.bytes = range.bytes;
      state.extent_bytes = tiers_.extent_bytes(range.extent);
      state.page_bytes = tiers_.page_bytes(range.extent);
      return true;
    };
    state.sum_before =
        place(read) && !(args.scalars.moments_are_zero && runner_.starts_zero(static_cast<int>(s)));
    state.sum_after = place(written);
  }
  return pages;
}

void UpdatePages::verify(plan::Segment segment, int op, const SegmentArgs& args,
                         const optim::UpdatePages& pages) const {
  const std::optional<Ranges>& read = of(segment).read[static_cast<std::size_t>(op)];
  for (std::size_t s = 0; s < pages.state.size(); ++s) {
    const optim::StatePages& state = pages.state[s];
    if (!state.sum_before) continue;
    tiers_.check_pages((*read)[s].extent, args.read_slot, state.offset, state.bytes, state.before);
  }
}

}  // namespace zinf::step
