#include "nvme/bench.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "nvme/huge_buffer.h"
#include "nvme/tune.h"
#include "tests/nvme/paced_drives.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

// What is tested here are counts, bytes and texts; rates are the machine's affair.

TEST(DriveBench, MovesWhatItSaysInTheRightProportions) {
  TestDirectory directory;
  {
    DriveBench bench(directory.path(), 16 * kMiB);
    EXPECT_EQ(bench.bytes_written(), 16 * kMiB);
    for (const EngineKind engine :
         {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
      BenchOptions options;
      options.engine = engine;
      options.block_size = 256 * kKiB;
      options.depth = 8;
      options.seconds = 0.05;
      const BenchResult read = bench.run(options);
      EXPECT_EQ(read.engine, engine_kind_name(engine));
      EXPECT_GT(read.bytes_read, 0u);
      EXPECT_EQ(read.bytes_read % options.block_size, 0u);
      EXPECT_EQ(read.bytes_written, 0u);
      EXPECT_GT(read.gb_per_second, 0);
      EXPECT_GE(read.p99_ms, read.p50_ms);
      options.traffic = Traffic::kWrite;
      const BenchResult write = bench.run(options);
      EXPECT_EQ(write.bytes_read, 0u);
      EXPECT_GT(write.bytes_written, 0u);
      options.traffic = Traffic::kMixed;
      options.memory_load = engine == EngineKind::kIoUring;
      const BenchResult mixed = bench.run(options);
      const auto blocks =
          static_cast<double>((mixed.bytes_read + mixed.bytes_written) / options.block_size);
      EXPECT_NEAR(static_cast<double>(mixed.bytes_read / options.block_size), blocks * 14 / 26,
                  1.5);
    }
    EXPECT_EQ(bench.facts().direct, bench.facts().why_buffered.empty());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(DriveBench, AKeptFileIsUsedAgain) {
  TestDirectory directory;
  const std::string kept = directory.path() + "/" + DriveBench::kKeptFile;
  { EXPECT_EQ(DriveBench(directory.path(), 4 * kMiB, true).bytes_written(), 4 * kMiB); }
  EXPECT_EQ(std::filesystem::file_size(kept), 4 * kMiB);
  {
    DriveBench again(directory.path(), 4 * kMiB, true);
    EXPECT_EQ(again.bytes_written(), 0u);
    EXPECT_EQ(again.path(), kept);
    EXPECT_GT(again.run({.block_size = 64 * kKiB, .seconds = 0.01}).bytes_read, 0u);
  }
  { EXPECT_EQ(DriveBench(directory.path(), 8 * kMiB, true).bytes_written(), 8 * kMiB); }
  EXPECT_EQ(std::filesystem::file_size(kept), 8 * kMiB);
}

TEST(DriveBench, RefusesWhatCannotBeMeasured) {
  TestDirectory directory;
  DriveBench bench(directory.path(), 4 * kMiB);
  EXPECT_NE(error_of([&] {
              bench.run({.block_size = 1000});
            }).find("block size 1000 bytes; expected a multiple of 4096"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              bench.run({.block_size = 4 * kMiB});
            }).find("does not fit twice into a file of 4.00 MiB"),
            std::string::npos);
  EXPECT_NE(error_of([&] { bench.run({.depth = 0}); }).find("depth 0; expected 1 to 4096"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { DriveBench(directory.path(), Bytes{1} << 60); }).find("not enough space in"),
      std::string::npos);
}

TEST(HugeBuffer, IsAlignedAndSaysWhatItGot) {
  const HugeBuffer small(4 * kMiB, false);
  EXPECT_FALSE(small.huge());
  const HugeBuffer huge(4 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(huge.data()) % (2 * kMiB), 0u);
  EXPECT_EQ(huge.size(), 4 * kMiB);
}

TuneRow row(const char* engine, Bytes block, int depth, double mixed, double cpu) {
  TuneRow made;
  made.engine = engine;
  made.block_size = block;
  made.depth = depth;
  made.mixed = {mixed, mixed, mixed, 1};
  made.cpu_seconds_per_gb = cpu;
  return made;
}

TEST(ChooseRow, TakesTheCheapestWithinTwoPercentOfTheBest) {
  EXPECT_EQ(choose_row({}), -1);
  EXPECT_EQ(choose_row({row("a", kMiB, 64, 4.00, 0.1), row("a", kMiB, 16, 3.93, 0.1),
                        row("a", kMiB, 8, 3.90, 0.1)}),
            1);
  EXPECT_EQ(choose_row({row("a", kMiB, 16, 4.00, 0.2), row("b", kMiB, 16, 3.99, 0.1)}), 1);
  EXPECT_EQ(choose_row({row("a", kMiB, 16, 0, 0.2)}), -1);
  // Where repetitions differ by 8 %, 4 % less is as good; 5 % less is not, nor 11 % less ever.
  TuneRow spread = row("a", kMiB, 64, 4.00, 0.1);
  spread.mixed = {4.00, 3.84, 4.16, 5};
  EXPECT_EQ(choose_row({spread, row("a", kMiB, 16, 3.85, 0.1)}), 1);
  EXPECT_EQ(choose_row({spread, row("a", kMiB, 16, 3.80, 0.1)}), 0);
  spread.mixed = {4.00, 2.00, 4.50, 5};
  EXPECT_EQ(choose_row({spread, row("a", kMiB, 16, 3.56, 0.1)}), 0);
}

TEST(NextFinalist, IsOneThatLookedBetterThanAnyThatWasMeasured) {
  std::vector<TuneRow> rows(4);
  const double scouted[] = {1.9, 2.4, 2.2, 2.0};
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].mixed = {scouted[i], 0, 0, 1};
  EXPECT_EQ(next_finalist(rows), 1);
  rows[1].read.repeats = 3;  // it was lucky
  rows[1].mixed.median = 1.95;
  EXPECT_EQ(next_finalist(rows), 2);
  rows[2].read.repeats = 3;
  rows[2].mixed.median = 2.1;
  EXPECT_EQ(next_finalist(rows), -1);
  rows[0].read.repeats = rows[3].read.repeats = 3;
  EXPECT_EQ(next_finalist(rows), -1);
}

TEST(RateBar, FillsInProportion) {
  EXPECT_EQ(rate_bar(2, 4, 8), "====----");
  EXPECT_EQ(rate_bar(5, 4, 4), "====");
  EXPECT_EQ(rate_bar(1, 0, 4), "----");
}

// Field case 012: direct, nothing left behind, settings within the limits; the profile is complete.
TEST(Tune, MeasuresChoosesAndLeavesNothing) {
  TestDirectory directory;
  TuneOptions options;
  options.directory = directory.path();
  options.block_sizes = {128 * kKiB, 512 * kKiB};
  options.depths = {2, 4};
  options.file_bytes = 16 * kMiB;
  options.seconds = 0.01;
  options.most_repeats = 3;
  int rows = 0;
  const TuneReport report = tune(options, [&](const TuneRow&) { ++rows; });
  EXPECT_GE(report.rows.size(), 6u);  // three engines, and the sweep
  EXPECT_GT(rows, static_cast<int>(report.rows.size()));
  int chosen = 0;
  for (const TuneRow& row : report.rows) {
    if (!row.chosen) continue;
    ++chosen;
    EXPECT_EQ(row.mixed.repeats, 3);
    EXPECT_EQ(row.read.repeats, 3);
    EXPECT_EQ(engine_kind_name(report.profile.engine), row.engine);
    EXPECT_EQ(report.profile.block_size, row.block_size);
    EXPECT_EQ(report.profile.depth, row.depth);
    EXPECT_EQ(report.profile.write_gb_per_second, row.write.median);
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_GT(report.profile.mixed_gb_per_second, 0);
  EXPECT_GT(report.bytes_written, options.file_bytes);
  EXPECT_NE(report.fio_line.find("--rwmixread=54 --ioengine="), std::string::npos)
      << report.fio_line;
  EXPECT_NE(report.fio_line.find("--direct=1 --size="), std::string::npos) << report.fio_line;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_EQ(stale_reason(report.profile, directory.path()), "");
}

// A folder's name is a name, to a shell and to fio, whatever is in it; and fio has the very file.
TEST(DriveBench, FioTakesAnyFolder) {
  TestDirectory directory;
  const std::string folder = directory.path() + "/it's $(touch INJECTED):0";
  const std::string tools = directory.path() + "/bin", said = directory.path() + "/said";
  std::filesystem::create_directories(folder);
  std::filesystem::create_directories(tools);
  std::ofstream(tools + "/fio")
      << "#!/bin/sh\n"
      << "for argument; do echo \"$argument\"; done > '" << said << "'\n"
      << "for argument; do case $argument in --filename=*)\n"
      << "  stat -L -c %i \"${argument#*=}\" >> '" << said << "';; esac; done\n"
      << "echo '{\"bw_bytes\" : 3000000000, \"bw_bytes\" : 1000000000}'\n";
  std::filesystem::permissions(tools + "/fio", std::filesystem::perms::owner_all);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (tools + ":" + path).c_str(), 1);
  DriveBench bench(folder, 4 * kMiB);
  struct stat file {};
  ASSERT_EQ(::stat(bench.open_path().c_str(), &file), 0);
  const auto lines = [&] {
    std::vector<std::string> list;
    std::ifstream in(said);
    for (std::string line; std::getline(in, line);) list.push_back(line);
    return list;
  };
  BenchOptions options;
  options.traffic = Traffic::kMixed;
  const FioResult result = run_fio(bench, options);
  EXPECT_EQ(result.why_not, "");
  EXPECT_DOUBLE_EQ(result.gb_per_second, 4);
  std::vector<std::string> ran = lines();
  ASSERT_GT(ran.size(), 4u);
  EXPECT_EQ(ran.back(), std::to_string(file.st_ino));
  EXPECT_EQ(ran[1], "--filename=" + bench.open_path());
  EXPECT_EQ(ran[ran.size() - 2], "--output-format=json");

  ASSERT_EQ(std::system((fio_command(bench, options) + " > /dev/null 2>&1").c_str()), 0);
  std::vector<std::string> pasted = lines();
  std::string escaped = bench.path();
  escaped.replace(escaped.find(':'), 1, "\\:");
  ASSERT_GT(pasted.size(), 4u);
  EXPECT_EQ(pasted[1], "--filename=" + escaped);
  ran.resize(ran.size() - 2);
  EXPECT_TRUE(std::equal(ran.begin() + 2, ran.end(), pasted.begin() + 2,
                         pasted.begin() + static_cast<std::ptrdiff_t>(ran.size())));
  EXPECT_FALSE(std::filesystem::exists("INJECTED"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));

  std::ofstream(tools + "/fio") << "#!/bin/sh\nexit 3\n";
  EXPECT_EQ(run_fio(bench, options).why_not, "fio ended with status 3");
  ::setenv("PATH", folder.c_str(), 1);
  EXPECT_EQ(run_fio(bench, options).why_not, "fio is not installed");
  ::setenv("PATH", path.c_str(), 1);
}

// Several folders share the time: shorter measurements, and never longer ones.
TEST(Tune, KeepsToItsTime) {
  const TuneOptions whole;
  EXPECT_LE(tune_needs_seconds(whole), whole.most_seconds);
  EXPECT_EQ(paced(whole, 1).seconds, whole.seconds);
  EXPECT_EQ(paced(whole, 1).fio_rounds, whole.fio_rounds);
  for (int folders = 2; folders <= 8; ++folders) {
    const TuneOptions fast = paced(whole, folders);
    EXPECT_DOUBLE_EQ(fast.most_seconds * folders, whole.most_seconds);
    EXPECT_LE(fast.seconds, whole.seconds);
    EXPECT_GE(fast.seconds, 0.1);
    EXPECT_LE(folders * tune_needs_seconds(fast), 120) << folders;
  }
  TuneOptions short_ones;
  short_ones.seconds = 0.02;
  short_ones.most_seconds = 1;
  EXPECT_EQ(paced(short_ones, 1).seconds, 0.02);
}

// On a clock that only the drives move, two slow ones: the time of both together, files included.
TEST(Tune, SeveralFoldersShareTheTimeHoweverSlowTheyAre) {
  const TestDirectory first, second;
  PacedDrives drives({{first.path(), 20e6, 20e6}, {second.path(), 40e6, 10e6}});
  TuneOptions whole;
  whole.file_bytes = 64 * kMiB;
  whole.fio_rounds = 0;  // it knows no such clock
  whole.wrap_engine = drives.wrapper();
  whole.clock = drives.clock();
  for (const TestDirectory* folder : {&first, &second}) {
    TuneOptions options = paced(whole, 2);
    options.directory = folder->path();
    const TuneReport report = tune(options);
    EXPECT_GT(report.profile.read_gb_per_second, 0);
    EXPECT_GT(report.profile.write_gb_per_second, 0);
  }
  EXPECT_NEAR(drives.drives()[0].busy_seconds, 50, 10);
  EXPECT_LE(drives.clock()(), 120);
}

TEST(Tune, SustainedWritesUntilTheRateHasFallenOrForAMinute) {
  for (const bool has_cache : {true, false}) {
    const TestDirectory directory;
    PacedDrive drive{directory.path(), 10e6, 10e6};
    if (has_cache) {
      drive.cache_bytes = 200 << 20;
      drive.cached_bytes_per_second = 20e6;
    }
    PacedDrives drives({drive});
    TuneOptions options;
    options.directory = directory.path();
    options.engines = {EngineKind::kThreads};
    options.block_sizes = {64 * kKiB};
    options.depths = {4};
    options.file_bytes = 64 * kMiB;
    options.fio_rounds = 0;
    options.sustained = true;
    options.wrap_engine = drives.wrapper();
    options.clock = drives.clock();
    int waits = 0;
    const TuneReport report = tune(options, {}, [&](const std::string&) { ++waits; });
    ASSERT_TRUE(report.settled);
    EXPECT_EQ(report.settled->fell, has_cache);
    EXPECT_NEAR(report.settled->best_gb_per_second, has_cache ? 0.02 : 0.01, 0.0005);
    EXPECT_NEAR(report.settled->gb_per_second, 0.01, 0.0005);
    EXPECT_NEAR(report.profile.write_gb_per_second, 0.01, 0.0005);
    if (has_cache) {
      EXPECT_GT(report.settled->bytes + options.file_bytes, Bytes{200} << 20);
      EXPECT_LT(report.settled->seconds, 40);
    } else {
      EXPECT_NEAR(report.settled->seconds, 60, 5);
    }
    EXPECT_GT(waits, 3);
  }
}

// Out of time: every finalist but the first is left out, and that one is measured once.
TEST(Tune, ChoosesEvenWithoutTime) {
  TestDirectory directory;
  TuneOptions options;
  options.directory = directory.path();
  options.engines = {EngineKind::kThreads};
  options.block_sizes = {128 * kKiB, 512 * kKiB};
  options.depths = {2, 4};
  options.file_bytes = 16 * kMiB;
  options.seconds = 0.01;
  options.most_seconds = 0;
  const TuneReport report = tune(options);
  EXPECT_EQ(report.rows.size(), 1u);
  EXPECT_TRUE(report.rows[0].chosen);
  EXPECT_EQ(report.rows[0].read.repeats, 1);
  EXPECT_GT(report.profile.write_gb_per_second, 0);
}

TEST(Tune, SaysHowMuchItMayWrite) {
  TuneOptions options;
  options.engines = {EngineKind::kThreads};
  options.block_sizes = {kMiB};
  options.depths = {8};
  options.seconds = 1;
  options.read_share = 0.5;
  options.most_repeats = 5;
  // The file, four scouting runs of half writes, six finalists of five repeats of one and a half,
  // three runs each of fio and of what it is compared with: 50 s at 1 GB/s.
  EXPECT_EQ(tune_will_write(options, 1), kGiB + 50000000000u);
  options.sustained = true;
  EXPECT_EQ(tune_will_write(options, 1), kGiB + 110000000000u);
}

}  // namespace
}  // namespace zinf::nvme
