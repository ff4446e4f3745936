#include "tokenizer/plain_tokenizers.h"

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tokenizer/unicode.h"

namespace tercio::tokenizer {
namespace {

using nlohmann::json;

// Calls visit(code_point) for every character; INVALID_ARGUMENT with the byte offset if the text is
// not UTF-8.
template <typename Visit>
absl::Status ForCodePoints(std::string_view text, const Visit& visit) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = DecodeUtf8(text, i);
    if (!point.valid) {
      // The line costs a scan, which only a failure pays for.
      const auto line =
          std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(i), '\n') + 1;
      return absl::InvalidArgumentError(absl::StrCat("the text is not UTF-8 at byte ", i, " (line ",
                                                     line,
                                                     "); use the tokenizer 'bytes' or convert it"));
    }
    TERCIO_RETURN_IF_ERROR(visit(point.code));
    i += point.length;
  }
  return absl::OkStatus();
}

// Both kinds consist of text alone: whoever needs a special id finds that there is none.
const SpecialIds& NoSpecialIds() {
  static const SpecialIds none;
  return none;
}

class Bytes : public TokenizerModel {
 public:
  const std::string& kind() const override { return kind_; }
  int32_t vocab_size() const override { return 256; }
  const SpecialIds& special() const override { return NoSpecialIds(); }

  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   // The conversion goes by uint8_t, since char is signed on most machines.
                   [](char c) { return static_cast<int32_t>(static_cast<uint8_t>(c)); });
    return ids;
  }
  // Each byte is a token, so every position is a border.
  size_t FindBorder(std::string_view, size_t from) const override { return from + 1; }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id > 255) return UnknownId(id, 256);
      text.push_back(static_cast<char>(id));
    }
    return text;
  }
  std::string ToJson() const override {
    return json{{"kind", kind_}, {"vocab_size", vocab_size()}}.dump();
  }

 private:
  const std::string kind_ = "bytes";
};

class Chars : public TokenizerModel {
 public:
  // Requires: ascending.
  explicit Chars(std::vector<uint32_t> code_points) : code_points_(std::move(code_points)) {
    for (size_t i = 0; i < code_points_.size(); ++i) {
      id_of_[code_points_[i]] = static_cast<int32_t>(i);
    }
  }

  const std::string& kind() const override { return kind_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(code_points_.size()); }
  const SpecialIds& special() const override { return NoSpecialIds(); }

  absl::StatusOr<std::vector<int32_t>> EncodePart(std::string_view text) const override {
    std::vector<int32_t> ids;
    // A character has at least one byte, so this is the most that is needed.
    ids.reserve(text.size());
    TERCIO_RETURN_IF_ERROR(ForCodePoints(text, [&](uint32_t code) {
      const auto found = id_of_.find(code);
      if (found == id_of_.end()) {
        // The message shows the character, which a number would hide from whoever prepares the
        // data.
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
  // Any byte that does not continue a character.
  size_t FindBorder(std::string_view text, size_t from) const override {
    // Continuation bytes have the form 10xxxxxx, and a cut before one would divide a character.
    size_t at = from + 1;
    while (at < text.size() && static_cast<uint8_t>(text[at]) >> 6 == 2) ++at;
    return std::min(at, text.size());
  }

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) return UnknownId(id, vocab_size());
      AppendUtf8(code_points_[static_cast<size_t>(id)], &text);
    }
    return text;
  }
  std::string ToJson() const override {
    std::string characters;
    for (const uint32_t code : code_points_) AppendUtf8(code, &characters);
    return json{{"kind", kind_}, {"vocab_size", vocab_size()}, {"characters", characters}}.dump();
  }

 private:
  const std::string kind_ = "chars";
  const std::vector<uint32_t> code_points_;      // by id
  std::unordered_map<uint32_t, int32_t> id_of_;  // by code point
};

}  // namespace

std::shared_ptr<const TokenizerModel> MakeBytes() { return std::make_shared<Bytes>(); }

absl::StatusOr<std::shared_ptr<const TokenizerModel>> MakeCharsOf(
    const std::vector<std::string_view>& texts) {
  // A bit for each code point takes 136 KiB, and yields the characters in ascending order.
  std::vector<bool> found(0x110000);
  for (const std::string_view text : texts) {
    TERCIO_RETURN_IF_ERROR(ForCodePoints(text, [&](uint32_t code) {
      found[code] = true;
      return absl::OkStatus();
    }));
  }
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; code < found.size(); ++code) {
    if (found[code]) codes.push_back(code);
  }
  return std::make_shared<Chars>(std::move(codes));
}

absl::StatusOr<std::shared_ptr<const TokenizerModel>> CharsFromJson(const json& object) {
  if (!object.contains("characters") || !object["characters"].is_string()) {
    return absl::InvalidArgumentError("no key 'characters'");
  }
  const std::string characters = object["characters"];
  std::vector<uint32_t> codes;
  TERCIO_RETURN_IF_ERROR(ForCodePoints(characters, [&](uint32_t code) {
    codes.push_back(code);
    return absl::OkStatus();
  }));
  // The id of a character is its rank, so each set of characters has exactly one stored form.
  if (std::adjacent_find(codes.begin(), codes.end(), std::greater_equal<>()) != codes.end()) {
    return absl::InvalidArgumentError("characters are not in ascending order");
  }
  return std::make_shared<Chars>(std::move(codes));
}

}  // namespace tercio::tokenizer
