#include "engine/plan/compile.h"

#include "engine/base/error.h"
#include "engine/plan/emitter.h"

namespace zinf::plan {

namespace {

ProgramSet emit(const CompileInput& input, const Builder::WithOps& with_ops, bool by_class) {
  ZINF_CHECK(input.settings.group >= 1 && input.settings.micro_batches >= 1,
             "at least one micro-batch per visit");
  ZINF_CHECK(input.settings.ring_slots >= 2, "one slot to fill while another drains");
  ZINF_CHECK(input.workspace.size() == input.model->stages.size(), "one workspace per stage");
  Builder builder(input, with_ops);
  Emitter emitter(builder);
  emitter.forward_segment(Segment::kForward);
  emitter.forward_segment(Segment::kUpdateForward);
  emitter.backward_segment(Segment::kBackward);
  emitter.update_segment(Segment::kUpdateOnly);
  if (input.settings.early_updates > 0) {
    emitter.backward_segment(Segment::kBackwardEarly);
    emitter.forward_segment(Segment::kRestForward);
    emitter.update_segment(Segment::kRestOnly);
  }
  emitter.forward_segment(Segment::kEvaluate);
  return builder.finish(by_class);
}

}  // namespace

ProgramSet compile(const CompileInput& input) {
  Builder::WithOps all;
  all.fill(true);
  ProgramSet set = emit(input, all, true);
  add_edges(set, input.settings.overlap);
  return set;
}

ProgramSet compile_cycle(const CompileInput& input, Cycle cycle) {
  Builder::WithOps run{};
  for (const Segment segment :
       {Segment::kForward, Segment::kBackward, steady(cycle).forward, steady(cycle).backward})
    run[static_cast<int>(segment)] = true;
  ProgramSet set = emit(input, run, false);
  add_edges(set, input.settings.overlap);
  return set;
}

Sizes sizes(const CompileInput& input) {
  const ProgramSet set = emit(input, Builder::WithOps{}, false);
  Sizes result;
  result.device = set.peak[static_cast<int>(Arena::kDevice)];
  result.host = set.peak[static_cast<int>(Arena::kHost)];
  for (const Extent& extent : set.extents)
    result.nvme += round_up(extent.bytes, kPage) * static_cast<Bytes>(extent.slots);
  return result;
}

Steady steady(Cycle cycle) {
  return cycle == Cycle::kEarly ? Steady{Segment::kRestForward, Segment::kBackwardEarly}
                                : Steady{Segment::kUpdateForward, Segment::kBackward};
}

}  // namespace zinf::plan
