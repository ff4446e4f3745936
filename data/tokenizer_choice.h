// The requirements of data sets on a tokenizer beyond encoding: the one that a job or a command
// line names, its end-of-text id, and whether a text may be cut into pieces.
//
// Pure except for ChooseTokenizer, which reads files; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

// How to find the documents of texts.
struct TextOptions {
  std::string text_key = "text";  // key of the text in .jsonl lines
  bool skip_bad_lines = false;    // .jsonl lines that hold no document are counted, not an error
  int threads = 1;
};

// `name` is "bytes", "chars" (the vocabulary is that of all `texts` together), or a path: a file
// that Tokenizer::Load can read, a tokenizer as checkpoints hold it, or a directory with one of
// them. INVALID_ARGUMENT: no such path, text that is not UTF-8, a broken line.
absl::StatusOr<tokenizer::Tokenizer> ChooseTokenizer(const std::string& name,
                                                     const std::vector<std::string>& texts,
                                                     const TextOptions& options);

// The id that ends a document; none for bytes and chars, whose ids are all text.
std::optional<int32_t> EndOfText(const tokenizer::Tokenizer& tokenizer);

// Whether the ids of a text are those of its parts, wherever it is cut between two characters.
bool MayCutText(const tokenizer::Tokenizer& tokenizer);

}  // namespace tercio::data
