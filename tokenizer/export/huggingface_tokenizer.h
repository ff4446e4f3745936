// Tercio's tokenizers as the files that transformers reads: the same ids for the same text. Tercio
// reads all of them back (tokenizer/tokenizer_files.h).
//
//   bytes            tokenizer.json: byte-level BPE without merges
//   chars            tokenizer.json: a vocabulary of single characters
//   byte_level_bpe   tokenizer.json
//   word_piece       tokenizer.json, and vocab.txt where it can hold the vocabulary
//   sentence_piece   BPE that leaves texts as they are (Llama 2): tokenizer.json, and
//                    tokenizer.model if it can hold the tokenizer; all others: tokenizer.model, for
//                    transformers' class that calls the SentencePiece library, since their
//                    normalization has no equal in tokenizer.json
//
// Beside them lies tokenizer_config.json with the special tokens.
//
// Thread safety: pure functions.
// Errors:        none; nullopt for what is no tokenizer, or has no such form.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tercio::tokenizer {

using TokenizerFiles = std::map<std::string, std::string>;  // contents by name

struct TokenizerUse {
  int64_t context = 0;         // tokens that the model sees
  bool encodes_texts = false;  // transformers puts cls and separator around a text, as bert needs
};

// `json` is a tokenizer as checkpoints hold it (tokenizer/tokenizer.h).
std::optional<TokenizerFiles> HuggingFaceTokenizer(std::string_view json, const TokenizerUse& use);

// Whether the tokenizer `json` has the vocabulary of the files of a Hugging Face directory, and so
// is the same one.
bool HasVocabularyOf(std::string_view json, const TokenizerFiles& files);

}  // namespace tercio::tokenizer
