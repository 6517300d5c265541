#include "nvme/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "engine/base/machine.h"
#include "nvme/fault_engine.h"
#include "tests/nvme/sandbox.h"
#include "tests/nvme/store_io.h"
#include "tests/nvme/test_support.h"

namespace zinf::nvme {
namespace {

StoreOptions one_drive(const std::string& path) {
  StoreOptions options;
  options.drives = {{path}};
  return options;
}

class StoreEngines : public testing::TestWithParam<EngineKind> {};
INSTANTIATE_TEST_SUITE_P(All, StoreEngines,
                         testing::Values(EngineKind::kIoUring, EngineKind::kLibaio,
                                         EngineKind::kThreads),
                         [](const auto& info) {
                           return std::string(engine_kind_name(info.param));
                         });

// Field case 003: (depth, block) from one tiny block at a time to more slots and larger blocks than
// there are bytes.
TEST_P(StoreEngines, SameBytesWithEveryDepthAndBlockSize) {
  struct Setting {
    int depth;
    Bytes block;
  };
  for (const auto& [depth, block] :
       {Setting{1, 4096}, {2, kMiB}, {128, kMiB}, {128, 16 * kMiB}, {1000, 64 * kKiB}}) {
    TestDirectory directory;
    StoreOptions options = one_drive(directory.path());
    options.engine = GetParam();
    options.depth = depth;
    options.block_size = block;
    Store store(options);
    const Bytes large = block == 4096 ? 256 * kKiB + 448 : 3 * kMiB + 448;
    // Field case 001: 3 MiB + 448 bytes, and the smallest tensors; the extent is padded, never the
    // caller's worry.
    std::vector<ExtentId> extents;
    std::vector<std::unique_ptr<Memory>> written;
    for (const Bytes bytes : {large, Bytes{2}, Bytes{4}, Bytes{510}, Bytes{512}, Bytes{514}}) {
      extents.push_back(store.allocate(bytes));
      written.push_back(std::make_unique<Memory>(store.extent_bytes(extents.back())));
      written.back()->fill(bytes);
    }
    store.open(OpenMode::kCreate);
    for (std::size_t i = 0; i < extents.size(); ++i) write_all(store, extents[i], *written[i]);
    store.sync();
    for (std::size_t i = 0; i < extents.size(); ++i) {
      Memory back(written[i]->size());
      read_all(store, extents[i], back);
      EXPECT_TRUE(back == *written[i])
          << "extent " << i << ", depth " << depth << ", block " << block;
    }
    const DriveCounters counters = store.counters().at(0);
    EXPECT_EQ(counters.engine, engine_kind_name(GetParam()));
    EXPECT_EQ(counters.lane.bytes_written, store.allocated_bytes());
    EXPECT_EQ(counters.lane.bytes_read, store.allocated_bytes());
    EXPECT_EQ(counters.lane.write_requests, extents.size());
    EXPECT_EQ(counters.lane.syncs, 1u);
  }
}

TEST(Store, ThreadsAreHonouredByTheEngineThatHasThemAndElseSaidOnce) {
  TestDirectory directory;
  const auto log_of = [&](EngineKind engine) {
    const std::string path = directory.path() + "/log";
    EXPECT_EQ(in_child([&]() -> std::string {
                if (!std::freopen(path.c_str(), "w", stderr)) return "freopen";
                StoreOptions options;
                options.drives = {{directory.path()}};
                options.engine = engine;
                options.threads = 3;
                const auto tasks = [] {
                  const std::filesystem::directory_iterator all("/proc/self/task");
                  return std::distance(begin(all), end(all));
                };
                std::thread([] {}).join();  // a sanitizer starts one of its own with the first
                const auto before = tasks();
                Store first(options), second(options);
                const auto workers = tasks() - before - 2;  // beside each store's lane
                std::fflush(stderr);
                return std::to_string(workers);
              }),
              engine == EngineKind::kThreads ? "6" : "0");
    std::ifstream file(path);
    int lines = 0;
    for (std::string line; std::getline(file, line);)
      lines += line.find("io.threads: 3 has no effect with libaio") != std::string::npos;
    return lines;
  };
  EXPECT_EQ(log_of(EngineKind::kLibaio), 1);
  EXPECT_EQ(log_of(EngineKind::kThreads), 0);
}

TEST(Store, ADamagedHeaderIsNamed) {
  TestDirectory directory;
  const std::string path = directory.path() + "/zinf.zinf-area";
  const auto open = [&](OpenMode mode) {
    Store store(one_drive(directory.path()));
    store.allocate(4096);
    store.open(mode);
  };
  const auto damage = [&](std::streamoff at) {
    open(OpenMode::kReplace);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put('\x7f');
    file.close();
    return error_of([&] { open(OpenMode::kReopen); });
  };
  EXPECT_NE(damage(0).find(path + " is no swap area"), std::string::npos);
  EXPECT_NE(damage(8).find(path + " has version 127, this program reads version 1"),
            std::string::npos);
  EXPECT_NE(damage(3000).find(path + " has a damaged header (bytes 0 to 4095)"), std::string::npos);
}

TEST(Store, TwoStoresNeverShareAnArea) {
  TestDirectory directory;
  Store first(one_drive(directory.path()));
  first.allocate(4096);
  first.open(OpenMode::kCreate);
  const std::string text = error_of([&] {
    Store second(one_drive(directory.path()));
    second.allocate(4096);
    second.open(OpenMode::kReplace);
  });
  EXPECT_NE(text.find("zinf.zinf-area is in use by another process"), std::string::npos) << text;
  // The refused one has not touched it.
  Memory memory(4096);
  read_all(first, 0, memory);
}

TEST(Store, FilesArePrivateBoundedInNameAndPreallocated) {
  TestDirectory directory;
  StoreOptions options = one_drive(directory.path());
  options.area = std::string(64, 'x');
  Store store(options);
  // Field case 014: 400 extents, one name.
  for (int i = 0; i < 400; ++i) store.allocate(1000);
  store.open(OpenMode::kCreate);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    ++files;
    EXPECT_LT(entry.path().filename().string().size(), 100u);
    struct stat info {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_EQ(static_cast<Bytes>(info.st_size), kMiB + 400 * 4096);
    EXPECT_EQ(static_cast<Bytes>(info.st_size), store.drive_bytes(0));
    EXPECT_GE(static_cast<Bytes>(info.st_blocks) * 512, kMiB + 400 * 4096);
  }
  EXPECT_EQ(files, 1);
  Memory memory(4096);
  read_all(store, 7, memory);
  for (std::size_t i = 0; i < memory.size(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  store.remove();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Store, SpaceAndCapacityAreCheckedBeforeAnythingIsCreated) {
  TestDirectory directory;
  const auto open = [&](Bytes bytes, Bytes capacity) {
    StoreOptions options = one_drive(directory.path());
    options.drives[0].capacity = capacity;
    Store store(options);
    store.allocate(bytes);
    store.open(OpenMode::kCreate);
  };
  const std::string space = error_of([&] { open(Bytes{1} << 60, 0); });
  EXPECT_NE(space.find("not enough space in " + directory.path() + ": needed "), std::string::npos)
      << space;
  EXPECT_NE(space.find("(1152921504607895552 bytes), free "), std::string::npos) << space;
  const std::string capacity = error_of([&] { open(16 * kMiB, 4 * kMiB); });
  EXPECT_NE(capacity.find("needs 17.0 MiB (17825792 bytes), but its capacity is set to 4.00 MiB"),
            std::string::npos)
      << capacity;
  const std::string limit = in_child([&] {
    set_limit(RLIMIT_FSIZE, 3 * kMiB + 4096);
    return error_of([&] { open(16 * kMiB, 0); });
  });
  EXPECT_NE(limit.find("needs 17825792 bytes, but the file-size limit is 3149824 bytes"),
            std::string::npos)
      << limit;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Store, LocationNamesFileAndOffset) {
  TestDirectory directory;
  Store store(one_drive(directory.path()));
  store.allocate(8192);
  const ExtentId second = store.allocate(8192);
  EXPECT_EQ(store.location(second, 4096), directory.path() + "/zinf.zinf-area at offset 1060864");
}

// Field case 009: requests leave nothing behind.
TEST(Store, MemoryStaysFlatOverManyRequests) {
  TestDirectory directory;
  Store store(one_drive(directory.path()));
  store.allocate(kMiB);
  store.open(OpenMode::kCreate);
  Memory memory(64 * kKiB);
  const auto some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      wait_for([&](IoCallback done) {
        store.write(0, 0, memory.data(), memory.size(), done);
      }).throw_if_failed();
      wait_for([&](IoCallback done) {
        store.read(0, 0, memory.data(), memory.size(), done);
      }).throw_if_failed();
    }
  };
  some(50);
  const Bytes before = resident_bytes();
  some(500);
  // 62 MiB have moved. Less would meet the sanitizers' own quarantine.
  EXPECT_LT(resident_bytes(), before + 8 * kMiB);
}

TEST(Store, AFlippedBitNamesFileOffsetAndPage) {
  TestDirectory directory;
  const auto open = [&](OpenMode mode, bool verify) {
    StoreOptions options = one_drive(directory.path());
    options.verify = verify;
    auto store = std::make_unique<Store>(options);
    store->allocate(4096);
    store->allocate(3 * kChecksumPage + 8192);
    store->open(mode);
    return store;
  };
  const auto flip = [&](std::streamoff at) {
    std::fstream file(directory.path() + "/zinf.zinf-area",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
  };
  Memory out(3 * kChecksumPage + 8192), in(out.size());
  out.fill(9);
  std::vector<std::uint64_t> checksums;
  {
    const auto store = open(OpenMode::kCreate, true);
    write_all(*store, 1, out);
    store->sync();
    read_all(*store, 1, in);
    EXPECT_EQ(store->page_counters().hashed, 4u);
    EXPECT_EQ(store->page_counters().verified, 4u);
    checksums = store->page_checksums(1);
    // Read in part: a whole page in the middle is compared, its cut neighbours are not.
    wait_for([&](IoCallback done) {
      store->read(1, 4096, in.data(), 2 * kChecksumPage, done);
    }).throw_if_failed();
    EXPECT_EQ(store->page_counters().verified, 5u);
    EXPECT_EQ(store->page_counters().unknown, 2u);
  }
  const Bytes start = kMiB + 4096;
  flip(static_cast<std::streamoff>(start + 2 * kChecksumPage + 77));
  const auto read_error = [&](Store& store) { return error_of([&] { read_all(store, 1, in); }); };
  EXPECT_EQ(read_error(*open(OpenMode::kReopen, false)), "");
  const auto store = open(OpenMode::kReopen, true);
  EXPECT_EQ(read_error(*store), "");
  EXPECT_EQ(store->page_counters().unknown, 4u);
  store->restore_page_checksums(1, checksums);
  EXPECT_NE(read_error(*store).find("page 2 of extent 1, 256 KiB in " + directory.path() +
                                    "/zinf.zinf-area at offset " +
                                    std::to_string(start + 2 * kChecksumPage) + ", is damaged"),
            std::string::npos)
      << read_error(*store);
  // A page that is written in part is unknown, whatever it was.
  wait_for([&](IoCallback done) {
    store->write(1, 2 * kChecksumPage, out.data(), 4096, done);
  }).throw_if_failed();
  EXPECT_EQ(store->page_checksums(1)[2], 0u);
  EXPECT_EQ(read_error(*store), "");
}

// What the caller sums is kept and compared like what the store sums.
TEST(Store, TakesChecksumsFromTheCaller) {
  TestDirectory directory;
  Store store(one_drive(directory.path()));
  const Bytes size = 2 * kChecksumPage + 8192;
  store.allocate(size);
  store.allocate(size);
  store.open(OpenMode::kCreate);
  Memory out(size), in(size);
  out.fill(4);
  write_all(store, 0, out);
  std::vector<std::uint64_t> sums(page_count(size));
  hash_pages({out.data(), out.size()}, sums);
  wait_for([&](IoCallback done) {
    store.write_hashed(1, 0, out.data(), size, sums, done);
  }).throw_if_failed();
  EXPECT_EQ(store.page_checksums(1), store.page_checksums(0));
  EXPECT_EQ(store.page_counters().hashed, 6u);
  EXPECT_EQ(store.page_counters().by_caller, 3u);
  read_all(store, 1, in);  // the store verifies by them
  EXPECT_EQ(store.page_counters().verified, 3u);
  wait_for([&](IoCallback done) {
    store.read_unverified(0, 0, in.data(), size, done);
  }).throw_if_failed();
  EXPECT_EQ(store.page_counters().verified, 3u);
  store.check_pages(0, 0, size, sums);
  EXPECT_EQ(store.page_counters().verified, 6u);
  EXPECT_EQ(store.page_counters().by_caller, 6u);
  // A range that begins within a page: only the whole ones count.
  store.check_pages(0, 4096, size - 4096, std::span(sums).subspan(1));
  sums[1] ^= 1;
  EXPECT_NE(error_of([&] { store.check_pages(0, 0, size, sums); })
                .find("page 1 of extent 0, 256 KiB in " + directory.path() +
                      "/zinf.zinf-area at offset " + std::to_string(kMiB + kChecksumPage) +
                      ", is damaged"),
            std::string::npos);
}

TEST(Store, ForgottenWritesAreOnlyThoseThatWereNotSynced) {
  TestDirectory directory;
  const auto faults =
      std::make_shared<FaultControl>(FaultOptions{.seed = 1, .track_unsynced = true});
  StoreOptions options = one_drive(directory.path());
  options.wrap_engine = faults->wrapper();
  Memory synced(kMiB), later(kMiB), back(kMiB);
  synced.fill(1);
  later.fill(2);
  const auto open = [&](OpenMode mode) {
    auto store = std::make_unique<Store>(options);
    store->allocate(kMiB);
    store->allocate(kMiB);
    store->open(mode);
    return store;
  };
  {
    const auto store = open(OpenMode::kCreate);
    write_all(*store, 0, synced);
    store->sync();
    write_all(*store, 1, later);
    faults->crash();
    EXPECT_FALSE(wait_for([&](IoCallback done) { store->sync(done); }).ok());
  }
  EXPECT_GT(faults->forget_unsynced(), 0u);
  const auto store = open(OpenMode::kReopen);
  read_all(*store, 0, back);
  EXPECT_TRUE(back == synced);
  read_all(*store, 1, back);
  EXPECT_FALSE(back == later);
}

}  // namespace
}  // namespace zinf::nvme
