#include "nvme/io_lane.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "nvme/fault_engine.h"
#include "nvme/swap_file.h"
#include "tests/nvme/sandbox.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

// A lane over one preallocated file of 8 MiB.
struct Bench {
  explicit Bench(LaneOptions options = {}, Bytes bytes = 8 * kMiB)
      : file(SwapFile::create(directory.path() + "/file", bytes, probe_directory(directory.path()),
                              false)),
        lane(std::make_unique<IoLane>(std::move(options))),
        id(lane->add_file({file.descriptor(), file.path(), file.alignment()})) {}
  IoResult move(bool is_write, std::uint64_t offset, const Memory& memory) {
    return wait_for([&](IoCallback done) {
      lane->submit({id, offset, memory.data(), memory.size(), is_write, std::move(done)});
    });
  }
  TestDirectory directory;
  SwapFile file;
  std::unique_ptr<IoLane> lane;
  FileId id;
};

LaneOptions with_faults(const std::shared_ptr<FaultControl>& faults,
                        EngineKind kind = EngineKind::kIoUring) {
  LaneOptions options;
  options.engine = {kind, 8};
  options.block_size = 256 * kKiB;
  options.wrap_engine = faults->wrapper();
  return options;
}

TEST(IoLane, KeepsItsDepthInFlightAcrossRequests) {
  LaneOptions options;
  options.engine.depth = 8;
  options.block_size = 64 * kKiB;
  Bench bench(options);
  Memory memory(64 * kKiB * 32);
  memory.fill(1);
  // 32 requests of one block each: only together do they reach the depth.
  std::atomic<int> waiting = 32;
  std::promise<void> done;
  for (int i = 0; i < 32; ++i) {
    bench.lane->submit({bench.id, static_cast<std::uint64_t>(i) * 64 * kKiB,
                        memory.data() + i * 64 * kKiB, 64 * kKiB, true,
                        [&](const IoResult& result) {
                          EXPECT_TRUE(result.ok());
                          if (--waiting == 0) done.set_value();
                        }});
  }
  done.get_future().wait();
  Memory back(memory.size());
  EXPECT_TRUE(bench.move(false, 0, back).ok());
  EXPECT_TRUE(back == memory);
  const LaneCounters counters = bench.lane->counters();
  EXPECT_EQ(counters.in_flight_peak, 8u);
  EXPECT_EQ(counters.bytes_written, memory.size());
  EXPECT_EQ(counters.write_requests, 32u);
  EXPECT_EQ(counters.read_requests, 1u);
}

TEST(IoLane, ShortAndRepeatedTransfersGiveTheSameBytes) {
  for (const EngineKind kind : {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    const auto faults = std::make_shared<FaultControl>(
        FaultOptions{.seed = 3, .short_share = 0.4, .again_share = 0.2, .delay_share = 0.3});
    Bench bench(with_faults(faults, kind));
    Memory out(3 * kMiB), in(3 * kMiB);
    out.fill(2);
    bench.move(true, kMiB, out).throw_if_failed();
    bench.move(false, kMiB, in).throw_if_failed();
    EXPECT_TRUE(in == out);
    const LaneCounters counters = bench.lane->counters();
    EXPECT_GT(faults->injected(), 5u);
    EXPECT_GT(counters.retries, 5u);
    EXPECT_EQ(counters.bytes_written, out.size());  // repeated parts count once
    EXPECT_EQ(counters.bytes_read, out.size());
  }
}

TEST(IoLane, AnErrorNamesOperationPathOffsetLengthAndErrno) {
  const auto faults = std::make_shared<FaultControl>(FaultOptions{.fail_block = 3});
  Bench bench(with_faults(faults));
  Memory memory(2 * kMiB);
  const IoResult result = bench.move(true, kMiB, memory);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.failure->error_number, EIO);
  EXPECT_EQ(result.failure->message, "writing 262144 bytes at offset " +
                                         std::to_string(kMiB + 512 * kKiB) + " of " +
                                         bench.file.path() + ": Input/output error (EIO)");
  // Only that request fails.
  EXPECT_TRUE(bench.move(true, 0, memory).ok());
}

// Field case 002: a full disk names what was needed and what is free.
TEST(IoLane, AFullDiskNamesNeededAndFreeBytes) {
  for (const int error : {ENOSPC, EDQUOT}) {
    const auto faults =
        std::make_shared<FaultControl>(FaultOptions{.fail_block = 1, .error_number = error});
    Bench bench(with_faults(faults));
    const IoResult result = bench.move(true, 0, Memory(4096));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.failure->error_number, error);
    EXPECT_NE(result.failure->message.find(bench.file.path()), std::string::npos);
    EXPECT_EQ(result.failure->hint.rfind("needed 4096 bytes, free ", 0), 0u)
        << result.failure->hint;
  }
}

TEST(IoLane, RetriesAreBounded) {
  const auto faults = std::make_shared<FaultControl>(FaultOptions{.again_share = 1});
  Bench bench(with_faults(faults));
  const IoResult result = bench.move(false, 0, Memory(4096));
  ASSERT_FALSE(result.ok());
  EXPECT_TRUE(result.failure->error_number == EAGAIN || result.failure->error_number == EINTR);
}

TEST(IoLane, AReadBeyondTheEndOfACutFileFails) {
  Bench bench;
  ASSERT_EQ(::ftruncate(bench.file.descriptor(), kMiB + 512), 0);
  const IoResult result = bench.move(false, 0, Memory(2 * kMiB));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.failure->message.find(bench.file.path() + ": the file ends at 1049088"),
            std::string::npos)
      << result.failure->message;
}

