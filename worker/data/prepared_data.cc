#include "worker/data/prepared_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "worker/data/indexed_dataset.h"

namespace tercio::data {
namespace {

// One side (training or validation) of the data section.
struct Source {
  TokenDataset tokens;
  std::optional<Tokenizer> tokenizer;
  std::string digest;
};

absl::Status Fault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

bool IsIndexed(const std::string& path) {
  return absl::EndsWith(path, ".idx") || absl::EndsWith(path, ".bin") || PathExists(path + ".idx");
}

std::string PrefixOf(const std::string& path) {
  const bool suffix = absl::EndsWith(path, ".idx") || absl::EndsWith(path, ".bin");
  return suffix ? path.substr(0, path.size() - 4) : path;
}

// Digest of token ids as they are stored, and of the tokenizer that made them.
std::string DigestOf(std::string_view bin, const std::string& tokenizer) {
  Sha256 sha;
  sha.Update(tokenizer);
  sha.Update(bin);
  return sha.HexDigest();
}

absl::StatusOr<Source> OpenTokens(const std::string& prefix) {
  TERCIO_ASSIGN_OR_RETURN(IndexedDataset dataset, OpenIndexedDataset(prefix));
  TERCIO_ASSIGN_OR_RETURN(const auto bin, MappedFile::Open(prefix + ".bin"));
  Source source;
  source.tokens = dataset.tokens;
  source.tokenizer = dataset.tokenizer;
  source.digest = DigestOf(bin->content(), dataset.tokenizer ? dataset.tokenizer->ToJson() : "");
  return source;
}

// The texts of a job: the vocabulary of `chars` is that of all of them together.
struct Texts {
  std::shared_ptr<const MappedFile> train;
  std::shared_ptr<const MappedFile> validation;  // null: none, or a fraction
};

absl::StatusOr<std::shared_ptr<const MappedFile>> OpenText(const std::string& path) {
  if (std::filesystem::is_directory(path)) return Fault(path, "is a directory, not a text");
  TERCIO_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  if (file->content().empty()) return Fault(path, "the file is empty");
  return file;
}

absl::StatusOr<Tokenizer> MakeTokenizer(const v1::DataSpec& spec, const Texts& texts) {
  if (spec.tokenizer() == "bytes") return Tokenizer::Bytes();
  if (spec.tokenizer() != "chars") {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer '", spec.tokenizer(),
                     "' is not supported by this version; use bytes or chars"));
  }
  std::vector<std::string_view> all = {texts.train->content()};
  if (texts.validation != nullptr) all.push_back(texts.validation->content());
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::CharsOf(all);
  if (!tokenizer.ok()) return Fault(spec.train(), std::string(tokenizer.status().message()));
  return tokenizer;
}

// Tokens of a text from the cache, or made now and put there. An entry that does not open is made
// again.
absl::StatusOr<Source> CachedTokens(std::string_view text, const std::string& path,
                                    const Tokenizer& tokenizer, const std::string& cache_dir) {
  Sha256 sha;
  sha.Update(tokenizer.ToJson());
  sha.Update(text);
  const std::string prefix = absl::StrCat(cache_dir, "/", sha.HexDigest());
  TERCIO_RETURN_IF_ERROR(MakeDirectories(cache_dir));
  TERCIO_ASSIGN_OR_RETURN(const auto lock, FileLock::Acquire(prefix + ".lock", /*wait=*/true));
  if (absl::StatusOr<Source> cached = OpenTokens(prefix);
      cached.ok() && cached->tokenizer.has_value() && *cached->tokenizer == tokenizer) {
    return cached;
  }
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return Fault(path, std::string(ids.status().message()));
  TERCIO_RETURN_IF_ERROR(WriteIndexedDataset(prefix, *ids, tokenizer));
  return OpenTokens(prefix);
}

absl::Status CheckLength(const std::string& path, const char* part, int64_t tokens,
                         int64_t context) {
  if (tokens > context) return absl::OkStatus();
  return Fault(path,
               absl::StrCat(part, " has ", tokens,
                            " tokens, but one sample needs model.context + 1 = ", context + 1,
                            "; use more text, a shorter context", " or another data.validation"));
}

