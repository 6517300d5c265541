#include "nvme/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "nvme/area_header.h"
#include "nvme/areas.h"
#include "nvme/directory.h"
#include "nvme/drive_room.h"
#include "nvme/stripe_map.h"
#include "nvme/swap_file.h"

namespace zinf::nvme {

namespace {

struct Drive {
  DriveOptions options;
  DirectoryFacts facts;
  std::string file_path;
  std::optional<SwapFile> file;  // before the lane: the lane's destructor still uses it
  FileId lane_file = -1;
  std::unique_ptr<IoLane> lane;
};

struct Extent {
  std::uint64_t start = 0;
  Bytes bytes = 0;
  Bytes page_bytes = kChecksumPage;
};

// Joins the parts of a request that was spread over drives. Parts on one drive follow each other,
// drives work side by side: the stand-alone time is that of the slowest drive.
class Join {
 public:
  Join(std::size_t drives, IoCallback on_done) : busy_(drives, 0.0), on_done_(std::move(on_done)) {}
  void add() {
    const std::lock_guard lock(mutex_);
    ++waiting_;
  }
  void done(std::size_t drive, const IoResult& result) {
    {
      const std::lock_guard lock(mutex_);
      if (result.failure && !failure_) failure_ = result.failure;
      busy_[drive] += result.busy_seconds;
      if (--waiting_ > 0) return;
    }
    double busy = 0;
    for (const double seconds : busy_) busy = std::max(busy, seconds);
    if (on_done_) on_done_({failure_, busy});
  }

 private:
  std::mutex mutex_;
  std::size_t waiting_ = 0;
  std::vector<double> busy_;
  std::shared_ptr<const IoFailure> failure_;
  IoCallback on_done_;
};

void check_options(const StoreOptions& options) {
  const auto require = [](bool good, const std::string& text) {
    if (!good) throw Error(ErrorKind::kUsage, text);
  };
  require(!options.drives.empty() && options.drives.size() <= kMostDrives,
          fmt::format("memory.nvme lists {} drives; expected 1 to {}", options.drives.size(),
                      kMostDrives));
  for (const DriveOptions& drive : options.drives) {
    const auto [engine, block_size, depth] = options.settings_of(drive);
    require(block_size >= 4096 && block_size <= kGiB && block_size % 4096 == 0,
            fmt::format("io.block_size is {} bytes; expected a multiple of 4096 up to 1 GiB",
                        block_size));
    require(depth >= 1 && depth <= 4096, fmt::format("io.depth is {}; expected 1 to 4096", depth));
    require(std::isfinite(drive.weight) && drive.weight > 0,
            fmt::format("the weight of drive {} is {}; expected a positive number", drive.path,
                        drive.weight));
  }
  bool plain = !options.area.empty() && options.area.size() <= 64;
  for (const char c : options.area)
    plain &= std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  ZINF_CHECK(plain, "area name " + options.area);
  ZINF_CHECK(options.stripe_unit >= 4096 && options.stripe_unit % 4096 == 0, "stripe unit");
}

}  // namespace

struct Store::Impl {
  explicit Impl(StoreOptions given) : options(std::move(given)), map({1}, options.stripe_unit) {}

  void start();
  void prepare(OpenMode mode);
  void create(bool replace);
  void reopen(bool read_only);
  // The request as it is, with no page looked at.
  void submit(bool is_write, ExtentId extent, Bytes offset, void* memory, Bytes bytes,
              IoCallback on_done);
  void check_range(ExtentId extent, Bytes offset, Bytes bytes) const;
  std::shared_ptr<const IoFailure> damage(ExtentId extent, std::size_t page) const;
  // The callback with the pages' hashing before it.
  IoCallback hashing(ExtentId extent, Bytes offset, const std::byte* memory, Bytes bytes,
                     IoCallback on_done);
  IoCallback verifying(ExtentId extent, Bytes offset, const std::byte* memory, Bytes bytes,
                       IoCallback on_done);
  std::string location(ExtentId extent, Bytes offset) const;

