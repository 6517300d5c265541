#include "engine/model/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/error.h"
#include "engine/base/str.h"

namespace zinf::model {
namespace {

using Json = nlohmann::json;

std::string quoted(std::string name) {
  if (name.size() > 120) name = name.substr(0, 117) + "...";
  return str("tensor \"", name, "\"");
}

// Reads the header in one pass without building a document: memory is that of the tensor list.
// What may stand where: {"__metadata__": {text: text}, name: {"dtype": text, "shape": [n...],
// "data_offsets": [n, n]}} and any other key in a tensor's entry, which is skipped.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override {
    // The reference takes null for no metadata.
    return (where_ == Where::kTop && name_ == "__metadata__") || scalar("null");
  }
  bool boolean(bool) override { return scalar("true or false"); }
  bool number_integer(std::int64_t value) override {
    return scalar(str("the negative number ", value));
  }
  bool number_float(double, const std::string& text) override {
    return scalar(str("the number ", text));
  }
  bool binary(Json::binary_t&) override { return scalar("binary"); }
  bool number_unsigned(std::uint64_t value) override;
  bool string(std::string& value) override;
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool key(std::string& name) override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(str("its header is no valid JSON at byte ", position));
  }

 private:
  enum class Where { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };
  enum class Field { kNone, kType, kShape, kOffsets, kOther };

  bool fail(const std::string& text) {
    if (problem.empty()) problem = text;
    return false;
  }
  bool expected(const std::string& what) {
    if (where_ == Where::kStart) return fail(str("its header is ", what, ", not an object"));
    if (where_ == Where::kTop) return fail(str(quoted(name_), " is ", what, ", not an object"));
    if (where_ == Where::kMetadata)
      return fail(str("__metadata__ \"", name_, "\" is ", what, ", not a string"));
    const char* field = field_ == Field::kType    ? "dtype"
                        : field_ == Field::kShape ? "shape"
                                                  : "data_offsets";
    const char* wanted = field_ == Field::kType ? "a string" : "a list of non-negative integers";
    return fail(str(quoted(name_), ": ", field, " holds ", what, "; expected ", wanted));
  }
  bool scalar(const std::string& what) { return skipping() || expected(what); }
  bool skipping() const {
    return skipped_depth_ > 0 || (where_ == Where::kEntry && field_ == Field::kOther);
  }
  bool deeper() {
    return ++skipped_depth_ <= 100 || fail(str(quoted(name_), ": nested too deeply"));
  }
  bool finish_entry();

  Where where_ = Where::kStart;
  Field field_ = Field::kNone;
  int skipped_depth_ = 0;
  std::string name_;  // of the tensor, or the metadata key
  SafeTensor tensor_;
  std::vector<std::uint64_t> offsets_;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
  bool has_metadata_ = false;
  std::unordered_set<std::string> names_;
};

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (skipping()) return true;
  if (value > static_cast<std::uint64_t>(INT64_MAX)) return expected(str("the number ", value));
  if (where_ == Where::kShape) {
    tensor_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (where_ == Where::kOffsets && offsets_.size() < 2) {
    offsets_.push_back(value);
    return true;
  }
  return expected(where_ == Where::kOffsets ? "more than two numbers" : str("the number ", value));
}

bool HeaderReader::string(std::string& value) {
  if (skipping()) return true;
  if (where_ == Where::kMetadata) {
    header.metadata[name_] = value;
    return true;
  }
  if (where_ != Where::kEntry || field_ != Field::kType) return expected("a string");
  const std::optional<SafeType> type = safe_type(value);
  if (!type) return fail(str(quoted(name_), ": type \"", value.substr(0, 40), "\" is unknown"));
  tensor_.type = *type;
  has_type_ = true;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (skipping()) return deeper();
  if (where_ == Where::kStart) {
    where_ = Where::kTop;
    return true;
  }
  if (where_ != Where::kTop) return expected("an object");
  if (name_ == "__metadata__") {
    where_ = Where::kMetadata;
    return true;
  }
  where_ = Where::kEntry;
  field_ = Field::kNone;
  tensor_ = SafeTensor{};
  tensor_.name = name_;
  offsets_.clear();
  has_type_ = has_shape_ = has_offsets_ = false;
  return true;
}

bool HeaderReader::end_object() {
  if (skipped_depth_ > 0) {
    --skipped_depth_;
    return true;
  }
  if (where_ == Where::kEntry && !finish_entry()) return false;
  where_ = where_ == Where::kTop ? Where::kEnd : Where::kTop;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (skipping()) return deeper();
  if (where_ != Where::kEntry || (field_ != Field::kShape && field_ != Field::kOffsets))
    return expected("a list");
  where_ = field_ == Field::kShape ? Where::kShape : Where::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  if (skipped_depth_ > 0) {
    --skipped_depth_;
    return true;
  }
  if (where_ == Where::kOffsets && offsets_.size() != 2) {
    return fail(str(quoted(name_), ": data_offsets has ", offsets_.size(), " numbers; expected 2"));
  }
  (where_ == Where::kShape ? has_shape_ : has_offsets_) = true;
  where_ = Where::kEntry;
  return true;
}

