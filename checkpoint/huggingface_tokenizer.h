// Tercio's tokenizers in the form of Hugging Face's tokenizer.json: the same ids for the same text.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tercio::checkpoint {

// `json` is a tokenizer as checkpoints hold it (worker/data/tokenizer.h). `bytes` becomes a
// byte-level BPE without merges, `chars` a vocabulary of single characters. None for other kinds.
std::optional<std::string> HuggingFaceTokenizer(std::string_view json);

// tokenizer_config.json for it.
std::string HuggingFaceTokenizerConfig(int64_t context);

}  // namespace tercio::checkpoint