  StoreOptions options;
  StripeMap map;
  Bytes alignment = 4096;
  std::vector<Extent> extents;
  Bytes total = 0;
  bool opened = false;
  std::unique_ptr<PageTable> pages;  // with options.verify; before the lanes, whose threads use it
  std::vector<Drive> drives;
};

void Store::Impl::start() {
  std::vector<double> weights;
  for (const DriveOptions& given : options.drives) {
    Drive drive;
    drive.options = given;
    drive.facts = probe_directory(given.path);
    drive.file_path = area_file(given.path, options.area);
    alignment = std::max(alignment, drive.facts.alignment);
    weights.push_back(given.weight);
    drives.push_back(std::move(drive));
  }
  ZINF_CHECK(options.stripe_unit % alignment == 0 && kAreaDataStart % alignment == 0,
             "stripe unit and alignment");
  map = StripeMap(stripe_counts(weights), options.stripe_unit);  // until the size is known
  for (Drive& drive : drives) {
    LaneOptions lane;
    const DriveSettings& settings = options.settings_of(drive.options);
    lane.engine = {settings.engine, settings.depth, options.threads};
    lane.block_size = settings.block_size;
    lane.stall_seconds = options.stall_seconds;
    lane.read_bytes_per_second = drive.options.read_bytes_per_second;
    lane.write_bytes_per_second = drive.options.write_bytes_per_second;
    lane.wrap_engine = options.wrap_engine;
    drive.lane = std::make_unique<IoLane>(std::move(lane));
    if (options.threads > 0 &&
        drive.lane->engine_name() != engine_kind_name(EngineKind::kThreads)) {
      log::info_once(
          fmt::format("io.threads: {} has no effect with {}: one thread keeps a drive's io.depth "
                      "requests in flight",
                      options.threads, drive.lane->engine_name()));
    }
  }
}

void Store::Impl::create(bool replace) {
  std::vector<std::string> files;
  for (const Drive& drive : drives) files.push_back(drive.file_path);
  map = StripeMap(stripe_counts_with_room(options, files, total, replace), options.stripe_unit);
  AreaHeader header;
  header.stripe_unit = options.stripe_unit;
  header.logical_bytes = total;
  header.area_id = make_area_id();
  header.stripe_counts = map.counts();
  // Drives may share a file system: its free space is checked against their sum before the first
  // file is made.
  std::map<std::uint64_t, Bytes> needed;
  for (std::size_t i = 0; i < drives.size(); ++i) {
    const Bytes bytes = kAreaDataStart + map.drive_bytes(i, total);
    const Bytes capacity = drives[i].options.capacity;
    if (capacity > 0 && bytes > capacity) {
      throw Error(ErrorKind::kDoesNotFit,
                  fmt::format("{} needs {} ({} bytes), but its capacity is set to {} ({} bytes)",
                              drives[i].file_path, format_bytes(bytes), bytes,
                              format_bytes(capacity), capacity),
                  "raise memory.nvme[].capacity or add a drive");
    }
    check_file_size_limit(drives[i].file_path, bytes);
    Bytes& sum = needed[file_system_id(drives[i].options.path)];
    sum += bytes;
    if (!replace) check_space(drives[i].options.path, sum, 0);
  }
  std::size_t made = 0;
  try {
    for (; made < drives.size(); ++made) {
      Drive& drive = drives[made];
      drive.file.emplace(SwapFile::create(
          drive.file_path, kAreaDataStart + map.drive_bytes(made, total), drive.facts, replace));
      header.drive = static_cast<std::uint32_t>(made);
      write_area_header(*drive.file, header);
    }
  } catch (...) {
    // What was made is useless alone and must not fill the drive.
    for (Drive& drive : drives) {
      if (drive.file) drive.file->remove();
      drive.file.reset();
    }
    throw;
  }
}

void Store::Impl::reopen(bool read_only) {
  std::optional<AreaHeader> first;
  for (std::size_t i = 0; i < drives.size(); ++i) {
    Drive& drive = drives[i];
    drive.file.emplace(SwapFile::reopen(drive.file_path, drive.facts, read_only));
    const AreaHeader header = read_area_header(*drive.file);
    if (!first) first = header;
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kFailed,
                  fmt::format("swap area {} does not fit this run: {}", drive.file_path, what),
                  "name the drives in memory.nvme in the order and with the files they had");
    };
    if (header.stripe_counts.size() != drives.size()) {
      refuse(fmt::format("it is part of an area over {} drives, {} are given",
                         header.stripe_counts.size(), drives.size()));
    }
    if (header.drive != i)
      refuse(fmt::format("it is drive {} of its area, not {}", header.drive, i));
    if (header.area_id != first->area_id || header.stripe_counts != first->stripe_counts ||
        header.stripe_unit != first->stripe_unit) {
      refuse(fmt::format("it belongs to another area than {}", drives[0].file_path));
    }
    if (header.logical_bytes != total) {
      refuse(
          fmt::format("it holds {} bytes of extents, the run has {}", header.logical_bytes, total));
    }
    // The layout is what the area was made with, whatever weights are measured today.
    map = StripeMap(first->stripe_counts, first->stripe_unit);
    const Bytes expected = kAreaDataStart + map.drive_bytes(i, total);
    if (drive.file->bytes() != expected) {
      refuse(fmt::format("its size is {} bytes, expected {}", drive.file->bytes(), expected));
    }
  }
}

