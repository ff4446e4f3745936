// The tokenizers that need no vocabulary file: `bytes` (ids are exactly the byte values 0-255) and
// `chars` (ids are the positions of the text's distinct Unicode code points in ascending order).
//
// Stored JSON: {"kind":"bytes","vocab_size":256}
//              {"characters":"\n !abc","kind":"chars","vocab_size":6}   (in the order of their ids)
//
// Thread safety: immutable.
// Errors:        INVALID_ARGUMENT: text that is not UTF-8, a character or an id outside of the
//                vocabulary. Messages say where (byte, line, id).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

std::shared_ptr<const TokenizerModel> MakeBytes();
absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeCharsOf(
    const std::vector<std::string_view>& texts);
absl::StatusOr<std::shared_ptr<const TokenizerModel>> CharsFromJson(const nlohmann::json& json);

}  // namespace tercio::tokenizer
