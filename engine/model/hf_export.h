// Writes an HF folder, streamed range by range with a few MiB of memory. It appears under its name
// when complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/bytes.h"
#include "engine/model/hf_folder.h"
#include "engine/model/model_spec.h"
#include "engine/model/safetensors_writer.h"
#include "engine/model/weight_source.h"

namespace zinf::model {

// Fills `into` with elements [first, first + count) of spec.pieces[piece], in the export's type:
// fp32 (the master) or bf16 (the working weight, as 16-bit patterns). Ranges never cross a tensor's
// end; count is at most kExportChunk. Called from the exporting thread.
using ExportValues =
    std::function<void(int piece, std::int64_t first, std::int64_t count, void* into)>;
constexpr std::int64_t kExportChunk = 1 << 20;

struct ExportOptions {
  DType type = DType::kBFloat16;
  Bytes shard_bytes = kDefaultShardBytes;  // 0: one file
};

struct ExportResult {
  std::string path;
  int files = 0;  // weight files
  std::int64_t tensors = 0;
  Bytes weight_bytes = 0;
};

// What the folder is made from besides values. With a source folder: config.json (its dtype fields
// adjusted), tokenizer and other non-weight files, carried tensors (unchanged, in their own type),
// and frozen pieces, whose tensors come from the source itself. Without (random init): config_text
// only.
struct ExportSource {
  const HfFolder* folder = nullptr;
  const TensorMap* map = nullptr;  // of that folder; required with it
  std::string config_text;         // when there is no folder
};

// Names and shapes as the source folder's, else the spec's; a tied tensor is written once. Written
// to "<path>.partial" (what an interrupted export left there is removed) and renamed. Throws
// Error(kUsage) when `path` exists and is not an empty folder, and Error(kDoesNotFit) when the disk
// has too little space, both before anything is written.
ExportResult export_hf(const ModelSpec& spec, const ExportSource& source,
                       const ExportValues& values, const std::string& path,
                       const ExportOptions& options);

}  // namespace zinf::model