bool HeaderReader::key(std::string& name) {
  if (skipped_depth_ > 0) return true;
  if (where_ == Where::kTop) {
    name_ = name;
    if (name == "__metadata__") {
      if (has_metadata_) return fail("__metadata__ appears twice");
      has_metadata_ = true;
      return true;
    }
    if (!names_.insert(name).second) return fail(str(quoted(name), " appears twice"));
    return true;
  }
  if (where_ == Where::kMetadata) {
    name_ = name;
    if (header.metadata.count(name) != 0)
      return fail(str("__metadata__ \"", name, "\" appears twice"));
    return true;
  }
  field_ = name == "dtype"          ? Field::kType
           : name == "shape"        ? Field::kShape
           : name == "data_offsets" ? Field::kOffsets
                                    : Field::kOther;
  const bool twice = (field_ == Field::kType && has_type_) ||
                     (field_ == Field::kShape && has_shape_) ||
                     (field_ == Field::kOffsets && has_offsets_);
  return !twice || fail(str(quoted(name_), ": ", name, " appears twice"));
}

bool HeaderReader::finish_entry() {
  if (!has_type_ || !has_shape_ || !has_offsets_) {
    const char* missing = !has_type_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets";
    return fail(str(quoted(name_), " has no ", missing));
  }
  tensor_.begin = offsets_[0];
  tensor_.end = offsets_[1];
  Bytes bytes = 0;
  if (!tensor_bytes(tensor_.shape, tensor_.type, &tensor_.elements, &bytes)) {
    return fail(str(quoted(name_), ": shape ", shape_text(tensor_.shape), " of ",
                    name_of(tensor_.type), " is no size that a file can have"));
  }
  if (tensor_.begin > tensor_.end) {
    return fail(str(quoted(name_), ": data_offsets begin at ", tensor_.begin,
                    " and end before, at ", tensor_.end));
  }
  if (tensor_.end - tensor_.begin != bytes) {
    return fail(str(quoted(name_), ": shape ", shape_text(tensor_.shape), " of ",
                    name_of(tensor_.type), " takes ", bytes, " bytes but data_offsets hold ",
                    tensor_.end - tensor_.begin));
  }
  header.tensors.push_back(std::move(tensor_));
  return true;
}

std::string check_coverage(const std::vector<SafeTensor>& tensors, Bytes data_bytes) {
  Bytes reached = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.begin != reached) {
      return str(quoted(tensor.name), " begins at byte ", tensor.begin, " of the data; expected ",
                 reached,
                 tensor.begin < reached ? " (it overlaps another tensor)" : " (a hole before it)");
    }
    if (tensor.end > data_bytes) {
      return str(quoted(tensor.name), " ends at byte ", tensor.end,
                 " of the data but the file holds only ", data_bytes, " (cut short?)");
    }
    reached = tensor.end;
  }
  if (reached != data_bytes)
    return str(data_bytes - reached, " bytes after the last tensor belong to nothing");
  return "";
}

}  // namespace

bool tensor_bytes(const std::vector<std::int64_t>& shape, SafeType type, std::int64_t* elements,
                  Bytes* bytes) {
  *elements = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(*elements, dimension, elements)) return false;
  }
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(*elements, static_cast<std::int64_t>(bits_of(type)), &bits) ||
      bits % 8 != 0)
    return false;
  *bytes = static_cast<Bytes>(bits / 8);
  return true;
}

SafetensorsHeader parse_safetensors_header(const std::string& text, Bytes data_bytes,
                                           const std::string& path) {
  HeaderReader reader;
  // nlohmann takes a NUL for the end and skips a byte-order mark; the format has neither.
  if (text.find('\0') != text.npos || text.compare(0, 3, "\xEF\xBB\xBF") == 0) {
    reader.problem = "its header is no valid JSON";
  } else {
    Json::sax_parse(text, &reader);
  }
  std::vector<SafeTensor>& tensors = reader.header.tensors;
  if (reader.problem.empty()) {
    std::stable_sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    reader.problem = check_coverage(tensors, data_bytes);
  }
  if (!reader.problem.empty()) {
    throw Error(ErrorKind::kUsage, str(path, " is no valid safetensors file: ", reader.problem),
                "download or write the file again");
  }
  return std::move(reader.header);
}

}  // namespace zinf::model
