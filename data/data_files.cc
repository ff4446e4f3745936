#include "data/data_files.h"

#include <glob.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "data/document_batch.h"
#include "data/indexed_dataset.h"
#include "data/llmc_tokens.h"
#include "data/text_source.h"

namespace tercio::data {
namespace {

// The names that match a pattern; a file that really has such a name is only itself.
absl::StatusOr<std::vector<std::string>> Expand(const std::string& given) {
  if (given.find_first_of("*?[") == std::string::npos || PathExists(given) ||
      PathExists(given + ".idx")) {
    return std::vector<std::string>{given};
  }
  glob_t found = {};
  // The order is made later, over the names of all patterns.
  const int code = glob(given.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (code != 0 || paths.empty()) {
    return absl::NotFoundError(absl::StrCat(given, ": no file matches; check the pattern"));
  }
  return paths;
}

// Both files of a Megatron pair may be named, and stand for the pair.
bool HasTokenSuffix(const std::string& path) {
  return absl::EndsWith(path, ".idx") || absl::EndsWith(path, ".bin");
}

std::string PrefixOf(const std::string& path) {
  return HasTokenSuffix(path) ? path.substr(0, path.size() - 4) : path;
}

// A .bin file may be either kind of token file. The index beside it decides, and without one the
// magic number does.
DataKind KindOf(const std::string& path) {
  if (absl::EndsWith(path, ".idx") || PathExists(path + ".idx")) return DataKind::kIndexed;
  if (!absl::EndsWith(path, ".bin")) return DataKind::kText;
  if (PathExists(PrefixOf(path) + ".idx") || !IsLlmcFile(path)) return DataKind::kIndexed;
  return DataKind::kLlmc;
}

// Checks that there is any file of this name, which may have been meant as a PREFIX.
absl::Status CheckThere(const std::string& path, DataKind kind) {
  if (kind == DataKind::kText && !PathExists(path)) {
    return absl::NotFoundError(absl::StrCat("cannot open ", path, ": no such file, and no ", path,
                                            ".idx of a Megatron data set; check the path"));
  }
  if (kind == DataKind::kIndexed && absl::EndsWith(path, ".bin") && PathExists(path) &&
      !PathExists(PrefixOf(path) + ".idx")) {
    return absl::NotFoundError(absl::StrCat(
        path, ": is not an llm.c file (it begins with neither 20240520 nor 20240801), and ",
        PrefixOf(path), ".idx, which a Megatron data set needs, is missing"));
  }
  return absl::OkStatus();
}

const char* KindName(DataKind kind) {
  return kind == DataKind::kText      ? "text"
         : kind == DataKind::kIndexed ? "a Megatron data set"
                                      : "an llm.c file";
}

// Digest of token ids as they are stored, and of the tokenizer that made them.
absl::StatusOr<std::string> DigestOfFile(const std::string& path, const std::string& tokenizer) {
  // Digests cover the file as it is stored, so ids need not be converted for them.
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  Sha256 sha;
  sha.Update(tokenizer);
  sha.Update(file->content());
  return sha.HexDigest();
}

absl::StatusOr<TokenFiles> OpenOne(DataKind kind, const std::string& path, ContentCheck check) {
  TokenFiles one;
  if (kind == DataKind::kLlmc) {
    TERCIO_ASSIGN_OR_RETURN(const LlmcTokens file, OpenLlmcTokens(path));
    one.tokens = file.tokens;
    // The format does not store where documents end, so the file counts as one.
    one.borders = DocumentBorders::OneDocument(file.tokens.tokens());
    one.dtype = NameOf(file.type);
    // Nobody needs a digest that the agent has already computed for this attempt.
    if (check == ContentCheck::kDone) return one;
    TERCIO_ASSIGN_OR_RETURN(one.digest, DigestOfFile(path, ""));
    return one;
  }
  TERCIO_ASSIGN_OR_RETURN(const IndexedDataset dataset, OpenIndexedDataset(path));
  one.tokens = dataset.tokens;
  one.borders = dataset.borders;
  one.dtype = NameOf(dataset.type);
  one.documents = dataset.documents;
  one.tokenizer = dataset.tokenizer;
  // The content may be larger than memory, and reading it once for each attempt is enough.
  if (check == ContentCheck::kDone) return one;
  TERCIO_ASSIGN_OR_RETURN(
      one.digest, DigestOfFile(path + ".bin", one.tokenizer ? one.tokenizer->ToJson() : ""));
  TERCIO_ASSIGN_OR_RETURN(one.index_digest, DigestOfFile(path + ".idx", ""));
  return one;
}

absl::StatusOr<DatasetSummary> InspectTexts(const DataFiles& files, const std::string& text_key) {
  // Lines are judged one by one, and a text must stay whole to count as one document.
  TERCIO_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(files.paths, /*split_bytes=*/0));
  DatasetSummary summary;
  summary.format = source.json(0) ? "jsonl" : "text";
  summary.documents = 0;
  TextOptions options;
  options.text_key = text_key;
  TextPiece piece;
  std::string storage;
  // Every line is read, so that a person sees the number of all bad ones at once.
  while (source.Next(&piece)) {
    const absl::StatusOr<std::string_view> text = TextOf(piece, options, &storage);
    if (text.ok()) {
      if (!text->empty()) ++*summary.documents;
    } else if (summary.bad_lines++ == 0) {
      summary.first_bad_line =
          absl::StrCat(PlaceOf(source, piece), std::string(text.status().message()));
    }
  }
  return summary;
}

}  // namespace

absl::StatusOr<DataFiles> FindDataFiles(absl::Span<const std::string> given) {
  std::vector<std::string> names;
  for (const std::string& one : given) {
    TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> found, Expand(one));
    names.insert(names.end(), found.begin(), found.end());
  }
  if (names.empty()) return absl::InvalidArgumentError("no file is given");
  // All nodes must see the files in the same order, whatever their directories return.
  std::sort(names.begin(), names.end());
  DataFiles files;
  std::set<std::string> pairs;
  for (const std::string& name : names) {
    const DataKind kind = KindOf(name);
    TERCIO_RETURN_IF_ERROR(CheckThere(name, kind));
    // The first file sets the kind of the data set, and the message below names it.
    if (files.paths.empty()) files.kind = kind;
    if (kind != files.kind) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": is ", KindName(kind), ", but ", files.paths.front(), " is ",
          KindName(files.kind),
          "; all files of a data set must be of one kind (a blend of {path, weight} may mix "
          "them)"));
    }
    const std::string path = kind == DataKind::kIndexed ? PrefixOf(name) : name;
    // A pattern finds both files of a pair.
    if (kind != DataKind::kIndexed || pairs.insert(path).second) files.paths.push_back(path);
  }
  return files;
}