void Store::Impl::prepare(OpenMode mode) {
  ZINF_CHECK(!opened, "a store is opened once");
  if (mode == OpenMode::kReopen || mode == OpenMode::kRead) {
    reopen(mode == OpenMode::kRead);
  } else {
    create(mode == OpenMode::kReplace);
  }
  for (Drive& drive : drives) {
    drive.lane_file =
        drive.lane->add_file({drive.file->descriptor(), drive.file_path, drive.file->alignment()});
  }
  if (options.verify) {
    std::vector<PageTable::Size> sizes;
    for (const Extent& extent : extents) sizes.push_back({extent.bytes, extent.page_bytes});
    pages = std::make_unique<PageTable>(sizes);
  }
  opened = true;
}

std::string Store::Impl::location(ExtentId id, Bytes offset) const {
  const StripeSegment part = map.first(extents.at(id).start + offset, 1);
  return fmt::format("{} at offset {}", drives[part.drive].file_path, kAreaDataStart + part.offset);
}

IoCallback Store::Impl::hashing(ExtentId extent, Bytes offset, const std::byte* memory, Bytes bytes,
                                IoCallback on_done) {
  pages->forget(extent, offset, bytes);
  return
      [this, extent, offset, memory, bytes, on_done = std::move(on_done)](const IoResult& result) {
        if (result.ok()) pages->learn(extent, offset, memory, bytes);
        if (on_done) on_done(result);
      };
}

IoCallback Store::Impl::verifying(ExtentId extent, Bytes offset, const std::byte* memory,
                                  Bytes bytes, IoCallback on_done) {
  return [this, extent, offset, memory, bytes,
          on_done = std::move(on_done)](const IoResult& result) {
    const auto damaged = result.ok() ? pages->check(extent, offset, memory, bytes) : std::nullopt;
    if (!damaged) {
      if (on_done) on_done(result);
      return;
    }
    IoResult failed = result;
    failed.failure = damage(extent, *damaged);
    if (on_done) on_done(failed);
  };
}

std::shared_ptr<const IoFailure> Store::Impl::damage(ExtentId extent, std::size_t page) const {
  const Bytes size = extents.at(extent).page_bytes;
  return std::make_shared<const IoFailure>(
      IoFailure{0,
                fmt::format("page {} of extent {}, {} KiB in {}, is damaged: its checksum is "
                            "not that of what was written",
                            page, extent, size / kKiB, location(extent, page * size)),
                "the drive, its cable or memory flips bits; go back to an earlier commit and "
                "check the hardware"});
}

void Store::Impl::check_range(ExtentId id, Bytes offset, Bytes bytes) const {
  ZINF_CHECK(opened && id < extents.size(), "extent of an open store");
  const Extent& extent = extents[id];
  ZINF_CHECK(offset <= extent.bytes && bytes <= extent.bytes - offset,
             fmt::format("range {} + {} in an extent of {} bytes", offset, bytes, extent.bytes));
}

void Store::Impl::submit(bool is_write, ExtentId id, Bytes offset, void* memory, Bytes bytes,
                         IoCallback on_done) {
  check_range(id, offset, bytes);
  std::uint64_t at = extents[id].start + offset;
  if (drives.size() == 1 || bytes == 0) {
    drives[0].lane->submit(
        {drives[0].lane_file, kAreaDataStart + at, memory, bytes, is_write, std::move(on_done)});
    return;
  }
  const auto join = std::make_shared<Join>(drives.size(), std::move(on_done));
  join->add();  // keeps it from ending before all parts are submitted
  auto* from = static_cast<std::byte*>(memory);
  while (bytes > 0) {
    const StripeSegment part = map.first(at, bytes);
    join->add();
    Drive& drive = drives[part.drive];
    drive.lane->submit(
        {drive.lane_file, kAreaDataStart + part.offset, from, part.bytes, is_write,
         [join, drive = part.drive](const IoResult& result) { join->done(drive, result); }});
    at += part.bytes;
    from += part.bytes;
    bytes -= part.bytes;
  }
  join->done(0, {});
}

Store::Store(StoreOptions options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(std::move(options));
  impl_->start();
}

Store::~Store() = default;

Bytes Store::alignment() const { return impl_->alignment; }

ExtentId Store::allocate(Bytes bytes, Bytes page_bytes) {
  ZINF_CHECK(!impl_->opened, "extents are allocated before open()");
  const Bytes rounded = round_up(bytes, impl_->alignment);
  impl_->extents.push_back({impl_->total, rounded, page_bytes});
  impl_->total += rounded;
  return static_cast<ExtentId>(impl_->extents.size() - 1);
}

Bytes Store::extent_bytes(ExtentId extent) const { return impl_->extents.at(extent).bytes; }
Bytes Store::allocated_bytes() const { return impl_->total; }

Bytes Store::drive_bytes(std::size_t drive) const {
  return kAreaDataStart + impl_->map.drive_bytes(drive, impl_->total);
}

void Store::open(OpenMode mode) { impl_->prepare(mode); }

