// The tokens of a vocabulary by id, ids by token, and the parts of the stored JSON form that the
// kinds of tokenizers share.
//
// Thread safety: immutable once made. Movable, not copyable: the index points into the tokens.
// Errors:        INVALID_ARGUMENT naming the token or the key. An id may be at most 65,536 above
// the
//                number of tokens, so that a small file cannot ask for a large table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // {"token": id, ...}, as in `vocab.json` and `tokenizer.json`.
  static absl::StatusOr<Vocabulary> FromObject(const nlohmann::json& object);
  // ["token", null, ...]: the index is the id, null an id without a token.
  static absl::StatusOr<Vocabulary> FromList(const nlohmann::json& list);
  static absl::StatusOr<Vocabulary> FromTokens(std::vector<std::optional<std::string>> tokens);
  nlohmann::json ToList() const;

  // The largest id + 1.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  // nullptr if the id is out of range or unused.
  const std::string* token(int32_t id) const {
    if (id < 0 || id >= size() || !tokens_[static_cast<size_t>(id)].has_value()) return nullptr;
    return &*tokens_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> Find(std::string_view token) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::vector<std::optional<std::string>> tokens_;
  absl::flat_hash_map<std::string_view, int32_t> ids_;
};

// The largest id + 1 of both. Refuses added tokens that contradict the vocabulary or each other.
absl::StatusOr<int32_t> SizeWithAdded(const Vocabulary& vocabulary,
                                      const std::vector<AddedToken>& added);

nlohmann::json SpecialIdsToJson(const SpecialIds& special);
// Refuses ids outside [0, vocab_size).
absl::StatusOr<SpecialIds> SpecialIdsFromJson(const nlohmann::json& json, int32_t vocab_size);

// A boolean or string of an object; the default if the key is missing or null. Refuses other types.
absl::StatusOr<bool> JsonFlag(const nlohmann::json& object, const char* key, bool otherwise);
absl::StatusOr<std::string> JsonText(const nlohmann::json& object, const char* key,
                                     std::string_view otherwise);
// The value of a key, or null.
const nlohmann::json& JsonAt(const nlohmann::json& object, const char* key);

}  // namespace tercio::tokenizer
