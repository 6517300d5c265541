// Short measurements at start: what the plan needs to know of this model on this machine. About a
// second or two.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cpu_optim/optimizer.h"
#include "engine/model/compute.h"
#include "engine/plan/hardware.h"
#include "engine/plan/placement.h"

namespace zinf::train {

struct StageProbe {
  std::vector<plan::StageWorkspace> workspace;  // exact: the largest that a call used, per stage
  std::vector<plan::StageSeconds> seconds;
};

// Runs each kind of stage once or twice at the given shape on constant weights, in memory that is
// given back at once. Stages with equal operands are measured once. device: of a head's table that
// does not fit there with its gradients, one slice is measured: no plan has it there as a whole.
StageProbe probe_stages(const model::ModelSpec& model, model::Compute& compute,
                        const plan::ShapeClass& shape, Bytes device = ~Bytes{0});

// About what probe_stages() holds at most, by the family's estimates of workspace.
Bytes probe_bytes(const model::ModelSpec& model, const plan::ShapeClass& shape, Bytes device);

// Names a stage's operands, shape and type: stages of the same name cost the same.
std::string stage_signature(const model::ModelSpec& model, std::size_t stage,
                            const plan::ShapeClass& shape);

// Times that were measured at leisure, by stage_signature(), in place of the probe's.
void use_tuned_stages(const std::map<std::string, plan::StageSeconds>& tuned,
                      const model::ModelSpec& model, const plan::ShapeClass& shape,
                      StageProbe& probe);

// The workspace from the family's estimates, without running anything; no times.
StageProbe estimate_stages(const model::ModelSpec& model, const plan::ShapeClass& shape);

// Copies and the optimizer's memory rate.
void probe_host(const optim::Optimizer& optimizer, optim::Pool& pool, plan::Hardware& hardware);

}  // namespace zinf::train
