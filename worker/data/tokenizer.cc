#include "worker/data/tokenizer.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// Calls visit(code_point) for every character; INVALID_ARGUMENT with the byte offset where the text
// is not UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF).
template <typename Visit>
absl::Status ForCodePoints(std::string_view text, const Visit& visit) {
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
    const uint8_t first = byte(i);
    int more = first < 0x80       ? 0
               : first >> 5 == 6  ? 1
               : first >> 4 == 14 ? 2
               : first >> 3 == 30 ? 3
                                  : -1;
    uint32_t code = more == 0 ? first : first & (0x3F >> std::max(more, 0));
    bool good = more >= 0 && i + static_cast<size_t>(more) < text.size();
    for (int k = 1; good && k <= more; ++k) {
      const uint8_t next = byte(i + static_cast<size_t>(k));
      good = next >> 6 == 2;
      code = code << 6 | (next & 0x3F);
    }
    constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
    good = good && code >= kSmallest[more] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    if (!good) {
      const auto line =
          std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(i), '\n') + 1;
      return absl::InvalidArgumentError(absl::StrCat("the text is not UTF-8 at byte ", i, " (line ",
                                                     line,
                                                     "); use the tokenizer 'bytes' or convert it"));
    }
    TERCIO_RETURN_IF_ERROR(visit(code));
    i += static_cast<size_t>(more) + 1;
  }
  return absl::OkStatus();
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto add = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

}  // namespace

Tokenizer::Tokenizer(std::string kind, std::vector<uint32_t> code_points)
    : kind_(std::move(kind)), code_points_(std::move(code_points)) {
  vocab_size_ = kind_ == "bytes" ? 256 : static_cast<int32_t>(code_points_.size());
  for (size_t i = 0; i < code_points_.size(); ++i) {
    id_of_[code_points_[i]] = static_cast<int32_t>(i);
  }
}

Tokenizer Tokenizer::Bytes() { return Tokenizer("bytes", {}); }

absl::StatusOr<Tokenizer> Tokenizer::CharsOf(const std::vector<std::string_view>& texts) {
  std::set<uint32_t> found;
  for (const std::string_view text : texts) {
    TERCIO_RETURN_IF_ERROR(ForCodePoints(text, [&](uint32_t code) {
      found.insert(code);
      return absl::OkStatus();
    }));
  }
  return Tokenizer("chars", std::vector<uint32_t>(found.begin(), found.end()));
}

absl::StatusOr<Tokenizer> Tokenizer::FromJson(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto fault = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("not a tokenizer: ", what));
  };
  if (!json.is_object() || !json.contains("kind") || !json["kind"].is_string()) {
    return fault("no key 'kind'");
  }
  if (json["kind"] == "bytes") return Bytes();
  if (json["kind"] != "chars") return fault("unknown kind");
  if (!json.contains("characters") || !json["characters"].is_string()) {
    return fault("no key 'characters'");
  }
  const std::string characters = json["characters"];
  std::vector<uint32_t> codes;
  TERCIO_RETURN_IF_ERROR(ForCodePoints(characters, [&](uint32_t code) {
    codes.push_back(code);
    return absl::OkStatus();
  }));
  if (!std::is_sorted(codes.begin(), codes.end()) ||
      std::adjacent_find(codes.begin(), codes.end()) != codes.end()) {
    return fault("characters are not in ascending order");
  }
  return Tokenizer("chars", std::move(codes));
}

std::string Tokenizer::ToJson() const {
  nlohmann::json json = {{"kind", kind_}, {"vocab_size", vocab_size_}};
  if (kind_ == "chars") {
    std::string characters;
    for (const uint32_t code : code_points_) AppendUtf8(code, &characters);
    json["characters"] = characters;
  }
  return json.dump();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  if (kind_ == "bytes") {
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }
  TERCIO_RETURN_IF_ERROR(ForCodePoints(text, [&](uint32_t code) {
    const auto found = id_of_.find(code);
    if (found == id_of_.end()) {
      std::string character;
      AppendUtf8(code, &character);
      return absl::InvalidArgumentError(
          absl::StrCat("the character '", character, "' is not in the tokenizer's vocabulary"));
    }
    ids.push_back(found->second);
    return absl::OkStatus();
  }));
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", id, " is not in the vocabulary of ", vocab_size_));
    }
    if (kind_ == "bytes") {
      text.push_back(static_cast<char>(id));
    } else {
      AppendUtf8(code_points_[static_cast<size_t>(id)], &text);
    }
  }
  return text;
}

}  // namespace tercio::data
