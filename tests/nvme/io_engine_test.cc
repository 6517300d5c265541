#include "nvme/io_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "nvme/store.h"
#include "nvme/uring_engine.h"
#include "nvme/uring_probe.h"
#include "tests/nvme/sandbox.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

class Engines : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    engine_ = make_engine({GetParam(), 8});
    descriptor_ = ::open((directory_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
    ASSERT_GE(descriptor_, 0);
    file_ = engine_->add_file(descriptor_);
  }
  void TearDown() override {
    engine_.reset();
    ::close(descriptor_);
  }
  IoCompletion run(const IoBlock& block) {
    EXPECT_EQ(engine_->submit({&block, 1}), 1u);
    std::array<IoCompletion, 8> done;
    for (;;) {
      if (const std::size_t count = engine_->reap(done, -1)) {
        EXPECT_EQ(count, 1u);
        return done[0];
      }
    }
  }

  TestDirectory directory_;
  std::unique_ptr<IoEngine> engine_;
  int descriptor_ = -1;
  int file_ = -1;
};
INSTANTIATE_TEST_SUITE_P(
    All, Engines, testing::Values(EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads),
    [](const auto& info) { return std::string(engine_kind_name(info.param)); });

TEST_P(Engines, MovesBlocksAndGivesBackTagsAndResults) {
  Memory out(8192), in(8192);
  out.fill(1);
  EXPECT_EQ(run({IoOp::kWrite, file_, 4096, out.data(), 8192, 17}).result, 8192);
  EXPECT_EQ(run({IoOp::kSync, file_, 0, nullptr, 0, 18}).result, 0);
  const IoCompletion read = run({IoOp::kRead, file_, 4096, in.data(), 8192, 19});
  EXPECT_EQ(read.tag, 19u);
  EXPECT_EQ(read.result, 8192);
  EXPECT_TRUE(in == out);
}

TEST_P(Engines, ReportsErrorsAndEndOfFileAsResults) {
  Memory memory(8192);
  EXPECT_EQ(run({IoOp::kWrite, file_, 0, memory.data(), 4096, 1}).result, 4096);
  EXPECT_EQ(run({IoOp::kRead, file_, 4096, memory.data(), 4096, 2}).result, 0);
  EXPECT_EQ(run({IoOp::kRead, file_, 0, memory.data(), 8192, 3}).result, 4096);
  // Field case 001: what is not a multiple of the sector is refused, and the refusal is seen.
  EXPECT_EQ(run({IoOp::kWrite, file_, 0, memory.data(), 448, 4}).result, -EINVAL);
  EXPECT_EQ(run({IoOp::kWrite, file_, 448, memory.data(), 4096, 5}).result, -EINVAL);
}

TEST_P(Engines, TakesNoMoreThanItsDepth) {
  Memory memory(16 * 4096);
  std::vector<IoBlock> blocks;
  for (std::uint64_t i = 0; i < 16; ++i) {
    blocks.push_back({IoOp::kWrite, file_, i * 4096, memory.data() + i * 4096, 4096, i});
  }
  const std::size_t taken = engine_->submit(blocks);
  EXPECT_EQ(taken, 8u);
  std::array<IoCompletion, 16> done;
  std::size_t completed = 0;
  while (completed < taken) completed += engine_->reap(done, -1);
  EXPECT_EQ(completed, 8u);
  EXPECT_EQ(engine_->reap(done, 0), 0u);
}

TEST_P(Engines, WakeEndsAWaitBeforeAndDuring) {
  std::array<IoCompletion, 8> done;
  engine_->wake();
  EXPECT_EQ(engine_->reap(done, -1), 0u);
  for (int i = 0; i < 50; ++i) {
    std::thread waker([this] { engine_->wake(); });
    EXPECT_EQ(engine_->reap(done, -1), 0u);
    waker.join();
  }
}

TEST_P(Engines, DestructionWaitsForBlocksInFlight) {
  Memory memory(kMiB);
  const IoBlock block{IoOp::kWrite, file_, 0, memory.data(), kMiB, 1};
  EXPECT_EQ(engine_->submit({&block, 1}), 1u);
  if (GetParam() == EngineKind::kIoUring) {  // starts with the first reap
    std::array<IoCompletion, 8> none;
    engine_->reap({none.data(), 0}, 0);
  }
  engine_.reset();
  struct stat info {};
  ASSERT_EQ(::fstat(descriptor_, &info), 0);
  EXPECT_EQ(info.st_size, static_cast<off_t>(kMiB));
}

