// Extents of bytes on one or several drives. Knows nothing of what the bytes mean. Use:
//
//   Store store(options);                       // probes the directories, starts one lane per
//   drive const ExtentId a = store.allocate(bytes);   // any number, before open()
//   store.open(OpenMode::kCreate);              // checks space, then preallocates one file per
//   drive store.write(a, 0, memory, bytes, [](const IoResult& result) { ... }); store.sync();
//
// Extents are laid out in the order of allocate(), so a later process that allocates the same sizes
// and opens with kReopen finds its bytes again; the areas' headers are checked. With several drives
// consecutive stripe units go to the drives in proportion to their weights, as far as each has
// room. After open() every call may come from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/io_engine.h"
#include "nvme/io_lane.h"
#include "nvme/io_request.h"
#include "nvme/page_table.h"

namespace zinf::nvme {

using ExtentId = std::uint32_t;

// How a drive is read and written.
struct DriveSettings {
  EngineKind engine = EngineKind::kAuto;
  Bytes block_size = kMiB;
  int depth = 32;
};

struct DriveOptions {
  std::string path;                  // an existing directory
  Bytes capacity = 0;                // most bytes to use here; 0: what is free
  double weight = 1;                 // share of the traffic, relative to the other drives
  double read_bytes_per_second = 0;  // throttle; 0: none
  double write_bytes_per_second = 0;
  std::optional<DriveSettings> settings = {};  // else the store's
};

// Its own settings are those of drives that have none.
struct StoreOptions : DriveSettings {
  std::vector<DriveOptions> drives;
  std::string area = "zinf";  // file <path>/<area>.zinf-area; letters, digits, '-', '_', at most 64
  int threads = 0;            // see EngineOptions; said once where the engine has no use for it
  Bytes stripe_unit = 2 * kMiB;
  double stall_seconds = 120;
  // Hashes every page (65,536 elements) written whole and compares those read whole, in the lanes'
  // threads: a damaged page is a failure naming file, offset and page. Some 0.1 s of one core per
  // GB.
  bool verify = true;
  EngineWrapper wrap_engine;  // faults, for tests

  const DriveSettings& settings_of(const DriveOptions& drive) const {
    return drive.settings ? *drive.settings : *this;
  }
};

enum class OpenMode {
  kCreate,   // refuses an area that exists (Error names it)
  kReplace,  // drops an area that exists unless another process uses it
  kReopen,   // the area must exist with this layout and size
  kRead,     // the same, for reads only and without a lock: another process may be writing it
};

// A range of one drive's file.
struct FileRange {
  std::size_t drive = 0;
  std::uint64_t offset = 0;
  Bytes bytes = 0;
  bool operator==(const FileRange&) const = default;
};

struct DriveCounters {
  std::string path;
  std::string engine;
  bool direct = false;
  LaneCounters lane;
};

class Store {
 public:
  explicit Store(StoreOptions options);
  ~Store();  // completes what was submitted; the files stay
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Offsets, lengths and memory addresses are multiples of this (4096 nearly everywhere).
  Bytes alignment() const;
  // Rounds the size up to alignment(). page_bytes: of its checksums, see page_checksums.h.
  ExtentId allocate(Bytes bytes, Bytes page_bytes = kChecksumPage);
  Bytes extent_bytes(ExtentId extent) const;
  Bytes allocated_bytes() const;  // over all extents
  // What open() has taken of the drive's file system, header included.
  Bytes drive_bytes(std::size_t drive) const;

  // Errors: an area in use or present, missing space (needed and free named), a foreign or damaged
  // area.
  void open(OpenMode mode);

  // Memory that reads and writes will lie in: registered with the kernel once, where it can be.
  // Optional; the memory must outlive the store.
  void add_memory(std::span<std::byte> memory);

  // Non-blocking. The range must lie in the extent and be aligned (checked).
  void read(ExtentId extent, Bytes offset, void* memory, Bytes bytes, IoCallback on_done);
  void write(ExtentId extent, Bytes offset, const void* memory, Bytes bytes, IoCallback on_done);
  // For a caller that has the bytes in its caches anyway and takes the checksums of the range's
  // whole pages itself (page_checksums.h; ascending): a read that is not verified, to be followed
  // by check_pages() before anything that follows from it is made durable, and a write that is not
  // hashed. check_pages throws as a verified read fails. Without `verify` nothing is compared or
  // kept.
  void read_unverified(ExtentId extent, Bytes offset, void* memory, Bytes bytes,
                       IoCallback on_done);
  void check_pages(ExtentId extent, Bytes offset, Bytes bytes, std::span<const std::uint64_t> sums);
  void write_hashed(ExtentId extent, Bytes offset, const void* memory, Bytes bytes,
                    std::vector<std::uint64_t> sums, IoCallback on_done);
  // Makes every write submitted before durable on all drives; one fdatasync per drive.
  void sync(IoCallback on_done);
  void sync();  // waits; throws Error

  // The checksums by which reads are verified: one a page of the extent, 0 where it is unknown (not
  // yet written whole). A reopened store knows none until they are restored. Only with `verify`; no
  // request on the extent may be in flight.
  std::vector<std::uint64_t> page_checksums(ExtentId extent) const;
  void restore_page_checksums(ExtentId extent, std::span<const std::uint64_t> values);
  PageCounters page_counters() const;

  // Where the bytes of an extent lie in the drives' files, in order; adjacent ranges are joined.
  std::vector<FileRange> file_ranges(ExtentId extent) const;
  // "FILE at offset N", for messages.
  std::string location(ExtentId extent, Bytes offset) const;
  std::vector<DriveCounters> counters() const;
  // Deletes the files (after a finished run). No request may be in flight; nothing but the
  // destructor may follow.
  void remove();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zinf::nvme