absl::StatusOr<TokenFiles> OpenTokenFiles(const DataFiles& files, ContentCheck check) {
  // The parts share their mappings, so joining them copies no token.
  TokenFiles all;
  std::vector<TokenDataset> parts;
  std::vector<DocumentBorders> borders;
  std::string digests;
  std::string index_digests;
  for (const std::string& path : files.paths) {
    TERCIO_ASSIGN_OR_RETURN(TokenFiles one, OpenOne(files.kind, path, check));
    if (parts.empty()) {
      all = one;
    } else if (one.tokenizer != all.tokenizer) {
      // Ids of different tokenizers mean different texts, and no later check would notice it.
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": was made with a different tokenizer than ", files.paths.front(),
          "; tokenise both with the same (--tokenizer ", files.paths.front(), ".tokenizer.json)"));
    } else if (all.documents.has_value()) {
      *all.documents += one.documents.value_or(0);
    }
    digests += one.digest;
    // The number of tokens separates files: without it a border could move from one to the next
    // unnoticed.
    absl::StrAppend(&index_digests, one.index_digest, " ", one.tokens.tokens(), "\n");
    parts.push_back(std::move(one.tokens));
    borders.push_back(std::move(one.borders));
  }
  all.tokens = TokenDataset::Concatenate(parts);
  all.borders = DocumentBorders::Concatenate(borders);
  if (check == ContentCheck::kDone) return all;
  all.index_digest = Sha256Hex(index_digests);
  // One file keeps its own digest, which is that of the same data named directly.
  if (parts.size() > 1) all.digest = Sha256Hex(digests);
  return all;
}

absl::StatusOr<DatasetSummary> InspectDataset(const std::string& path,
                                              const std::string& text_key) {
  TERCIO_ASSIGN_OR_RETURN(const DataFiles files, FindDataFiles({path}));
  if (files.kind == DataKind::kText) return InspectTexts(files, text_key);
  TERCIO_ASSIGN_OR_RETURN(const TokenFiles tokens, OpenTokenFiles(files, ContentCheck::kDone));
  DatasetSummary summary;
  summary.format = files.kind == DataKind::kLlmc ? "llm.c" : "megatron";
  summary.documents = tokens.documents;
  summary.tokens = tokens.tokens.tokens();
  summary.dtype = tokens.dtype;
  // A tokenizer says how many ids there may be; without one only those that occur are known.
  if (tokens.tokenizer.has_value()) {
    summary.vocab_size = tokens.tokenizer->vocab_size();
  } else {
    TERCIO_ASSIGN_OR_RETURN(const int32_t highest, tokens.tokens.HighestToken(path));
    summary.vocab_size = highest + 1;
  }
  return summary;
}

}  // namespace tercio::data
