#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

// Real vocabularies leave some ids unused, but a small file must not ask for a large table.
constexpr int64_t kMostUnusedIds = 65536;

absl::Status VocabularyFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the vocabulary ", std::string(what)));
}

// One list serves both directions, so that no role can be written and not read.
struct NamedId {
  const char* name;
  std::optional<int32_t> SpecialIds::*id;
};
constexpr NamedId kNamedIds[] = {
    {"end_of_text", &SpecialIds::end_of_text},
    {"beginning", &SpecialIds::beginning},
    {"pad", &SpecialIds::pad},
    {"mask", &SpecialIds::mask},
    {"cls", &SpecialIds::cls},
    {"separator", &SpecialIds::separator},
};

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::FromTokens(std::vector<std::optional<std::string>> tokens) {
  Vocabulary vocabulary;
  vocabulary.tokens_ = std::move(tokens);
  // Ids have 32 bits in all files of tokens.
  if (vocabulary.tokens_.size() > static_cast<size_t>(INT32_MAX))
    return VocabularyFault("is too large");
  // The keys are views of the tokens, which therefore stay where they are from here on.
  vocabulary.ids_.reserve(vocabulary.tokens_.size());
  for (size_t id = 0; id < vocabulary.tokens_.size(); ++id) {
    const std::optional<std::string>& token = vocabulary.tokens_[id];
    if (!token.has_value()) continue;
    if (!vocabulary.ids_.emplace(*token, static_cast<int32_t>(id)).second) {
      return VocabularyFault(absl::StrCat("has the token '", *token, "' twice"));
    }
  }
  // Nothing could be encoded without a token.
  if (vocabulary.ids_.empty()) return VocabularyFault("is empty");
  return vocabulary;
}

absl::StatusOr<Vocabulary> Vocabulary::FromObject(const json& object) {
  if (!object.is_object()) return VocabularyFault("is not an object of tokens and ids");
  // The bound is known before the first id, so no id decides alone how large the table gets.
  const int64_t bound = static_cast<int64_t>(object.size()) + kMostUnusedIds;
  std::vector<std::optional<std::string>> tokens;
  for (const auto& [token, id_json] : object.items()) {
    if (!id_json.is_number_integer())
      return VocabularyFault(absl::StrCat("gives '", token, "' no id"));
    const auto id = id_json.get<int64_t>();
    if (id < 0 || id >= bound) {
      return VocabularyFault(absl::StrCat("gives '", token, "' the id ", id,
                                          ", out of range for a vocabulary of ", object.size()));
    }
    // The entries of an object have no order, so the table grows to the largest id so far.
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
    std::optional<std::string>& place = tokens[static_cast<size_t>(id)];
    if (place.has_value()) {
      return VocabularyFault(absl::StrCat("gives '", token, "' and '", *place, "' the id ", id));
    }
    place = token;
  }
  return FromTokens(std::move(tokens));
}

absl::StatusOr<Vocabulary> Vocabulary::FromList(const json& list) {
  if (!list.is_array()) return VocabularyFault("is not a list of tokens");
  std::vector<std::optional<std::string>> tokens;
  tokens.reserve(list.size());
  for (const json& entry : list) {
    // An id without a token stays, for the ids after it must not move.
    if (entry.is_null()) {
      tokens.emplace_back();
    } else if (entry.is_string()) {
      tokens.emplace_back(entry.get<std::string>());
    } else {
      return VocabularyFault(absl::StrCat("has no text at id ", tokens.size()));
    }
  }
  return FromTokens(std::move(tokens));
}

json Vocabulary::ToList() const {
  json list = json::array();
  for (const std::optional<std::string>& token : tokens_) {
    list.push_back(token.has_value() ? json(*token) : json());
  }
  return list;
}

absl::StatusOr<int32_t> SizeWithAdded(const Vocabulary& vocabulary,
                                      const std::vector<AddedToken>& added) {
  // New tokens may leave gaps as the vocabulary may, but no larger ones.
  const int64_t bound =
      int64_t{vocabulary.size()} + static_cast<int64_t>(added.size()) + kMostUnusedIds;
  absl::flat_hash_map<int32_t, std::string_view> new_ids;
  int32_t size = vocabulary.size();
  for (const AddedToken& token : added) {
    const std::string* const held = vocabulary.token(token.id);
    const std::optional<int32_t> known = vocabulary.Find(token.content);
    // A token may repeat an entry of the vocabulary, but must not give its id or its text to
    // another.
    const bool id_is_taken =
        held != nullptr ? *held != token.content : !new_ids.emplace(token.id, token.content).second;
    if (id_is_taken || (known.has_value() && *known != token.id)) {
      return absl::InvalidArgumentError(absl::StrCat("added_tokens: '", token.content,
                                                     "' has the id ", token.id,
                                                     ", which contradicts the vocabulary"));
    }
    if (token.id >= bound) {
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens: '", token.content, "' has the id ", token.id,
                       ", out of range for a vocabulary of ", vocabulary.size()));
    }
    // An added token may lie within the vocabulary, where it does not make it larger.
    size = std::max(size, token.id + 1);
  }
  return size;
}

json SpecialIdsToJson(const SpecialIds& special) {
  json object = json::object();
  for (const NamedId& named : kNamedIds) {
    // Absent roles are left out, and SpecialIdsFromJson reads a missing key as none.
    if ((special.*named.id).has_value()) object[named.name] = *(special.*named.id);
  }
  return object;
}

absl::StatusOr<SpecialIds> SpecialIdsFromJson(const json& object, int32_t vocab_size) {
  SpecialIds special;
  if (object.is_null()) return special;
  if (!object.is_object()) return absl::InvalidArgumentError("'special' is not an object");
  for (const NamedId& named : kNamedIds) {
    const json& id = JsonAt(object, named.name);
    if (id.is_null()) continue;
    // The id indexes tables of this size, so none outside it gets in.
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("special.", named.name, " is not an id of the vocabulary"));
    }
    special.*named.id = id.get<int32_t>();
  }
  return special;
}

const json& JsonAt(const json& object, const char* key) {
  // A null that is never destroyed stands for missing keys, so that a reference can be returned.
  static const json& null = *new json();
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

absl::StatusOr<bool> JsonFlag(const json& object, const char* key, bool otherwise) {
  const json& value = JsonAt(object, key);
  if (value.is_null()) return otherwise;
  // Another type is refused, since the default in its place would hide a mistake in the file.
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "' is not true or false"));
  }
  return value.get<bool>();
}

absl::StatusOr<std::string> JsonText(const json& object, const char* key,
                                     std::string_view otherwise) {
  const json& value = JsonAt(object, key);
  if (value.is_null()) return std::string(otherwise);
  if (!value.is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "' is not a string"));
  }
  return value.get<std::string>();
}

}  // namespace tercio::tokenizer