void Store::add_memory(std::span<std::byte> memory) {
  for (Drive& drive : impl_->drives) drive.lane->add_memory(memory);
}

void Store::read(ExtentId extent, Bytes offset, void* memory, Bytes bytes, IoCallback on_done) {
  impl_->check_range(extent, offset, bytes);
  if (impl_->pages) {
    on_done = impl_->verifying(extent, offset, static_cast<const std::byte*>(memory), bytes,
                               std::move(on_done));
  }
  impl_->submit(false, extent, offset, memory, bytes, std::move(on_done));
}

void Store::write(ExtentId extent, Bytes offset, const void* memory, Bytes bytes,
                  IoCallback on_done) {
  impl_->check_range(extent, offset, bytes);
  if (impl_->pages) {
    on_done = impl_->hashing(extent, offset, static_cast<const std::byte*>(memory), bytes,
                             std::move(on_done));
  }
  impl_->submit(true, extent, offset, const_cast<void*>(memory), bytes, std::move(on_done));
}

void Store::read_unverified(ExtentId extent, Bytes offset, void* memory, Bytes bytes,
                            IoCallback on_done) {
  impl_->submit(false, extent, offset, memory, bytes, std::move(on_done));
}

void Store::check_pages(ExtentId extent, Bytes offset, Bytes bytes,
                        std::span<const std::uint64_t> sums) {
  impl_->check_range(extent, offset, bytes);
  if (!impl_->pages) return;
  const auto damaged = impl_->pages->check_sums(extent, offset, bytes, sums);
  if (damaged) throw impl_->damage(extent, *damaged)->to_error();
}

void Store::write_hashed(ExtentId extent, Bytes offset, const void* memory, Bytes bytes,
                         std::vector<std::uint64_t> sums, IoCallback on_done) {
  impl_->check_range(extent, offset, bytes);
  if (impl_->pages) {
    impl_->pages->forget(extent, offset, bytes);
    on_done = [impl = impl_.get(), extent, offset, bytes, sums = std::move(sums),
               on_done = std::move(on_done)](const IoResult& result) {
      if (result.ok()) impl->pages->learn_sums(extent, offset, bytes, sums);
      if (on_done) on_done(result);
    };
  }
  impl_->submit(true, extent, offset, const_cast<void*>(memory), bytes, std::move(on_done));
}

void Store::sync(IoCallback on_done) {
  ZINF_CHECK(impl_->opened, "sync of an open store");
  const auto join = std::make_shared<Join>(impl_->drives.size(), std::move(on_done));
  for (std::size_t i = 0; i < impl_->drives.size(); ++i) join->add();
  for (std::size_t i = 0; i < impl_->drives.size(); ++i) {
    Drive& drive = impl_->drives[i];
    drive.lane->sync(drive.lane_file, [join, i](const IoResult& result) { join->done(i, result); });
  }
}

void Store::sync() {
  std::promise<IoResult> done;
  sync([&done](const IoResult& result) { done.set_value(result); });
  done.get_future().get().throw_if_failed();
}

std::vector<FileRange> Store::file_ranges(ExtentId id) const {
  std::vector<FileRange> ranges;
  const Extent& extent = impl_->extents.at(id);
  for (Bytes done = 0; done < extent.bytes;) {
    const StripeSegment part = impl_->map.first(extent.start + done, extent.bytes - done);
    const std::uint64_t offset = kAreaDataStart + part.offset;
    if (!ranges.empty() && ranges.back().drive == part.drive &&
        ranges.back().offset + ranges.back().bytes == offset) {
      ranges.back().bytes += part.bytes;
    } else {
      ranges.push_back({part.drive, offset, part.bytes});
    }
    done += part.bytes;
  }
  return ranges;
}

std::string Store::location(ExtentId id, Bytes offset) const { return impl_->location(id, offset); }

std::vector<std::uint64_t> Store::page_checksums(ExtentId extent) const {
  ZINF_CHECK(impl_->pages, "checksums of an open store with verify");
  return impl_->pages->values(extent);
}

void Store::restore_page_checksums(ExtentId extent, std::span<const std::uint64_t> values) {
  ZINF_CHECK(impl_->pages, "checksums of an open store with verify");
  impl_->pages->restore(extent, values);
}

PageCounters Store::page_counters() const {
  return impl_->pages ? impl_->pages->counters() : PageCounters{};
}

std::vector<DriveCounters> Store::counters() const {
  std::vector<DriveCounters> all;
  for (const Drive& drive : impl_->drives) {
    all.push_back({drive.options.path, drive.lane->engine_name(), drive.facts.direct,
                   drive.lane->counters()});
  }
  return all;
}

void Store::remove() {
  for (Drive& drive : impl_->drives) {
    if (drive.file) drive.file->remove();
  }
}

}  // namespace zinf::nvme