// More than two of them in one system call would be merged. So all but perhaps the last are on
// their way before anybody reaps.
TEST_P(Engines, LargeBlocksStartWithoutWaitingForAReap) {
  constexpr Bytes kBlock = 128 * kKiB;
  Memory out(4 * kBlock), in(4 * kBlock);
  out.fill(12);
  std::vector<IoBlock> blocks;
  for (std::uint64_t i = 0; i < 4; ++i)
    blocks.push_back({IoOp::kWrite, file_, i * kBlock, out.data() + i * kBlock, kBlock, i});
  ASSERT_EQ(engine_->submit(blocks), 4u);
  const auto arrived = [&] {
    return ::pread(descriptor_, in.data(), 3 * kBlock, 0) == static_cast<ssize_t>(3 * kBlock) &&
           std::equal(in.data(), in.data() + 3 * kBlock, out.data());
  };
  for (const double give_up = now_seconds() + 30; !arrived() && now_seconds() < give_up;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(arrived());
}

TEST_P(Engines, MemoryMadeKnownInPiecesOrNotAtAllGivesTheSameBytes) {
  constexpr Bytes kBlock = 64 * kKiB;
  Memory known(8 * kBlock), unknown(8 * kBlock);
  const bool pins = GetParam() == EngineKind::kIoUring && registration_refusal(8 * kBlock).empty();
  EXPECT_EQ(engine_->add_memory({known.data(), 3 * kBlock}), pins ? 3 * kBlock : 0);
  // Not all of the last block.
  const Bytes rest = 5 * kBlock - 4096;
  EXPECT_EQ(engine_->add_memory({known.data() + 3 * kBlock, rest}), pins ? rest : 0);
  const auto through = [&](const Memory& from, const Memory& to) {
    for (std::uint64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(run({IoOp::kWrite, file_, i * kBlock, from.data() + i * kBlock, kBlock, i}).result,
                static_cast<std::int64_t>(kBlock));
      EXPECT_EQ(run({IoOp::kRead, file_, i * kBlock, to.data() + i * kBlock, kBlock, i}).result,
                static_cast<std::int64_t>(kBlock));
    }
  };
  unknown.fill(9);
  through(unknown, known);
  EXPECT_TRUE(known == unknown);
  known.fill(10);
  through(known, unknown);
  EXPECT_TRUE(known == unknown);
}

TEST(RegistrationPieces, CoverTheMemoryInOrderAndAreAtMostAGiB) {
  auto* const start = reinterpret_cast<std::byte*>(kGiB);  // only counted with
  for (const Bytes bytes :
       {Bytes{0}, Bytes{4096}, kGiB - 4096, kGiB, kGiB + 4096, 5 * kGiB / 2, 7 * kGiB}) {
    Bytes covered = 0;
    const auto pieces = registration_pieces({start, bytes});
    for (const auto piece : pieces) {
      EXPECT_EQ(piece.data(), start + covered);
      EXPECT_LE(piece.size(), kGiB);
      covered += piece.size();
    }
    EXPECT_EQ(covered, bytes);
    EXPECT_EQ(pieces.size(), (bytes + kGiB - 1) / kGiB);
  }
}

// Addresses of this many bytes that are all backed by the same few: large without taking memory.
class LargeAddresses {
 public:
  LargeAddresses(Bytes bytes, Bytes backed) : bytes_(bytes) {
    const int file = ::memfd_create("zinf-test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(backed)), 0);
    void* all = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    data_ = static_cast<std::byte*>(all);
    for (Bytes at = 0; at < bytes; at += backed) {
      EXPECT_NE(::mmap(data_ + at, backed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
                MAP_FAILED);
    }
    ::close(file);
  }
  ~LargeAddresses() { ::munmap(data_, bytes_); }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  Bytes bytes_;
  std::byte* data_ = nullptr;
};

// One registration of more than 1 GiB would be refused. Where locked memory is too short for two
// pieces, none or the first is registered; blocks go through all the same.
TEST(UringEngine, RegistersMoreThanAGiBInPieces) {
  constexpr Bytes kBacked = 64 * kMiB, kBlock = 64 * kKiB;
  const LargeAddresses memory(kGiB + kBacked, kBacked);
  const auto engine = make_engine({EngineKind::kIoUring, 8});
  const Bytes registered = engine->add_memory(memory.span());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (may_exceed_locked_memory() || limit.rlim_cur >= 4 * kGiB) {
    EXPECT_EQ(registered, memory.span().size());
  } else {
    EXPECT_TRUE(registered == 0 || registered == kGiB || registered == memory.span().size())
        << registered;
  }
  const TestDirectory directory;
  const int descriptor =
      ::open((directory.path() + "/file").c_str(), O_RDWR | O_CREAT | O_DIRECT, 0600);
  ASSERT_GE(descriptor, 0);
  const int file = engine->add_file(descriptor);
  const auto run = [&](const IoBlock& block) {
    EXPECT_EQ(engine->submit({&block, 1}), 1u);
    std::array<IoCompletion, 8> done;
    while (engine->reap(done, -1) == 0) continue;
    return done[0].result;
  };
  // In the first piece, on the border of both, in the second.
  for (const Bytes at : {Bytes{0}, kGiB - kBlock / 2, kGiB + kBlock}) {
    Memory in(kBlock);
    std::byte* const out = memory.span().data() + at;
    for (Bytes i = 0; i < kBlock; ++i) out[i] = static_cast<std::byte>(i * 7 + at / kBlock);
    EXPECT_EQ(run({IoOp::kWrite, file, 0, out, kBlock, 1}), static_cast<std::int64_t>(kBlock));
    EXPECT_EQ(run({IoOp::kRead, file, 0, in.data(), kBlock, 2}), static_cast<std::int64_t>(kBlock));
    EXPECT_EQ(std::memcmp(in.data(), out, kBlock), 0) << at;
  }
  ::close(descriptor);
}

TEST(EngineKinds, AreParsedByName) {
  EXPECT_EQ(parse_engine_kind("auto"), EngineKind::kAuto);
  EXPECT_EQ(parse_engine_kind("libaio"), EngineKind::kLibaio);
  EXPECT_EQ(error_of([] { parse_engine_kind("uring"); }),
            "unknown I/O engine \"uring\"; expected auto, io_uring, libaio or threads");
}

// Field case 007.
TEST(LibaioEngine, NamesTheSystemLimitWhenEventSlotsRunOut) {
  long most = 0;
  std::ifstream("/proc/sys/fs/aio-max-nr") >> most;
  const int depth = static_cast<int>(std::max(70000L, most));
  const std::string text = error_of([&] { make_engine({EngineKind::kLibaio, depth}); });
  EXPECT_NE(text.find("I/O engine libaio is unavailable"), std::string::npos) << text;
  EXPECT_NE(
      text.find(str(depth + 1, " event slots were asked for, sysctl fs.aio-max-nr is ", most)),
      std::string::npos)
      << text;
}

TEST(UringEngine, RefusesADepthThatNoRingHolds) {
  EXPECT_NE(error_of([] {
              make_engine({EngineKind::kIoUring, 70000});
            }).find("at most 32000 blocks, 70000"),
            std::string::npos);
}

// Field case 006. Each check runs in a child that has lost something; an empty answer means all is
// well.
std::string round_trip(const std::string& path, EngineKind kind,
                       const std::string& expected_engine) {
  StoreOptions options;
  options.drives = {{path}};
  options.engine = kind;
  Store store(options);
  const ExtentId extent = store.allocate(3 * kMiB + 4096);
  store.open(OpenMode::kReplace);
  Memory out(3 * kMiB + 4096), in(3 * kMiB + 4096);
  out.fill(6);
  wait_for([&](IoCallback done) {
    store.write(extent, 0, out.data(), out.size(), done);
  }).throw_if_failed();
  store.sync();
  wait_for([&](IoCallback done) {
    store.read(extent, 0, in.data(), in.size(), done);
  }).throw_if_failed();
  if (!(in == out)) return "other bytes";
  const std::string engine = store.counters().at(0).engine;
  return engine == expected_engine ? "" : "engine " + engine;
}

TEST(RefusedIoUring, AutoFallsBackToLibaioAndThenToThreads) {
  for (const int error : {EPERM, ENOSYS}) {
    TestDirectory directory;
    EXPECT_EQ(in_child([&] {
                refuse_system_call(__NR_io_uring_setup, error);
                return round_trip(directory.path(), EngineKind::kAuto, "libaio");
              }),
              "");
    EXPECT_EQ(in_child([&] {
                refuse_system_call(__NR_io_uring_setup, error);
                refuse_system_call(__NR_io_setup, error);
                return round_trip(directory.path(), EngineKind::kAuto, "threads");
              }),
              "");
  }
}

TEST(RefusedIoUring, IsSaidOnceInTheLog) {
  TestDirectory directory;
  const std::string path = directory.path() + "/log";
  EXPECT_EQ(in_child([&]() -> std::string {
              if (!std::freopen(path.c_str(), "w", stderr)) return "freopen";
              refuse_system_call(__NR_io_uring_setup, EPERM);
              make_engine({EngineKind::kAuto, 4});
              make_engine({EngineKind::kAuto, 4});
              std::fflush(stderr);
              return "";
            }),
            "");
  std::ifstream log(path);
  int lines = 0;
  for (std::string line; std::getline(log, line);) {
    lines += line.find("NVMe engine: libaio, because io_uring is unavailable (io_uring_setup: ") !=
             std::string::npos;
  }
  EXPECT_EQ(lines, 1);
}

TEST(RefusedIoUring, IsAnErrorWithItsCauseWhenChosenByName) {
  const auto text = [](int error) {
    return in_child([&] {
      refuse_system_call(__NR_io_uring_setup, error);
      return error_of([] { make_engine({EngineKind::kIoUring, 4}); });
    });
  };
  EXPECT_EQ(text(EPERM),
            "I/O engine io_uring is unavailable: io_uring_setup: Operation not permitted (EPERM); "
            "a sandbox (seccomp "
            "profile of the container) forbids it\n  hint: io.engine: auto takes the best engine "
            "that works here");
  EXPECT_NE(text(ENOSYS).find(
                "Function not implemented (ENOSYS); the kernel is built without it or a seccomp"),
            std::string::npos);
  EXPECT_NE(text(ENOMEM).find("(ENOMEM); the locked-memory limit (ulimit -l) is "),
            std::string::npos);
}

// Some kernels count the ring itself as locked memory, others do not.
TEST(LockedMemoryLimit, OfZeroChangesTheEngineAtMost) {
  TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const std::string engine = in_child([&] {
    set_limit(RLIMIT_MEMLOCK, 0);
    become_nobody();
    return round_trip(directory.path(), EngineKind::kAuto, "io_uring");
  });
  EXPECT_TRUE(engine.empty() || engine == "engine libaio") << engine;
  const std::string refusal = in_child([] {
    set_limit(RLIMIT_MEMLOCK, 0);
    become_nobody();
    return error_of([] { make_engine({EngineKind::kIoUring, 32}); });
  });
  EXPECT_TRUE(refusal.empty() ||
              refusal.find("the locked-memory limit (ulimit -l) is 0 KiB") != std::string::npos)
      << refusal;
}

// Field case 005: memory that can't be pinned is used as it is, after one warning with size and
// limit.
TEST(LockedMemoryLimit, MemoryThatCannotBePinnedIsSaidOnce) {
  TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const std::string log_path = directory.path() + "/log";
  EXPECT_EQ(in_child([&]() -> std::string {
              if (!std::freopen(log_path.c_str(), "w", stderr)) return "freopen";
              set_limit(RLIMIT_MEMLOCK, 65536);
              become_nobody();
              StoreOptions options;
              options.drives = {{directory.path()}};
              options.engine = EngineKind::kIoUring;
              Memory out(2 * kMiB), in(2 * kMiB);
              out.fill(3);
              Store store(options);
              const ExtentId extent = store.allocate(2 * kMiB);
              store.open(OpenMode::kReplace);
              store.add_memory({out.data(), out.size()});
              store.add_memory({in.data(), in.size()});
              wait_for([&](IoCallback done) {
                store.write(extent, 0, out.data(), out.size(), done);
              }).throw_if_failed();
              wait_for([&](IoCallback done) {
                store.read(extent, 0, in.data(), in.size(), done);
              }).throw_if_failed();
              std::fflush(stderr);
              const Bytes pinned = store.counters().at(0).lane.pinned_bytes;
              if (pinned > 0) return str(pinned, " bytes pinned");
              return in == out ? "" : "other bytes";
            }),
            "");
  std::ifstream log(log_path);
  int lines = 0;
  for (std::string line; std::getline(log, line);) {
    lines += line.find("2.00 MiB of I/O buffers can't be registered with the kernel (") !=
                 std::string::npos &&
             line.find("ulimit -l, is 64 KiB") != std::string::npos;
  }
  EXPECT_EQ(lines, 1);
}

TEST(LockedMemoryLimit, Of64KiBDoesNotMatter) {
  TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  EXPECT_EQ(in_child([&] {
              set_limit(RLIMIT_MEMLOCK, 65536);
              become_nobody();
              return round_trip(directory.path(), EngineKind::kAuto, "io_uring");
            }),
            "");
}

}  // namespace
}  // namespace zinf::nvme
