#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tokenizer/unicode.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

// A token that holds white space could reach over a place at which a text is cut, so the matcher
// has to know of it before any text is cut.
bool HasSpace(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = DecodeUtf8(text, i);
    if ((CharacterClasses()[point.code] & kSpace) != 0) return true;
    i += point.length;
  }
  return false;
}

size_t SpacesFrom(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint point = DecodeUtf8(text, at);
    if ((CharacterClasses()[point.code] & kSpace) == 0) break;
    at += point.length;
  }
  return at;
}

size_t SpacesBefore(std::string_view text, size_t at) {
  while (at > 0) {
    const CodePoint point = DecodeUtf8Before(text, at);
    if ((CharacterClasses()[point.code] & kSpace) == 0) break;
    at -= point.length;
  }
  return at;
}

// A flag that is not a boolean is refused: read as false it would change ids without a word.
absl::StatusOr<bool> Flag(const json& entry, const char* key) {
  if (!entry.contains(key)) return false;
  if (!entry[key].is_boolean()) {
    return absl::InvalidArgumentError(absl::StrCat("added_tokens: '", key, "' is not a boolean"));
  }
  return entry[key].get<bool>();
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const json& list) {
  if (!list.is_array()) return absl::InvalidArgumentError("added_tokens is not a list");
  std::vector<AddedToken> tokens;
  for (const json& entry : list) {
    if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_number_integer() ||
        !entry.contains("content") || !entry["content"].is_string()) {
      return absl::InvalidArgumentError("added_tokens: an entry has no id or no content");
    }
    AddedToken token;
    // The id is checked at 64 bits, since a cast would turn a number out of range into the id of
    // another token.
    const auto id = entry["id"].get<int64_t>();
    token.content = entry["content"].get<std::string>();
    if (id < 0 || id > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens: '", token.content, "' has the id ", id));
    }
    token.id = static_cast<int32_t>(id);
    for (const auto& [key, value] :
         {std::pair("special", &token.special), std::pair("lstrip", &token.left_strip),
          std::pair("rstrip", &token.right_strip), std::pair("normalized", &token.normalized)}) {
      const absl::StatusOr<bool> flag = Flag(entry, key);
      if (!flag.ok()) return flag.status();
      *value = *flag;
    }
    // The library asks which characters surround such a token. Split does not, and would find it
    // where the library does not.
    const absl::StatusOr<bool> single_word = Flag(entry, "single_word");
    if (!single_word.ok()) return single_word.status();
    if (*single_word) {
      return absl::InvalidArgumentError(absl::StrCat("added_tokens: '", token.content,
                                                     "' has single_word, which is not supported"));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

json AddedTokensToJson(const std::vector<AddedToken>& tokens) {
  json list = json::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"special", token.special},
                    {"lstrip", token.left_strip},
                    {"rstrip", token.right_strip},
                    {"normalized", token.normalized}});
  }
  return list;
}

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Create(const std::vector<AddedToken>& tokens,
                                                            Normalize normalize) {
  AddedTokenMatcher matcher;
  size_t bytes = 0;
  for (const AddedToken& token : tokens) {
    const std::string form = token.normalized ? normalize(token.content) : token.content;
    // The limit is that of a trie, so the forms that are searched for count, not the contents.
    bytes += form.size();
    if (bytes > ByteTrie::kMostBytes) {
      return absl::InvalidArgumentError("added_tokens: more than 16 MiB of text");
    }
    Part& part = token.normalized ? matcher.normalized_ : matcher.raw_;
    if (!part.trie.Insert(form, static_cast<int32_t>(part.tokens.size()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens: '", token.content, "' is empty or appears twice"));
    }
    part.tokens.push_back(token);
    // A cut leaves white space to the part behind it, where a token before it could no longer take
    // it. Both forms of a token count: texts are cut before they are normalized, and searched
    // after.
    if (token.right_strip || HasSpace(form) || HasSpace(token.content)) {
      matcher.allows_cuts_ = false;
    }
  }
  return matcher;
}

void AddedTokenMatcher::Part::Split(std::string_view text, OnPlain on_plain, OnId on_id) const {
  size_t done = 0;  // everything before it has been returned
  // Most texts have no such tokens to look for, and none of their bytes is visited then.
  size_t at = tokens.empty() ? text.size() : 0;
  while (at < text.size()) {
    const ByteTrie::Match match = trie.LongestPrefix(text.substr(at));
    if (match.length == 0) {
      // Single bytes may be skipped, since tokens are UTF-8 and begin at no byte within a
      // character.
      ++at;
      continue;
    }
    const AddedToken& token = tokens[static_cast<size_t>(match.value)];
    // White space that the token before has taken is not taken a second time.
    const size_t begin = token.left_strip ? std::max(done, SpacesBefore(text, at)) : at;
    at += match.length;
    if (begin > done) on_plain(text.substr(done, begin - done));
    on_id(token.id);
    done = token.right_strip ? SpacesFrom(text, at) : at;
  }
  if (done < text.size()) on_plain(text.substr(done));
}

}  // namespace tercio::tokenizer
