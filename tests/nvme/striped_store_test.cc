// A store over several drives: who gets which part, and whose parts they are.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "nvme/fault_engine.h"
#include "nvme/store.h"
#include "tests/nvme/mounts.h"
#include "tests/nvme/store_io.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

// A store of two drives in one directory tree, its two extents filled with patterns.
struct TwoDrives {
  explicit TwoDrives(double first = 3, double second = 1) {
    for (const char* name : {"/a", "/b"})
      std::filesystem::create_directory(directory.path() + name);
    options.drives = {{directory.path() + "/a", 0, first}, {directory.path() + "/b", 0, second}};
    options.stripe_unit = 64 * kKiB;
  }
  std::unique_ptr<Store> open(OpenMode mode, Bytes second = 4096) {
    auto store = std::make_unique<Store>(options);
    store->allocate(8 * kMiB + 4096);
    store->allocate(second);
    store->open(mode);
    return store;
  }
  TestDirectory directory;
  StoreOptions options;
};

TEST(StripedStore, StripesOverDrivesInProportionToTheirWeights) {
  TwoDrives two;
  for (int i : {0, 1}) two.options.drives[i].write_bytes_per_second = i == 0 ? 600e6 : 200e6;
  const auto store = two.open(OpenMode::kCreate);
  Memory out(store->extent_bytes(0)), in(out.size());
  out.fill(4);
  write_all(*store, 0, out);
  read_all(*store, 0, in);
  EXPECT_TRUE(in == out);
  const auto counters = store->counters();
  const double share =
      static_cast<double>(counters[0].lane.bytes_written) / static_cast<double>(out.size());
  EXPECT_NEAR(share, 0.75, 0.75 * 0.05);
  EXPECT_EQ(counters[0].lane.bytes_written + counters[1].lane.bytes_written, out.size());
  EXPECT_EQ(counters[0].lane.bytes_read + counters[1].lane.bytes_read, out.size());
  // A range that starts and ends within units.
  Memory part(300 * kKiB);
  wait_for([&](IoCallback done) {
    store->read(0, 44 * kKiB, part.data(), part.size(), done);
  }).throw_if_failed();
  EXPECT_EQ(std::memcmp(part.data(), out.data() + 44 * kKiB, part.size()), 0);
}

TEST(StripedStore, EachDriveMayHaveItsOwnSettings) {
  TwoDrives two;
  two.options.depth = 8;
  two.options.block_size = 16 * kKiB;
  two.options.drives[0].settings = DriveSettings{EngineKind::kThreads, 8 * kKiB, 2};
  const auto store = two.open(OpenMode::kCreate);
  Memory out(store->extent_bytes(0)), in(out.size());
  out.fill(5);
  write_all(*store, 0, out);
  read_all(*store, 0, in);
  EXPECT_TRUE(in == out);
  const auto counters = store->counters();
  EXPECT_EQ(counters[0].engine, "threads");
  EXPECT_LE(counters[0].lane.in_flight_peak, 2u);
  EXPECT_GE(counters[1].lane.in_flight_peak, 4u);  // a stripe unit has four of its blocks
  two.options.drives[1].settings = DriveSettings{EngineKind::kAuto, kMiB, 0};
  EXPECT_NE(error_of([&] { Store refused(two.options); }).find("io.depth is 0; expected 1 to 4096"),
            std::string::npos);
}

