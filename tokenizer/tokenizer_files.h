// Finds out which kind of tokenizer a path is, and reads it.
//
//   tokenizer.json           hugging_face_json.h
//   vocab.json, merges.txt   byte-level BPE with GPT-2's words
//   *.model                  sentence_piece.h
//   vocab.txt                BERT's WordPiece: one token a line
//
// In a directory the first of these counts (of .model files, tokenizer.model). Beside them,
// tokenizer_config.json and special_tokens_map.json may name special tokens, and for vocab.txt set
// do_lower_case, strip_accents and tokenize_chinese_chars.
//
// Thread safety: pure but for reading files.
// Errors:        NOT_FOUND: no such file, or none of them in the directory. INVALID_ARGUMENT: not
//                a tokenizer, or one that requires something unsupported. Messages begin with the
//                file.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

absl::StatusOr<std::shared_ptr<const TokenizerModel>> LoadTokenizerFiles(const std::string& path);

}  // namespace tercio::tokenizer
