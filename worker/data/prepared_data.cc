#include "worker/data/prepared_data.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "worker/data/data_files.h"
#include "worker/data/text_source.h"
#include "worker/data/tokenize.h"

namespace tercio::data {
namespace {

// One data set of the job, from its paths to its tokens.
struct Source {
  std::string name;  // for messages
  double weight = 1;
  DataFiles files;
  TokenDataset tokens;
  std::optional<Tokenizer> tokenizer;
  std::string digest;
};

absl::Status Fault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

using Blended = google::protobuf::RepeatedPtrField<v1::WeightedData>;

// The data sets of one side: a single path, or a blend.
absl::StatusOr<std::vector<Source>> FindSources(const std::string& path, const Blended& blend) {
  std::vector<Source> sources;
  if (!path.empty()) {
    Source& source = sources.emplace_back();
    source.name = path;
    TERCIO_ASSIGN_OR_RETURN(source.files, FindDataFiles({path}));
  }
  for (const v1::WeightedData& data : blend) {
    Source& source = sources.emplace_back();
    source.name = absl::StrJoin(data.paths(), ", ");
    source.weight = data.weight();
    TERCIO_ASSIGN_OR_RETURN(source.files, FindDataFiles(std::vector<std::string>(
                                              data.paths().begin(), data.paths().end())));
  }
  return sources;
}

struct Sides {
  std::vector<Source> train;
  std::vector<Source> validation;  // empty: none, or a fraction

  std::vector<Source*> All() {
    std::vector<Source*> all;
    for (Source& source : train) all.push_back(&source);
    for (Source& source : validation) all.push_back(&source);
    return all;
  }
};

class Preparation {
 public:
  Preparation(const v1::DataSpec& spec, int64_t context, const std::string& cache_dir,
              int32_t vocab_size)
      : spec_(spec), context_(context), cache_dir_(cache_dir), vocab_size_(vocab_size) {
    text_.text_key = spec.text_key().empty() ? "text" : spec.text_key();
    text_.skip_bad_lines = spec.skip_bad_lines();
    text_.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }

  absl::StatusOr<PreparedData> Prepare();

 private:
  absl::Status FindTokenizer();
  absl::Status OpenTokens(Source* source);
  absl::Status CachedTokens(Source* source);
  absl::StatusOr<std::string> CacheEntry(const Source& source) const;
  absl::Status CheckVocabulary();
  absl::Status CheckLength(const Source& source, const char* part, int64_t tokens) const;
  absl::Status Split();
  absl::Status Join(const std::vector<Source>& sources, std::vector<TokenDataset> tokens,
                    BlendedDataset* out) const;

  const v1::DataSpec& spec_;
  int64_t context_;
  const std::string& cache_dir_;
  int32_t vocab_size_;
  TextOptions text_;
  Sides sides_;
  std::optional<Tokenizer> tokenizer_;
  PreparedData prepared_;
};

// The tokenizer of the texts, or the one that the job names for token files.
absl::Status Preparation::FindTokenizer() {
  std::vector<std::string> texts;
  for (const Source* source : sides_.All()) {
    if (source->files.kind != DataKind::kText) continue;
    texts.insert(texts.end(), source->files.paths.begin(), source->files.paths.end());
  }
  if (texts.empty() && (spec_.tokenizer().empty() || spec_.tokenizer() == "chars")) {
    return absl::OkStatus();  // the one beside the files, where there is one
  }
  absl::StatusOr<Tokenizer> tokenizer = ChooseTokenizer(spec_.tokenizer(), texts, text_);
  if (!tokenizer.ok()) {
    return absl::Status(
        tokenizer.status().code(),
        absl::StrCat("data.tokenizer: ", std::string(tokenizer.status().message())));
  }
  tokenizer_ = *std::move(tokenizer);
  return absl::OkStatus();
}

// Entries are named by what decides their bytes. A text alone: tokenizer and content.
absl::StatusOr<std::string> Preparation::CacheEntry(const Source& source) const {
  Sha256 sha;
  sha.Update(tokenizer_->ToJson());
  const bool one_text = source.files.paths.size() == 1 && !IsJsonl(source.files.paths[0]);
  for (const std::string& path : source.files.paths) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, OpenText(path));
    if (!one_text) {
      sha.Update(absl::StrCat("\n", IsJsonl(path) ? "jsonl" : "text", " ", file->content().size(),
                              " ", text_.skip_bad_lines, " ", text_.text_key.size(), " ",
                              text_.text_key, "\n"));
    }
    sha.Update(file->content());
  }
  return absl::StrCat(cache_dir_, "/", sha.HexDigest());
}

