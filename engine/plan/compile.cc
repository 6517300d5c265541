#include "engine/plan/compile.h"

#include "engine/base/error.h"
#include "engine/plan/emitter.h"

namespace zinf::plan {

ProgramSet compile(const CompileInput& input, bool with_edges) {
  ZINF_CHECK(input.settings.group >= 1 && input.settings.micro_batches >= 1,
             "at least one micro-batch per visit");
  ZINF_CHECK(input.settings.ring_slots >= 2, "one slot to fill while another drains");
  ZINF_CHECK(input.workspace.size() == input.model->stages.size(), "one workspace per stage");
  Builder builder(input);
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
  return builder.finish(with_edges);
}

}  // namespace zinf::plan
