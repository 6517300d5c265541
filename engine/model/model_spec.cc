#include "engine/model/model_spec.h"

#include <algorithm>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/model/safetensors.h"

namespace zinf::model {
namespace {

constexpr std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::int64_t count_elements(const TensorSpec& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t dimension : tensor.shape) {
    if (dimension < 1 || __builtin_mul_overflow(elements, dimension, &elements) ||
        elements > kMostElements) {
      throw Error(ErrorKind::kUsage,
                  str("tensor ", tensor.name, " of shape ", shape_text(tensor.shape),
                      ": every dimension must be at least 1 and the product at most 2^48"),
                  "check the sizes in config.json");
    }
  }
  return elements;
}

// An empty piece like `piece`, to receive some of its tensors.
PieceSpec part_of(const PieceSpec& piece, bool trainable) {
  PieceSpec part;
  part.name = piece.name;
  part.trainable = trainable;
  part.table = piece.table;
  return part;
}

// One or two pieces: what stays trainable, then what is frozen.
std::vector<PieceSpec> split(const PieceSpec& piece, const std::vector<bool>& frozen) {
  PieceSpec trained = part_of(piece, true);
  PieceSpec kept = part_of(piece, false);
  for (std::size_t i = 0; i < piece.tensors.size(); ++i) {
    (frozen[i] ? kept : trained).tensors.push_back(piece.tensors[i]);
  }
  std::vector<PieceSpec> parts;
  if (!trained.tensors.empty()) parts.push_back(std::move(trained));
  if (!kept.tensors.empty()) {
    if (!parts.empty()) kept.name += ".frozen";
    parts.push_back(std::move(kept));
  }
  for (PieceSpec& part : parts) lay_out(part);
  return parts;
}

void check_every_pattern_matches(const ModelSpec& spec, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool matched = false;
    std::int64_t tensors = 0;
    std::string example;
    for (const PieceSpec& piece : spec.pieces) {
      for (const TensorSpec& tensor : piece.tensors) {
        matched = matched || glob_match(pattern, tensor.name);
        ++tensors;
        if (example.empty() || tensor.name.size() > example.size()) example = tensor.name;
      }
    }
    if (matched) continue;
    throw Error(ErrorKind::kUsage,
                str("train.freeze: pattern \"", pattern, "\" matches none of the model's ", tensors,
                    " tensors"),
                str("a pattern is compared with the whole name, such as ", example,
                    "; * stands for any characters, ? for one"));
  }
}

}  // namespace

void lay_out(PieceSpec& piece) {
  piece.elements = 0;
  piece.parameters = 0;
  for (TensorSpec& tensor : piece.tensors) {
    tensor.elements = count_elements(tensor);
    tensor.offset = round_up_to(piece.elements, kQuantum);
    piece.elements = tensor.offset + tensor.elements;
    piece.parameters += tensor.elements;
    if (piece.elements > kMostElements) {
      throw Error(ErrorKind::kUsage,
                  str("piece ", piece.name, " would hold more than 2^48 parameters"),
                  "check the sizes in config.json");
    }
  }
  piece.elements = round_up_to(piece.elements, kTile);
}

std::int64_t head_rows_per_slice(std::int64_t width) {
  constexpr std::int64_t kSliceBytes = std::int64_t{6} << 20;  // widened to fp32
  const std::int64_t step = kPageElements / std::gcd(kPageElements, width);
  return std::max(step, std::max<std::int64_t>(64, kSliceBytes / (4 * width)) / step * step);
}

void apply_freeze(ModelSpec& spec, const std::vector<std::string>& freeze) {
  if (freeze.empty()) return;
  check_every_pattern_matches(spec, freeze);
  std::vector<PieceSpec> pieces;
  std::vector<std::vector<int>> parts_of(spec.pieces.size());  // old number -> new numbers
  bool something_to_train = false;
  for (std::size_t number = 0; number < spec.pieces.size(); ++number) {
    const PieceSpec& piece = spec.pieces[number];
    std::vector<bool> frozen;
    for (const TensorSpec& tensor : piece.tensors) {
      bool matched = !piece.trainable;
      for (const std::string& pattern : freeze)
        matched = matched || glob_match(pattern, tensor.name);
      frozen.push_back(matched);
    }
    for (PieceSpec& part : split(piece, frozen)) {
      something_to_train = something_to_train || part.trainable;
      parts_of[number].push_back(static_cast<int>(pieces.size()));
      pieces.push_back(std::move(part));
    }
  }
  if (!something_to_train) {
    throw Error(ErrorKind::kUsage,
                "train.freeze freezes every tensor of the model: nothing is left to train",
                "give patterns that leave some tensors out");
  }
  spec.pieces = std::move(pieces);
  for (StageSpec& stage : spec.stages) {
    std::vector<int> numbers;
    const int table = stage.table;
    for (std::size_t i = 0; i < stage.pieces.size(); ++i) {
      const int old = stage.pieces[i];
      if (static_cast<int>(i) == table) stage.table = static_cast<int>(numbers.size());
      numbers.insert(numbers.end(), parts_of.at(old).begin(), parts_of.at(old).end());
    }
    stage.pieces = std::move(numbers);
  }
}

TensorPlace find_tensor(const ModelSpec& spec, const StageSpec& stage, std::string_view name) {
  for (std::size_t operand = 0; operand < stage.pieces.size(); ++operand) {
    for (const TensorSpec& tensor : spec.pieces.at(stage.pieces[operand]).tensors) {
      if (tensor.name == name) return {static_cast<int>(operand), &tensor};
    }
  }
  return {};
}

bool glob_match(std::string_view pattern, std::string_view name) {
  // Linear in practice: on a mismatch only the latest "*" takes one character more.
  std::size_t p = 0, n = 0;
  std::size_t star = std::string_view::npos, star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace zinf::model