// Tokens of texts from the cache, or made now and put there.
absl::Status Preparation::CachedTokens(Source* source) {
  TERCIO_ASSIGN_OR_RETURN(const std::string prefix, CacheEntry(*source));
  TERCIO_RETURN_IF_ERROR(MakeDirectories(cache_dir_));
  TERCIO_ASSIGN_OR_RETURN(const auto lock, FileLock::Acquire(prefix + ".lock", /*wait=*/true));
  const DataFiles entry = {DataKind::kIndexed, {prefix}};
  const std::string notice = prefix + ".notice";
  absl::StatusOr<TokenFiles> cached = OpenTokenFiles(entry);
  if (!cached.ok() || cached->tokenizer != tokenizer_) {
    TokenizeOptions options;
    options.text = text_;
    TERCIO_ASSIGN_OR_RETURN(const TokenizeReport report,
                            TokenizeTexts(source->files.paths, *tokenizer_, prefix, options));
    if (report.skipped_lines > 0) {
      TERCIO_RETURN_IF_ERROR(WriteFileDurably(
          notice, absl::StrCat(report.skipped_lines, " lines were skipped, the first is ",
                               report.first_skipped)));
    }
    cached = OpenTokenFiles(entry);
    if (!cached.ok()) return cached.status();
  }
  if (PathExists(notice)) {
    TERCIO_ASSIGN_OR_RETURN(std::string text, ReadFile(notice));
    prepared_.notices.push_back(std::move(text));
  }
  source->tokens = cached->tokens;
  source->tokenizer = cached->tokenizer;
  source->digest = cached->digest;
  return absl::OkStatus();
}

absl::Status Preparation::OpenTokens(Source* source) {
  if (source->files.kind == DataKind::kText) return CachedTokens(source);
  TERCIO_ASSIGN_OR_RETURN(TokenFiles files, OpenTokenFiles(source->files));
  source->tokens = std::move(files.tokens);
  source->tokenizer = std::move(files.tokenizer);
  source->digest = std::move(files.digest);
  if (!source->tokenizer.has_value()) return absl::OkStatus();
  if (!tokenizer_.has_value()) tokenizer_ = source->tokenizer;
  if (*source->tokenizer == *tokenizer_) return absl::OkStatus();
  return Fault(source->name,
               absl::StrCat("was made with another tokenizer (", source->tokenizer->kind(), ", ",
                            source->tokenizer->vocab_size(), " ids) than the rest of the job (",
                            tokenizer_->kind(), ", ", tokenizer_->vocab_size(),
                            " ids); tokenise all of it with the same tokenizer, or leave ",
                            "data.tokenizer out"));
}

absl::Status Preparation::CheckVocabulary() {
  int32_t highest = -1;
  const Source* with_highest = nullptr;
  for (const Source* source : sides_.All()) {
    if (source->files.kind == DataKind::kText) continue;
    TERCIO_ASSIGN_OR_RETURN(const int32_t here, source->tokens.HighestToken(source->name));
    if (here > highest) with_highest = source;
    highest = std::max(highest, here);
  }
  prepared_.vocab_size = tokenizer_        ? tokenizer_->vocab_size()
                         : vocab_size_ > 0 ? vocab_size_
                                           : highest + 1;
  if (vocab_size_ > 0 && vocab_size_ < prepared_.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.vocab_size is ", vocab_size_, ", but the tokenizer '", tokenizer_->kind(), "' has ",
        prepared_.vocab_size, " ids; leave model.vocab_size out or make it at least that"));
  }
  if (highest < prepared_.vocab_size) return absl::OkStatus();
  return Fault(with_highest->name,
               absl::StrCat("token id ", highest, " is outside the vocabulary of ",
                            prepared_.vocab_size, tokenizer_ ? " of the tokenizer" : "",
                            "; the data was made with another tokenizer, or model.vocab_size is ",
                            "too small"));
}

