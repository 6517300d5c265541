// Tables of numbers for regression: csv (in memory, as fp32) and .npy (read row by row).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/file_reader.h"
#include "engine/data/row_source.h"

namespace zinf::data {

// A table read from a csv file: a header line, then numbers. Quotes as in RFC 4180.
struct CsvTable {
  std::vector<std::string> columns;
  std::vector<float> values;  // row-major, rows x columns
  std::int64_t rows = 0;
};

// Error(kUsage) names file, line and column: no header, a repeated name, a line with too few or too
// many fields, an empty cell, text, NaN, infinity, a number beyond fp32, an open quote.
CsvTable read_csv(const std::string& path);

// Several csv files with equal columns as one table. target: the label column's name, or nullopt
// for the last column; the others are features, in order.
std::unique_ptr<RowSource> open_csv(const std::vector<std::string>& paths,
                                    const std::optional<std::string>& target);

// .npy files holding rows x (features + 1) little-endian fp32 in C order; the last column is the
// label. NaN or infinity is refused when the file is opened.
std::unique_ptr<RowSource> open_npy(const std::vector<std::string>& paths);

// Hash of a whole file, for data identity.
SourceIdentity identify(const FileReader& file);

}  // namespace zinf::data
