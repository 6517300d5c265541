#include "engine/plan/simulate.h"

#include <algorithm>
#include <utility>

namespace zinf::plan {

using model::StageKind;

namespace {

constexpr double kOpOverhead = 20e-6;  // issue, wake and complete: seconds per op

double rate_seconds(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

double compute_seconds(const Op& op, const CompileInput& input, const Hardware& hardware) {
  const model::StageSpec& stage = input.model->stages[op.stage];
  const bool backward = op.mode == model::CallMode::kBackward;
  const bool keeps = input.keeps_activations(op.stage);
  const double share = op.piece < 0
                           ? 1.0  // else a slice of the head's table
                           : static_cast<double>(op.count) /
                                 static_cast<double>(input.model->pieces[op.piece].elements);
  if (!hardware.stages.empty()) {
    const StageSeconds& seconds = hardware.stages[op.stage];
    if (stage.kind == StageKind::kHead)
      return (backward ? seconds.backward : seconds.evaluate) * share;
    if (!backward) return seconds.forward;
    return keeps && seconds.backward_kept > 0 ? seconds.backward_kept : seconds.backward;
  }
  const double positions = static_cast<double>(input.shape.positions());
  const double forward = stage.forward_flops_per_position * positions +
                         stage.forward_flops_per_position_pair * positions * input.shape.length;
  const double times = backward ? (keeps ? 2 : 3) : 1;
  return rate_seconds(forward * times * share, hardware.flops_per_second);
}

// Bytes that an update reads and writes in memory; a norm only reads.
double host_bytes(const Op& op) {
  double bytes = 0;
  for (const Operand& operand : op.operands)
    bytes += static_cast<double>(operand.bytes) * (operand.writes ? 2 : 1);
  return bytes;
}

// Reads and writes share a drive. When a segment has both, they run beside each other: each lane
// gets the rate at which the whole traffic of the segment takes its shortest possible time.
std::pair<double, double> nvme_rates(const Program& program, const Hardware& hardware) {
  double read = 0, written = 0;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kRead) read += static_cast<double>(op.bytes());
    if (op.kind == OpKind::kWrite) written += static_cast<double>(op.bytes());
  }
  double r = hardware.nvme_read, w = hardware.nvme_write;
  if (read > 0 && written > 0 && hardware.nvme_mixed > 0) {
    const double seconds = std::max({rate_seconds(read, r), rate_seconds(written, w),
                                     rate_seconds(read + written, hardware.nvme_mixed)});
    r = std::min(hardware.nvme_read, std::max(read / seconds, 1.0));
    w = std::min(hardware.nvme_write, std::max(written / seconds, 1.0));
  }
  return {r, w};
}

std::vector<double> durations(const Program& program, const CompileInput& input,
                              const Hardware& hardware, double read_rate, double write_rate) {
  std::vector<double> seconds;
  for (const Op& op : program.ops) {
    double value = 0;
    switch (op.kind) {
      case OpKind::kRead:
        value = rate_seconds(static_cast<double>(op.bytes()), read_rate);
        break;
      case OpKind::kWrite:
        value = rate_seconds(static_cast<double>(op.bytes()), write_rate);
        break;
      case OpKind::kCopyIn:
        value = rate_seconds(static_cast<double>(op.bytes()), hardware.host_to_device);
        break;
      case OpKind::kCopyOut:
        value = rate_seconds(static_cast<double>(op.bytes()), hardware.device_to_host);
        break;
      case OpKind::kCompute:
        value = compute_seconds(op, input, hardware);
        break;
      case OpKind::kCommit:
        value = 0;
        break;
      default:
        value = rate_seconds(host_bytes(op), hardware.optimizer_bytes_per_second);
    }
    seconds.push_back(value + kOpOverhead);
  }
  return seconds;
}

// Times at which lanes are free and ops of the latest program ended.
struct Clock {
  std::array<double, kLanes> lane{};
  std::vector<double> ended;
  Segment latest = Segment::kForward;
  bool any = false;
  double decided = 0;  // when the latest program's border could be decided
  // The end of the latest optimizer's work that a lane, or an op of the latest program, waited for.
  std::array<double, kLanes> lane_held{};
  std::vector<double> held;
  double exposed = 0;  // Forecast::exposed_optimizer_seconds, since the first program
};

void play(const ProgramSet& set, Segment segment, const std::vector<double>& seconds, bool decision,
          Clock& clock) {
  const Program& program = set.program(segment);
  const double submitted = decision ? clock.decided : 0.0;
  std::vector<double> ready(program.ops.size(), submitted);
  std::vector<double> held(program.ops.size(), 0.0);
  if (clock.any) {
    for (const Link& link : set.links[static_cast<int>(clock.latest)][static_cast<int>(segment)]) {
      ready[link.op] = std::max(ready[link.op], clock.ended[link.previous_op]);
      held[link.op] = std::max(held[link.op], clock.held[link.previous_op]);
    }
  }
  std::vector<double> ended(program.ops.size());
  double done = 0, decision_held = 0;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    double& lane = clock.lane[static_cast<int>(op.lane)];
    double& lane_held = clock.lane_held[static_cast<int>(op.lane)];
    double start = std::max(ready[i], lane);
    for (const int before : op.after) {
      start = std::max(start, ended[before]);
      held[i] = std::max(held[i], held[before]);
    }
    if (op.lane == Lane::kCompute)
      clock.exposed += std::max(0.0, std::min(start, held[i]) - std::max(lane, submitted));
    lane = ended[i] = start + seconds[i];
    held[i] = lane_held = optimizes(set, op) ? ended[i] : std::max(held[i], lane_held);
    if (!decides(op)) continue;
    done = std::max(done, ended[i]);
    decision_held = std::max(decision_held, held[i]);
  }
  clock.exposed +=
      std::max(0.0, std::min(done, decision_held) - clock.lane[static_cast<int>(Lane::kCompute)]);
  clock.ended = std::move(ended);
  clock.held = std::move(held);
  clock.latest = segment;
  clock.any = true;
  clock.decided = std::max(clock.decided, done);
}

}  // namespace