absl::Status Preparation::CheckLength(const Source& source, const char* part,
                                      int64_t tokens) const {
  if (tokens > context_) return absl::OkStatus();
  return Fault(source.name,
               absl::StrCat(part, " has ", tokens,
                            " tokens, but one sample needs model.context + 1 = ", context_ + 1,
                            "; use more text, a shorter context or another data.validation"));
}

absl::Status Preparation::Join(const std::vector<Source>& sources, std::vector<TokenDataset> tokens,
                               BlendedDataset* out) const {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  absl::StatusOr<Blend> blend = Blend::Create(weights);
  if (!blend.ok()) return Fault("data", std::string(blend.status().message()));
  *out = BlendedDataset(std::move(tokens), *std::move(blend));
  return absl::OkStatus();
}

absl::Status Preparation::Split() {
  std::vector<TokenDataset> train;
  std::vector<TokenDataset> validation;
  for (const Source& source : sides_.train) {
    const int64_t all = source.tokens.tokens();
    const auto kept = static_cast<int64_t>(
        std::floor(static_cast<double>(all) * (1.0 - spec_.validation_fraction())));
    train.push_back(source.tokens.Slice(0, kept));
    TERCIO_RETURN_IF_ERROR(CheckLength(source, "the training part", kept));
    if (spec_.validation_fraction() > 0 && sides_.validation.empty()) {
      validation.push_back(source.tokens.Slice(kept, all));
      TERCIO_RETURN_IF_ERROR(CheckLength(source, "the validation part", all - kept));
    }
  }
  for (const Source& source : sides_.validation) {
    validation.push_back(source.tokens);
    TERCIO_RETURN_IF_ERROR(CheckLength(source, "the validation part", source.tokens.tokens()));
  }
  TERCIO_RETURN_IF_ERROR(Join(sides_.train, std::move(train), &prepared_.train));
  if (!validation.empty()) {
    const auto& sources = sides_.validation.empty() ? sides_.train : sides_.validation;
    TERCIO_RETURN_IF_ERROR(Join(sources, std::move(validation), &prepared_.validation));
  }
  prepared_.train_tokens = prepared_.train.tokens();
  prepared_.validation_tokens = prepared_.validation.tokens();
  return absl::OkStatus();
}

// Of one data set its own; of a blend that of all of them and their shares.
std::string DigestOf(const std::vector<Source>& sources, const BlendedDataset& blended) {
  if (sources.size() == 1) return sources[0].digest;
  std::string all;
  for (size_t d = 0; d < sources.size(); ++d) {
    absl::StrAppend(&all, sources[d].digest, " ", blended.blend().units()[d], "\n");
  }
  return Sha256Hex(all);
}

absl::StatusOr<PreparedData> Preparation::Prepare() {
  TERCIO_ASSIGN_OR_RETURN(sides_.train, FindSources(spec_.train(), spec_.train_blend()));
  TERCIO_ASSIGN_OR_RETURN(sides_.validation,
                          FindSources(spec_.validation_path(), spec_.validation_blend()));
  if (sides_.train.empty()) return absl::InvalidArgumentError("data.train names no data");
  TERCIO_RETURN_IF_ERROR(FindTokenizer());
  for (Source* source : sides_.All()) TERCIO_RETURN_IF_ERROR(OpenTokens(source));
  TERCIO_RETURN_IF_ERROR(CheckVocabulary());
  TERCIO_RETURN_IF_ERROR(Split());
  prepared_.digest = DigestOf(sides_.train, prepared_.train);
  if (!sides_.validation.empty()) {
    prepared_.digest =
        Sha256Hex(prepared_.digest + DigestOf(sides_.validation, prepared_.validation));
  }
  if (tokenizer_.has_value()) prepared_.tokenizer_json = tokenizer_->ToJson();
  return std::move(prepared_);
}

}  // namespace

absl::StatusOr<PreparedData> PrepareData(const v1::DataSpec& spec, int64_t context,
                                         const std::string& cache_dir, int32_t vocab_size) {
  return Preparation(spec, context, cache_dir, vocab_size).Prepare();
}

}  // namespace tercio::data
