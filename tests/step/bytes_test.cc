// Bytes are exact and agree everywhere: the plan's traffic, the executor's totals, the drive's
// counters and the kernel's
// (/proc/self/io). And memory stays flat.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "engine/plan/simulate.h"
#include "tests/step/random_case.h"
#include "tests/step/temp_folder.h"
#include "tests/step/watchdog.h"

namespace zinf {
namespace {

using plan::Lane;
using plan::Tier;
using testing::Case;
using testing::OutOfCore;
using testing::TempFolder;

struct ProcessIo {
  Bytes read = 0, written = 0;  // that reached the drive
  static ProcessIo now() {
    ProcessIo io;
    std::ifstream file("/proc/self/io");
    std::string key;
    Bytes value = 0;
    while (file >> key >> value) {
      if (key == "read_bytes:") io.read = value;
      if (key == "write_bytes:") io.written = value;
    }
    return io;
  }
};

struct Moved {
  Bytes read = 0, written = 0;
};

Moved drive_counters(swap::Tiers& tiers) {
  Moved moved;
  for (const nvme::DriveCounters& drive : tiers.counters()) {
    moved.read += drive.lane.bytes_read;
    moved.written += drive.lane.bytes_written;
  }
  return moved;
}

// Steady steps from drained to drained, so that nothing is under way when counting starts or ends;
// a step is then an update and a forward beside it. The drains' own traffic is counted from their
// program.
void expect_bytes(const Case& c, const std::string& folder) {
  const optim::Optimizer optimizer(c.drawn.format, {});
  testing::FakeCompute compute(c.spec());
  testing::OutOfCoreOptions options;
  options.folder = folder;
  options.poison = false;
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  const std::vector<data::StepBatch> batches = batches_of(c);
  step::Trainer& trainer = engine.trainer();
  trainer.gradients(batches[0]);
  trainer.update(testing::kLr);
  trainer.gradients(
      batches[1]);  // the first update reads no moments; from here on steps are steady
  trainer.update(testing::kLr);
  engine.executor().wait_all();
  engine.executor().take_totals();
  const ProcessIo kernel_before = ProcessIo::now();
  const Moved drive_before = drive_counters(engine.tiers());
  constexpr Bytes kSteps = 3;
  for (Bytes step = 0; step < kSteps; ++step) {
    trainer.gradients(batches[step % 2]);
    trainer.update(testing::kLr);
  }
  engine.executor().wait_all();
  const ProcessIo kernel_after = ProcessIo::now();
  const Moved drive_after = drive_counters(engine.tiers());
  const std::vector<step::LaneTotals> totals = engine.executor().take_totals();
  const plan::TrafficForecast planned = traffic(engine.programs());
  EXPECT_EQ(totals[static_cast<int>(Lane::kRead)].bytes, kSteps * planned.nvme_read);
  EXPECT_EQ(totals[static_cast<int>(Lane::kWrite)].bytes, kSteps * planned.nvme_write);
  EXPECT_EQ(totals[static_cast<int>(Lane::kH2D)].bytes, kSteps * planned.host_to_device);
  EXPECT_EQ(totals[static_cast<int>(Lane::kD2H)].bytes, kSteps * planned.device_to_host);
  EXPECT_EQ(drive_after.read - drive_before.read, kSteps * planned.nvme_read);
  EXPECT_EQ(drive_after.written - drive_before.written, kSteps * planned.nvme_write);
  if (!engine.tiers().counters().at(0).direct)
    return;  // through the page cache the kernel counts otherwise
  EXPECT_EQ(kernel_after.read - kernel_before.read, kSteps * planned.nvme_read);
  // The file system's own pages (times of the inode) come on top: some, however much is written.
  EXPECT_GE(kernel_after.written - kernel_before.written, kSteps * planned.nvme_write);
  EXPECT_LE(kernel_after.written - kernel_before.written, kSteps * planned.nvme_write + 256 * kKiB);
}

TEST(Bytes, PlanExecutorDriveAndKernelAgree) {
  const testing::Watchdog watchdog("bytes");
  const TempFolder folder;
  for (const int micro_batches : {1, 8}) {
    for (const bool spilled : {false, true}) {
      for (const int group : {1, micro_batches}) {
        for (const model::DType type : {model::DType::kFloat32, model::DType::kBFloat16}) {
          if (type == model::DType::kBFloat16 && !spilled) continue;
          SCOPED_TRACE(str(micro_batches, " micro-batches, group ", group,
                           spilled ? ", spilled gradients" : "", ", bytes ", size_of(type)));
          Case c = testing::plain_case(2, 40000);
          c.steps = 3;
          c.drawn.input.settings.micro_batches = micro_batches;
          c.drawn.input.settings.group = group;
          c.drawn.input.gradient_type = type;
          if (spilled) {
            for (auto& placement : c.drawn.input.placement.pieces)
              placement.gradients = Tier::kNvme;
            c.drawn.input.placement.activations = Tier::kNvme;
          }
          expect_bytes(c, folder.path());
        }
      }
    }
  }
}

// The first update knows that moments are zero: it reads 8 bytes a parameter less, and nothing else
// differs.
TEST(Bytes, TheFirstUpdateReadsNoMoments) {
  const testing::Watchdog watchdog("moments");
  const TempFolder folder(testing::quick_parent());
  const Case c = testing::plain_case();
  const optim::Optimizer optimizer(c.drawn.format, {});
  testing::FakeCompute compute(c.spec());
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  Bytes elements = 0;
  for (const model::PieceSpec& piece : c.spec().pieces)
    elements += static_cast<Bytes>(piece.elements);
  std::vector<Moved> of_step;
  const data::StepBatch batch = batch_of(c, 0);
  for (int step = 0; step < 3; ++step) {
    engine.trainer().gradients(batch);
    engine.executor().wait_all();
    const Moved before = drive_counters(engine.tiers());
    engine.trainer().update(testing::kLr);
    engine.trainer().drain();
    const Moved after = drive_counters(engine.tiers());
    of_step.push_back({after.read - before.read, after.written - before.written});
  }
  EXPECT_EQ(of_step[0].read, 4 * elements);
  EXPECT_EQ(of_step[1].read, 12 * elements);
  EXPECT_EQ(of_step[2].read, 12 * elements);
  for (const Moved& step : of_step) EXPECT_EQ(step.written, 12 * elements);
}

// A compute whose calls leave their workspace alone.
class NoWorkspace : public testing::FakeCompute {
 public:
  using FakeCompute::FakeCompute;
  Bytes workspace_peak() const override { return 0; }
};

// An arena's high-water mark is what the run's ops were given, and of workspaces what was used.
TEST(Peaks, AreMeasured) {
  const testing::Watchdog watchdog("peaks");
  const Case c = testing::plain_case();
  const optim::Optimizer optimizer(c.drawn.format, {});
  testing::FakeCompute whole(c.spec());
  NoWorkspace none(c.spec());
  Bytes device[2] = {};
  for (const bool uses : {false, true}) {
    const TempFolder folder(testing::quick_parent());
    testing::OutOfCoreOptions options;
    options.folder = folder.path();
    model::Compute& compute = uses ? static_cast<model::Compute&>(whole) : none;
    OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
    store_initial(c, engine);
    EXPECT_EQ(engine.runner().peak_bytes(plan::Arena::kDevice), 0u);
    engine.trainer().gradients(batch_of(c, 0));
    engine.trainer().update(testing::kLr);
    engine.trainer().drain();
    Bytes expected[2] = {};
    for (const plan::Segment segment :
         {plan::Segment::kForward, plan::Segment::kBackward, plan::Segment::kUpdateOnly}) {
      for (const plan::Op& op : engine.programs().program(segment).ops) {
        for (const plan::Operand& operand : op.operands) {
          const plan::Buffer& buffer = engine.programs().buffers[operand.buffer];
          const bool left_alone = operand.role == plan::Role::kWorkspace && !uses;
          Bytes& most = expected[static_cast<int>(buffer.arena)];
          most = std::max(most, buffer.offset + operand.offset + (left_alone ? 0 : operand.bytes));
        }
      }
    }
    for (const plan::Arena arena : {plan::Arena::kDevice, plan::Arena::kHost}) {
      EXPECT_EQ(engine.runner().peak_bytes(arena), expected[static_cast<int>(arena)]);
      EXPECT_LE(engine.runner().peak_bytes(arena), engine.programs().peak[static_cast<int>(arena)]);
    }
    device[uses] = engine.runner().peak_bytes(plan::Arena::kDevice);
  }
  EXPECT_LE(device[0], device[1]);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Bytes resident() {
  std::ifstream file("/proc/self/statm");
  Bytes size = 0, pages = 0;
  file >> size >> pages;
  return pages * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

// BR-009: 200 pipelined steps, reads and writes in the background: resident memory stays where it
// is after 20.
TEST(Memory, IsFlatOverTwoHundredSteps) {
  const testing::Watchdog watchdog("200 steps");
  const TempFolder folder(testing::quick_parent());
  Case c = testing::plain_case(2);
  c.drawn.input.settings.prefetch = 2;
  for (auto& placement : c.drawn.input.placement.pieces) placement.gradients = Tier::kNvme;
  const optim::Optimizer optimizer(c.drawn.format, {});
  testing::FakeCompute compute(c.spec());
  testing::OutOfCoreOptions options;
  options.folder = folder.path();
  options.poison = false;
  OutOfCore engine(c.input(), plan::compile(c.input()), compute, optimizer, options);
  store_initial(c, engine);
  const data::StepBatch one = batch_of(c, 0), other = batch_of(c, 1);
  Bytes at_twenty = 0;
  for (int step = 0; step < 200; ++step) {
    engine.trainer().gradients(step % 2 == 0 ? one : other);
    engine.trainer().update(testing::kLr);
    if (step == 19) at_twenty = resident();
  }
  engine.trainer().drain();
  EXPECT_LT(resident(), at_twenty + 5 * kMiB);
}
#endif

}  // namespace
}  // namespace zinf
