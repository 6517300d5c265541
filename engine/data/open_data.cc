#include "engine/data/open_data.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/str.h"
#include "engine/data/corpus.h"
#include "engine/data/prepare.h"
#include "engine/data/random_rows.h"
#include "engine/data/table_file.h"
#include "engine/data/token_rows.h"

namespace zinf::data {
namespace {

using config::DataFormat;

bool ends_with_any(const std::string& path, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return path.ends_with(ending); });
}

// What a file's name says; nullopt: a text of some kind, of which the preparation tool sees which.
std::optional<DataFormat> format_by_name(std::string path) {
  std::transform(path.begin(), path.end(), path.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ends_with_any(path, {".tokens", ".bin", ".idx"})) return DataFormat::kTokens;
  if (path.ends_with(".csv")) return DataFormat::kCsv;
  if (path.ends_with(".npy")) return DataFormat::kTensor;
  return std::nullopt;
}

const char* text_format_name(std::optional<DataFormat> format) {
  if (!format) return "auto";
  switch (*format) {
    case DataFormat::kText:
      return "text";
    case DataFormat::kMessages:
      return "messages";
    case DataFormat::kConversations:
      return "conversations";
    default:
      return "alpaca";
  }
}

class Opener {
 public:
  explicit Opener(const DataRequest& request) : request_(request) {}

  DataSet open() {
    const config::DataConfig& data = request_.data;
    if (data.format == DataFormat::kRandom) {
      const auto source = random_rows();
      make_train(source);
      if (data.eval_fraction > 0)
        throw Error(ErrorKind::kUsage, "data.eval_fraction has no meaning for random data");
      return std::move(set_);
    }
    if (data.train.empty()) {
      throw Error(ErrorKind::kUsage, "data.train names no file",
                  "data.format: random makes data up");
    }
    const std::vector<std::string> train = expand_paths(data.train);
    const bool tokens = is_token_data(train);
    if (tokens == (request_.vocabulary == 0)) {
      throw Error(ErrorKind::kUsage,
                  str(train[0], tokens ? " holds text, but the model is for tables of numbers"
                                       : " is a table of numbers, but the model reads text"));
    }
    if (!tokens) {
      if (data.eval_fraction > 0) {
        throw Error(ErrorKind::kUsage,
                    "data.eval_fraction splits texts; for tables give data.eval");
      }
      make_train(table(train));
      if (!data.eval.empty()) make_eval(table(expand_paths(data.eval)));
      return std::move(set_);
    }
    open_tokens(train);
    return std::move(set_);
  }

 private:
  std::shared_ptr<const RowSource> random_rows() const {
    const std::int64_t samples = request_.data.samples.value_or(RowSource::kEndless);
    if (request_.vocabulary == 0)
      return random_regression(samples, request_.feature_width, request_.seed);
    return random_tokens(samples, request_.seq_len, request_.vocabulary, request_.seed);
  }

  std::optional<DataFormat> format_of(const std::vector<std::string>& paths) const {
    if (request_.data.format) return request_.data.format;
    const auto format = format_by_name(paths[0]);
    for (const std::string& path : paths) {
      if (format_by_name(path) == format) continue;
      throw Error(ErrorKind::kUsage, str(paths[0], " and ", path, " are of different kinds"),
                  "set data.format");
    }
    return format;
  }

  bool is_token_data(const std::vector<std::string>& paths) const {
    const auto format = format_of(paths);
    return format != DataFormat::kCsv && format != DataFormat::kTensor;
  }

  std::shared_ptr<const RowSource> table(const std::vector<std::string>& paths) const {
    const bool csv = format_of(paths) == DataFormat::kCsv;
    std::shared_ptr<const RowSource> rows =
        csv ? open_csv(paths, request_.data.target) : open_npy(paths);
    if (rows->feature_width() != request_.feature_width) {
      throw Error(
          ErrorKind::kUsage,
          str(paths[0], " has ", rows->feature_width(),
              " features and a target, but the model takes ", request_.feature_width, " features"),
          str("set model.width: ", rows->feature_width()));
    }
    return rows;
  }

  std::shared_ptr<const Corpus> corpus(std::vector<std::string> paths) {
    const auto format = format_of(paths);
    if (format != DataFormat::kTokens) {
      PrepareRequest prepare_request;
      prepare_request.sources = paths;
      prepare_request.format = text_format_name(format);
      prepare_request.model_folder = request_.model_folder;
      prepare_request.train_on_prompt = request_.data.train_on_prompt;
      prepare_request.cache_folder = request_.cache_folder;
      prepare_request.python = request_.python;
      prepare_request.patience = request_.patience;
      const Prepared prepared = prepare(prepare_request);
      set_.notes.push_back(
          str(prepared.cached ? "tokens from the cache " : "tokens prepared: ", prepared.path));
      paths = {prepared.path};
    }
    auto opened = std::make_shared<Corpus>(paths, request_.vocabulary, request_.token_width / 8);
    set_.notes.push_back(str(opened->documents(), " documents, ", opened->tokens(), " tokens"));
    return opened;
  }

  std::shared_ptr<const RowSource> rows(CorpusView view) const {
    if (request_.data.packing)
      return std::make_shared<PackedTokenRows>(std::move(view), request_.seq_len);
    return std::make_shared<DocumentRows>(std::move(view), request_.seq_len);
  }

  void open_tokens(const std::vector<std::string>& train) {
    const config::DataConfig& data = request_.data;
    const auto all = corpus(train);
    if (data.eval_fraction > 0) {
      if (!data.eval.empty())
        throw Error(ErrorKind::kUsage, "data.eval and data.eval_fraction: give one of them");
      make_train(rows(CorpusView(all, CorpusPart::kTrain, data.eval_fraction, request_.seed)));
      make_eval(rows(CorpusView(all, CorpusPart::kEval, data.eval_fraction, request_.seed)));
      return;
    }
    make_train(rows(CorpusView(all)));
    if (!data.eval.empty()) make_eval(rows(CorpusView(corpus(expand_paths(data.eval)))));
  }

  LoaderOptions loader_options() const {
    LoaderOptions options;
    options.micro_batch = request_.micro_batch;
    options.accumulation = request_.accumulation;
    options.rank = request_.rank;
    options.world = request_.world;
    options.seed = request_.seed;
    options.group_by_length = request_.data.group_by_length && !request_.data.packing;
    return options;
  }

  void make_train(std::shared_ptr<const RowSource> source) {
    for (const std::string& note : source->notes()) set_.notes.push_back("train: " + note);
    set_.identity = source->identity();
    set_.index_bytes += source->index_bytes();
    set_.train = std::make_unique<Loader>(std::move(source), loader_options());
  }

  void make_eval(std::shared_ptr<const RowSource> source) {
    for (const std::string& note : source->notes()) set_.notes.push_back("eval: " + note);
    set_.index_bytes += source->index_bytes();
    LoaderOptions options = loader_options();
    options.accumulation = 1;
    options.shuffle = false;
    set_.eval = std::make_unique<Loader>(std::move(source), options);
  }

  const DataRequest& request_;
  DataSet set_;
};

}  // namespace

DataSet open_data(const DataRequest& request) { return Opener(request).open(); }

}  // namespace zinf::data