// The first should take 6 of the 8 MiB, and has room for 3.
TEST(StripedStore, ADriveWithoutRoomForItsShareTakesWhatItCanAndIsSaidOnce) {
  TwoDrives two;
  two.options.drives[0].capacity = kMiB + 3 * kMiB;
  const std::string log = two.directory.path() + "/log";
  EXPECT_EQ(in_child([&]() -> std::string {
              if (!std::freopen(log.c_str(), "w", stderr)) return "freopen";
              Memory out(8 * kMiB + 4096), in(out.size());
              out.fill(6);
              for (const OpenMode mode : {OpenMode::kCreate, OpenMode::kReplace}) {
                const auto store = two.open(mode);
                write_all(*store, 0, out);
                store->sync();
                const Bytes first = store->counters()[0].lane.bytes_written;
                if (first > 3 * kMiB || first < 3 * kMiB * 9 / 10) return std::to_string(first);
                if (store->drive_bytes(0) > 4 * kMiB) return "capacity";
              }
              two.options.drives[0].capacity = 0;  // an area keeps what it was made with
              read_all(*two.open(OpenMode::kReopen), 0, in);
              std::fflush(stderr);
              return in == out ? "" : "other bytes";
            }),
            "");
  std::ifstream file(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 1u) << testing::PrintToString(lines);
  EXPECT_NE(lines[0].find("/a has room for 3.00 MiB of the 8.01 MiB of this area: it takes 3"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[0].find("not the 75.0 % that its speed asks for"), std::string::npos) << lines[0];
}

// The same by what is free, without a capacity.
TEST(StripedStore, ASmallFileSystemTakesWhatItCan) {
  TwoDrives two;
  const std::string text = in_own_mounts([&]() -> std::string {
    if (::mount("none", (two.directory.path() + "/a").c_str(), "tmpfs", 0, "size=6m") != 0)
      return "skip";
    const auto store = two.open(OpenMode::kCreate);
    Memory out(store->extent_bytes(0)), in(out.size());
    out.fill(7);
    write_all(*store, 0, out);
    read_all(*store, 0, in);
    if (store->drive_bytes(0) > 6 * kMiB || store->drive_bytes(0) < 5 * kMiB)
      return std::to_string(store->drive_bytes(0));
    return in == out ? "" : "other bytes";
  });
  if (text == "skip") GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(text, "");
}

TEST(StripedStore, AFaultOnOneDriveFailsTheRequestOnceAndNamesTheDrive) {
  TwoDrives two;
  const auto faults = std::make_shared<FaultControl>(FaultOptions{.fail_block = 5});
  two.options.wrap_engine = faults->wrapper();
  const auto store = two.open(OpenMode::kCreate);
  Memory memory(8 * kMiB);
  int calls = 0;
  const IoResult result = wait_for([&](IoCallback done) {
    store->write(0, 0, memory.data(), memory.size(), [&calls, done](const IoResult& r) {
      ++calls;
      done(r);
    });
  });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(calls, 1);
  EXPECT_NE(result.failure->message.find("/zinf.zinf-area: Input/output error (EIO)"),
            std::string::npos);
}

TEST(StripedStore, ALaterStoreFindsItsBytesAgainWhateverTheWeightsAreNow) {
  TwoDrives two;
  Memory out(8 * kMiB + 4096), in(out.size());
  out.fill(5);
  {
    const auto store = two.open(OpenMode::kCreate);
    write_all(*store, 0, out);
    store->sync();
  }
  two.options.drives[0].weight = 1;
  const auto store = two.open(OpenMode::kReopen);
  read_all(*store, 0, in);
  EXPECT_TRUE(in == out);
}

TEST(StripedStore, RefusesAreasThatAreNotItsOwn) {
  TwoDrives two;
  const std::string a = two.directory.path() + "/a/zinf.zinf-area",
                    b = two.directory.path() + "/b/zinf.zinf-area";
  const auto reopen_error = [&](Bytes second = 4096) {
    return error_of([&] { two.open(OpenMode::kReopen, second); });
  };
  EXPECT_NE(reopen_error().find("swap area " + a + " is missing"), std::string::npos)
      << reopen_error();
  two.open(OpenMode::kCreate);
  EXPECT_EQ(reopen_error(), "");
  EXPECT_NE(reopen_error(8192).find("it holds 8396800 bytes of extents, the run has 8400896"),
            std::string::npos)
      << reopen_error(8192);
  EXPECT_NE(error_of([&] {
              two.open(OpenMode::kCreate);
            }).find(a + " exists already, left by another run"),
            std::string::npos);

  std::filesystem::rename(a, a + "2");  // two files swapped
  std::filesystem::rename(b, a);
  std::filesystem::rename(a + "2", b);
  EXPECT_NE(reopen_error().find("it is drive 1 of its area, not 0"), std::string::npos)
      << reopen_error();
  std::filesystem::rename(a, a + "2");
  std::filesystem::rename(b, a);
  std::filesystem::rename(a + "2", b);
  EXPECT_EQ(reopen_error(), "");

  std::filesystem::resize_file(b, std::filesystem::file_size(b) - 4096);
  EXPECT_NE(reopen_error().find(b + " does not fit this run: its size is "), std::string::npos)
      << reopen_error();
  two.open(OpenMode::kReplace);
  std::filesystem::copy_file(b, two.directory.path() + "/old");
  two.open(OpenMode::kReplace);
  std::filesystem::remove(b);
  std::filesystem::rename(two.directory.path() + "/old", b);
  EXPECT_NE(reopen_error().find(b + " does not fit this run: it belongs to another area than " + a),
            std::string::npos)
      << reopen_error();
}

}  // namespace
}  // namespace zinf::nvme
