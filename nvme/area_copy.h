// Copies ranges of a swap area's file to a file of the same size and layout; what is not copied is
// a hole that takes no space. By reference where the file system shares blocks (XFS, btrfs), else
// by reading and writing past the page cache.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/bytes.h"
#include "nvme/store.h"

namespace zinf::nvme {

struct AreaCopyRequest {
  std::string from;               // may be in use; its ranges must not change while they are copied
  std::string to;                 // made anew
  std::vector<FileRange> ranges;  // of this drive; offsets and lengths are multiples of 4096
  bool clone = true;              // false: never by reference (tests)
};

struct AreaCopyResult {
  Bytes bytes = 0;
  bool cloned = false;
};

// Blocks; the copy is durable when it returns (its name is not: rename it, then sync the folder).
// Space is reserved before the first byte is copied. go_on(bytes so far) is called between pieces
// of a few MiB: it may sleep to slow the copy down; false gives up, which returns fewer bytes than
// asked. Whatever ends early removes the file. Errors name file, needed and free bytes.
AreaCopyResult copy_area(const AreaCopyRequest& request,
                         const std::function<bool(Bytes done)>& go_on);

// Renames a file and makes the new name durable.
void rename_durably(const std::string& from, const std::string& to);

}  // namespace zinf::nvme
