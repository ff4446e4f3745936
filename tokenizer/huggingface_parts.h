// Common code of the readers of Hugging Face's `tokenizer.json`: its parts (normalizers,
// pre-tokenizers, decoders) and how they are refused.
//
// Thread safety: pure functions.
// Errors:        INVALID_ARGUMENT naming the key.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tercio::tokenizer {

// The error for an unsupported value of a key.
absl::Status UnknownPart(std::string_view key, const nlohmann::json& value);

// The type of a part such as a normalizer; empty if there is none.
std::string TypeOfPart(const nlohmann::json& part);

// Unwraps a Sequence of one part, or of none.
const nlohmann::json& UnwrappedPart(const nlohmann::json& part, const char* list);

// Keys of a model that must have one of their harmless values.
absl::Status ExpectNone(const nlohmann::json& model, std::initializer_list<const char*> keys);

}  // namespace tercio::tokenizer