std::vector<double> op_seconds(const ProgramSet& set, const CompileInput& input,
                               const Hardware& hardware, Segment segment) {
  return durations(set.program(segment), input, hardware, hardware.nvme_read, hardware.nvme_write);
}

Forecast simulate(const ProgramSet& set, const CompileInput& input, const Hardware& hardware,
                  Cycle cycle) {
  Forecast forecast;
  const Steady step_of = steady(cycle);
  std::array<std::vector<double>, kSegments> mixed;
  for (const Segment segment :
       {Segment::kForward, Segment::kBackward, step_of.forward, step_of.backward}) {
    const auto [read_rate, write_rate] = nvme_rates(set.program(segment), hardware);
    mixed[static_cast<int>(segment)] =
        durations(set.program(segment), input, hardware, read_rate, write_rate);
  }
  const auto& forward = mixed[static_cast<int>(Segment::kForward)];
  const auto& backward = mixed[static_cast<int>(Segment::kBackward)];
  Clock clock;
  play(set, Segment::kForward, forward, false, clock);
  play(set, Segment::kBackward, backward, false, clock);
  forecast.first_step_seconds = clock.decided;
  clock = Clock();
  play(set, Segment::kForward, forward, false, clock);
  play(set, step_of.backward, mixed[static_cast<int>(step_of.backward)], false, clock);
  double before = 0, exposed_before = 0;
  for (int step = 0; step < 3; ++step) {  // the third is steady
    before = clock.decided;
    exposed_before = clock.exposed;
    play(set, step_of.forward, mixed[static_cast<int>(step_of.forward)], true, clock);
    play(set, step_of.backward, mixed[static_cast<int>(step_of.backward)], false, clock);
  }
  forecast.step_seconds = clock.decided - before;
  forecast.exposed_optimizer_seconds = clock.exposed - exposed_before;
  for (const Segment segment : {step_of.forward, step_of.backward}) {
    const std::vector<double> alone = op_seconds(set, input, hardware, segment);
    std::array<double, kLanes> busy{};
    double drive = 0;
    const Program& program = set.program(segment);
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
      const int lane = static_cast<int>(program.ops[i].lane);
      busy[lane] += alone[i];
      forecast.lanes[lane].bytes += program.ops[i].bytes();
      const OpKind kind = program.ops[i].kind;
      if (kind == OpKind::kRead || kind == OpKind::kWrite)
        drive += mixed[static_cast<int>(segment)][i];
    }
    for (int lane = 0; lane < kLanes; ++lane) forecast.lanes[lane].busy_seconds += busy[lane];
    const double read_mixed = busy[static_cast<int>(Lane::kRead)],
                 write_mixed = busy[static_cast<int>(Lane::kWrite)];
    double longest = *std::max_element(busy.begin(), busy.end());
    if (read_mixed > 0 && write_mixed > 0) longest = std::max(longest, drive / 2);
    forecast.ideal_seconds += longest;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (forecast.lanes[lane].busy_seconds >
        forecast.lanes[static_cast<int>(forecast.bottleneck)].busy_seconds) {
      forecast.bottleneck = static_cast<Lane>(lane);
    }
  }
  return forecast;
}

TrafficForecast traffic(const ProgramSet& set, Cycle cycle) {
  TrafficForecast sum;
  for (const Segment segment : {steady(cycle).forward, steady(cycle).backward}) {
    for (const Op& op : set.program(segment).ops) {
      switch (op.kind) {
        case OpKind::kRead:
          sum.nvme_read += op.bytes();
          break;
        case OpKind::kWrite:
          sum.nvme_write += op.bytes();
          break;
        case OpKind::kCopyIn:
          sum.host_to_device += op.bytes();
          break;
        case OpKind::kCopyOut:
          sum.device_to_host += op.bytes();
          break;
        default:
          break;
      }
    }
  }
  return sum;
}

}  // namespace zinf::plan