TEST(IoLane, ADriveThatDoesNotAnswerFailsEverything) {
  const auto faults = std::make_shared<FaultControl>(FaultOptions{.drop_share = 1});
  LaneOptions options = with_faults(faults);
  options.stall_seconds = 0.05;
  Bench bench(options);
  Memory memory(4 * kMiB);  // more blocks than the depth: some are still in the queue
  const IoResult first = bench.move(true, 0, memory);
  ASSERT_FALSE(first.ok());
  EXPECT_NE(
      first.failure->message.find(bench.file.path() + ": no answer from the drive for 0.05 s"),
      std::string::npos)
      << first.failure->message;
  EXPECT_FALSE(bench.move(false, 0, memory).ok());
  EXPECT_FALSE(wait_for([&](IoCallback done) { bench.lane->sync(bench.id, done); }).ok());
}

TEST(IoLane, EmptyRequestsAndRequestsFromCallbacksComplete) {
  Bench bench;
  EXPECT_TRUE(bench.move(true, 0, Memory(0)).ok());
  Memory memory(kMiB);
  const IoResult result = wait_for([&](IoCallback done) {
    bench.lane->submit({bench.id, 0, memory.data(), kMiB, true, [&, done](const IoResult&) {
                          bench.lane->submit({bench.id, 0, memory.data(), kMiB, false, done});
                        }});
  });
  EXPECT_TRUE(result.ok());
}

TEST(IoLane, DestructionCompletesWhatWasSubmitted) {
  Bench bench;
  Memory memory(8 * kMiB);
  int completed = 0;
  for (int i = 0; i < 8; ++i) {
    bench.lane->submit(
        {bench.id, 0, memory.data(), kMiB, i % 2 == 0, [&](const IoResult&) { ++completed; }});
  }
  bench.lane->sync(bench.id, [&](const IoResult&) { ++completed; });
  bench.lane.reset();
  EXPECT_EQ(completed, 9);
}

TEST(IoLane, BusySecondsOfRequestsSumToTheLanesBusyTime) {
  Bench bench;
  Memory memory(8 * kMiB);
  double sum = 0;
  int waiting = 8;
  std::promise<void> done;
  for (int i = 0; i < 8; ++i) {
    bench.lane->submit({bench.id, static_cast<std::uint64_t>(i) * kMiB, memory.data() + i * kMiB,
                        kMiB, i % 2 == 0, [&](const IoResult& result) {
                          EXPECT_GT(result.busy_seconds, 0);
                          sum += result.busy_seconds;
                          if (--waiting == 0) done.set_value();
                        }});
  }
  done.get_future().wait();
  EXPECT_NEAR(sum, bench.lane->counters().busy_seconds, 1e-9);
}

TEST(IoLane, ManyThreadsMaySubmit) {
  LaneOptions options;
  options.block_size = 16 * kKiB;
  Bench bench(options);
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Memory out(64 * kKiB), in(64 * kKiB);
      for (std::uint64_t i = 0; i < 20; ++i) {
        out.fill(t * 100 + i);
        const std::uint64_t offset = t * 2 * kMiB + i * 64 * kKiB;
        if (bench.move(true, offset, out).ok() && bench.move(false, offset, in).ok() && in == out)
          ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

TEST(IoLane, TheThrottleHoldsItsRate) {
  LaneOptions options;
  options.write_bytes_per_second = 40e6;
  Bench bench(options);
  Memory memory(4 * kMiB);
  const IoResult result = bench.move(true, 0, memory);
  // Three blocks have to wait for the one before; a slow machine only takes longer.
  EXPECT_GE(result.busy_seconds, 3 * static_cast<double>(kMiB) / 40e6 - 0.011);
}

// Field case 002: a file-size limit in the middle of a block. Preallocation meets it first, so the
// file here is sparse.
TEST(IoLane, AFileSizeLimitMidwayEndsInOneError) {
  for (const EngineKind kind : {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    TestDirectory directory;
    const std::string text = in_child([&]() -> std::string {
      const SwapFile file = SwapFile::create(directory.path() + "/file", 4096,
                                             probe_directory(directory.path()), false);
      set_limit(RLIMIT_FSIZE, 3 * kMiB + 4096);
      LaneOptions options;
      options.engine = {kind, 1};
      IoLane lane(options);
      const FileId id = lane.add_file({file.descriptor(), file.path(), file.alignment()});
      Memory memory(8 * kMiB);
      const IoResult result = wait_for([&](IoCallback done) {
        lane.submit({id, 0, memory.data(), memory.size(), true, std::move(done)});
      });
      if (result.ok()) return "no failure";
      if (lane.counters().bytes_written != 3 * kMiB + 4096) return "wrote another number of bytes";
      return result.failure->to_error().what();
    });
    EXPECT_EQ(text, "writing 1044480 bytes at offset 3149824 of " + directory.path() +
                        "/file: File too large (EFBIG)\n  hint: the file-size limit is 3149824 "
                        "bytes and 4194304 are "
                        "needed; raise it with ulimit -f unlimited")
        << engine_kind_name(kind);
  }
}

TEST(IoLaneDeathTest, UnalignedRequestsAreBugs) {
  // A forked child, not a new process that would leave its own directory behind.
  testing::FLAGS_gtest_death_test_style = "fast";
  Bench bench;
  Memory memory(8192);
  EXPECT_DEATH(bench.lane->submit({bench.id, 0, memory.data(), 448, true, nullptr}), "bytes 448");
  EXPECT_DEATH(bench.lane->submit({bench.id, 512, memory.data(), 4096, true, nullptr}),
               "offset 512");
  EXPECT_DEATH(bench.lane->submit({bench.id, 0, memory.data() + 16, 4096, true, nullptr}),
               "alignment 4096");
}

}  // namespace
}  // namespace zinf::nvme