absl::StatusOr<PreparedData> FinishData(const v1::DataSpec& spec, int64_t context,
                                        const Source& train,
                                        const std::optional<Source>& validation) {
  PreparedData prepared;
  prepared.train = train.tokens;
  prepared.digest = train.digest;
  if (train.tokenizer.has_value()) prepared.tokenizer_json = train.tokenizer->ToJson();
  if (validation.has_value()) {
    prepared.validation = validation->tokens;
    prepared.digest = Sha256Hex(train.digest + validation->digest);
  } else if (spec.validation_fraction() > 0) {
    const int64_t all = train.tokens.tokens();
    const auto kept = static_cast<int64_t>(
        std::floor(static_cast<double>(all) * (1.0 - spec.validation_fraction())));
    prepared.train = train.tokens.Slice(0, kept);
    prepared.validation = train.tokens.Slice(kept, all);
  }
  prepared.train_tokens = prepared.train.tokens();
  prepared.validation_tokens = prepared.validation.tokens();
  TERCIO_RETURN_IF_ERROR(
      CheckLength(spec.train(), "the training part", prepared.train_tokens, context));
  if (validation.has_value() || spec.validation_fraction() > 0) {
    TERCIO_RETURN_IF_ERROR(CheckLength(validation ? spec.validation_path() : spec.train(),
                                       "the validation part", prepared.validation_tokens, context));
  }
  return prepared;
}

absl::StatusOr<PreparedData> PrepareTokens(const v1::DataSpec& spec, int64_t context,
                                           int32_t vocab_size) {
  TERCIO_ASSIGN_OR_RETURN(const Source train, OpenTokens(PrefixOf(spec.train())));
  std::optional<Source> validation;
  if (!spec.validation_path().empty()) {
    TERCIO_ASSIGN_OR_RETURN(validation, OpenTokens(PrefixOf(spec.validation_path())));
  }
  TERCIO_ASSIGN_OR_RETURN(PreparedData prepared, FinishData(spec, context, train, validation));
  TERCIO_ASSIGN_OR_RETURN(IndexedDataset dataset, OpenIndexedDataset(PrefixOf(spec.train())));
  TERCIO_ASSIGN_OR_RETURN(int32_t highest, HighestToken(dataset));
  if (validation.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(dataset, OpenIndexedDataset(PrefixOf(spec.validation_path())));
    TERCIO_ASSIGN_OR_RETURN(const int32_t other, HighestToken(dataset));
    highest = std::max(highest, other);
  }
  prepared.vocab_size = train.tokenizer  ? train.tokenizer->vocab_size()
                        : vocab_size > 0 ? vocab_size
                                         : highest + 1;
  if (highest >= prepared.vocab_size) {
    return Fault(spec.train(), absl::StrCat("token id ", highest, " is outside the vocabulary of ",
                                            prepared.vocab_size));
  }
  return prepared;
}

}  // namespace

absl::StatusOr<PreparedData> PrepareData(const v1::DataSpec& spec, int64_t context,
                                         const std::string& cache_dir, int32_t vocab_size) {
  if (IsIndexed(spec.train())) return PrepareTokens(spec, context, vocab_size);
  Texts texts;
  TERCIO_ASSIGN_OR_RETURN(texts.train, OpenText(spec.train()));
  if (!spec.validation_path().empty()) {
    TERCIO_ASSIGN_OR_RETURN(texts.validation, OpenText(spec.validation_path()));
  }
  TERCIO_ASSIGN_OR_RETURN(const Tokenizer tokenizer, MakeTokenizer(spec, texts));
  TERCIO_ASSIGN_OR_RETURN(const Source train,
                          CachedTokens(texts.train->content(), spec.train(), tokenizer, cache_dir));
  std::optional<Source> validation;
  if (texts.validation != nullptr) {
    TERCIO_ASSIGN_OR_RETURN(validation, CachedTokens(texts.validation->content(),
                                                     spec.validation_path(), tokenizer, cache_dir));
  }
  TERCIO_ASSIGN_OR_RETURN(PreparedData prepared, FinishData(spec, context, train, validation));
  prepared.vocab_size = tokenizer.vocab_size();
  return prepared;
}

}  // namespace tercio::data
