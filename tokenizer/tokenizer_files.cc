#include "tokenizer/tokenizer_files.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/huggingface_json.h"
#include "tokenizer/sentence_piece.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_piece.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;
using ModelPointer = std::shared_ptr<const TokenizerModel>;

// The first that a directory holds counts, so the form with the most details stands first.
constexpr const char* kNames[] = {"tokenizer.json", "vocab.json", "tokenizer.model", "spiece.model",
                                  "vocab.txt"};

absl::StatusOr<json> ReadJson(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  json value = json::parse(file->content(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  }
  return value;
}

// tokenizer_config.json, with the entries that only special_tokens_map.json has; empty if there are
// none.
absl::StatusOr<json> ReadConfig(const std::string& directory) {
  json config = json::object();
  // Later entries replace earlier ones, so tokenizer_config.json counts where both have one.
  for (const char* const name : {"/special_tokens_map.json", "/tokenizer_config.json"}) {
    if (!PathExists(directory + name)) continue;
    TERCIO_ASSIGN_OR_RETURN(const json found, ReadJson(directory + name));
    config.update(found);
  }
  return config;
}

// The lines of a text without their ends; text after the last line end is a line if not empty.
std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    // Files that passed through Windows have line ends of two characters.
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Special tokens that the vocabulary has and `config` names, and `usual` ones.
std::vector<AddedToken> AddSpecialTokens(const json& config, const Vocabulary& vocabulary,
                                         std::vector<std::string> names) {
  for (const char* const role : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                 "cls_token", "mask_token"}) {
    names.push_back(ConfiguredToken(config, role));
  }
  std::vector<AddedToken> added;
  for (const std::string& name : names) {
    const std::optional<int32_t> id = vocabulary.Find(name);
    bool is_new = id.has_value() && !name.empty();
    // Two roles may have the same token, which must be added once.
    for (const AddedToken& token : added) is_new = is_new && token.content != name;
    if (is_new) added.push_back({.id = *id, .content = name, .special = true});
  }
  return added;
}

absl::StatusOr<ModelPointer> LoadHuggingFace(const std::string& path,
                                             const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(const json config, ReadConfig(directory));
  TERCIO_ASSIGN_OR_RETURN(const json root, ReadJson(path));
  absl::StatusOr<ModelPointer> model = ParseHuggingFaceJson(root, config);
  // The message tells a way out, since such directories often hold both forms.
  for (const char* const other : {"tokenizer.model", "spiece.model"}) {
    if (model.ok() || !PathExists(absl::StrCat(directory, "/", other))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        model.status().message(), "; ", other, " beside it can be used by giving its own path"));
  }
  return model;
}

absl::StatusOr<ModelPointer> LoadVocabAndMerges(const std::string& path,
                                                const std::string& directory) {
  // Ids from that file would be missing without a word, and texts would get other ids.
  if (PathExists(directory + "/added_tokens.json")) {
    return absl::InvalidArgumentError(
        "added_tokens.json beside it is not supported; save the tokenizer as tokenizer.json");
  }
  TERCIO_ASSIGN_OR_RETURN(const json config, ReadConfig(directory));
  TERCIO_ASSIGN_OR_RETURN(const json vocab, ReadJson(path));
  ByteLevelBpe bpe;
  TERCIO_ASSIGN_OR_RETURN(bpe.vocabulary, Vocabulary::FromObject(vocab));
  const std::string merges_path = directory + "/merges.txt";
  TERCIO_ASSIGN_OR_RETURN(const auto merges, MappedFile::Open(merges_path));
  size_t number = 0;
  for (const std::string_view line : LinesOf(merges->content())) {
    ++number;
    // Only this first line is a comment: a merge may begin with the character #.
    if (line.empty() || line.starts_with("#version")) continue;
    const auto pair = ParseMerge(bpe.vocabulary, line);
    if (!pair.ok() || !IsUtf8(line)) {
      return absl::InvalidArgumentError(
          absl::StrCat(merges_path, ":", number, ": ",
                       pair.ok() ? "the line is not UTF-8" : pair.status().message()));
    }
    bpe.merges.push_back(*pair);
  }
  // GPT-2's own files name no special tokens, so its only one is added.
  bpe.added = AddSpecialTokens(config, bpe.vocabulary, {"<|endoftext|>"});
  bpe.special = FindSpecialIds(config, bpe.vocabulary, bpe.added);
  return MakeByteLevelBpe(std::move(bpe));
}

absl::StatusOr<ModelPointer> LoadVocabText(const std::string& path, const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(const json config, ReadConfig(directory));
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  // The lines become tokens, and JSON, in which checkpoints store them, holds UTF-8 only.
  if (!IsUtf8(file->content())) return absl::InvalidArgumentError("the file is not UTF-8");
  std::vector<std::optional<std::string>> tokens;
  for (const std::string_view line : LinesOf(file->content())) tokens.emplace_back(line);
  WordPiece definition;
  TERCIO_ASSIGN_OR_RETURN(definition.vocabulary, Vocabulary::FromTokens(std::move(tokens)));
  // The defaults are those of BertTokenizer.
  TERCIO_ASSIGN_OR_RETURN(definition.lowercase, JsonFlag(config, "do_lower_case", true));
  TERCIO_ASSIGN_OR_RETURN(definition.strip_accents,
                          JsonFlag(config, "strip_accents", definition.lowercase));
  TERCIO_ASSIGN_OR_RETURN(definition.space_chinese,
                          JsonFlag(config, "tokenize_chinese_chars", true));
  definition.added = AddSpecialTokens(config, definition.vocabulary,
                                      {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"});
  definition.special = FindSpecialIds(config, definition.vocabulary, definition.added);
  return MakeWordPiece(std::move(definition));
}

absl::StatusOr<ModelPointer> LoadSentencePiece(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  TERCIO_ASSIGN_OR_RETURN(SentencePiece model, ParseSentencePieceFile(file->content()));
  return MakeSentencePiece(std::move(model));
}

absl::StatusOr<ModelPointer> LoadFile(const std::string& path) {
  const std::filesystem::path split(path);
  const std::string name = split.filename();
  const std::string directory = split.has_parent_path() ? split.parent_path().string() : ".";
  if (name.ends_with(".model")) return LoadSentencePiece(path);
  if (name == "vocab.json" || name == "merges.txt") {
    return LoadVocabAndMerges(directory + "/vocab.json", directory);
  }
  if (name.ends_with(".txt")) return LoadVocabText(path, directory);
  if (name.ends_with(".json")) return LoadHuggingFace(path, directory);
  return absl::InvalidArgumentError(
      "not a tokenizer; give a tokenizer.json, vocab.json with merges.txt, *.model or vocab.txt");
}

}  // namespace

absl::StatusOr<ModelPointer> LoadTokenizerFiles(const std::string& path) {
  std::error_code ignored;
  std::string file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file.clear();
    // All names are tried in their order, and the first that exists stays.
    for (const char* const name : kNames) {
      const std::string candidate = absl::StrCat(path, "/", name);
      if (file.empty() && PathExists(candidate)) file = candidate;
    }
    if (file.empty()) {
      return absl::NotFoundError(absl::StrCat(
          path,
          ": holds no tokenizer.json, vocab.json, tokenizer.model, spiece.model or vocab.txt"));
    }
  } else if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  absl::StatusOr<ModelPointer> model = LoadFile(file);
  // A reader of several files has named the one at fault itself.
  if (model.ok() || model.status().message().find(path) != std::string::npos) return model;
  return absl::Status(model.status().code(), absl::StrCat(file, ": ", model.status().message()));
}

}  // namespace tercio::tokenizer
