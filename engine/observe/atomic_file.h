// Small files that a reader may open at any moment: old text or new text, never half of one.
#pragma once

#include <string>
#include <string_view>

namespace zinf::observe {

enum class Durability { kSynced, kContentsSynced, kBuffered };

// Writes path + ".tmp" (mode 0600), with kSynced fsyncs it, renames it over path and fsyncs the
// folder. kBuffered leaves both syncs out: enough against readers and a killed process, not against
// power loss. kContentsSynced leaves out the folder's alone: whole under its name or, after a power
// loss, not there, until a later file of the same folder is written with kSynced. One writer per
// path. Throws Error(kFailed) with path and cause; the old file then stays.
void write_file_atomically(const std::string& path, std::string_view text, Durability durability);

// Makes names that were given or removed in the folder durable. Throws Error(kFailed).
void sync_folder(const std::string& folder);

// Where there is no room for a second file: overwrites one that is there, by one write, into the
// space that it takes already. false: it is not there, or has no room for `text` either; it stays
// as it was. A reader may see half of it.
bool overwrite_file(const std::string& path, std::string_view text);

// The whole file. Throws Error(kUsage) when it cannot be read.
std::string read_file(const std::string& path);

}  // namespace zinf::observe
