#include "tokenizer/export/merges_of_pieces.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace tercio::tokenizer {
namespace {

using Json = nlohmann::json;

// The values are those of ModelProto.SentencePiece.Type in the library.
constexpr int kNormalPiece = 1;
constexpr int kUserDefined = 4;
constexpr int kUnused = 5;

bool IsFlag(const Json& json, const char* key, bool value) {
  return json.contains(key) && json[key] == Json(value);
}

// Whether a text is changed only in its spaces.
bool LeavesTextsAlone(const Json& json) {
  return json.contains("algorithm") && json["algorithm"] == Json("bpe") &&
         json.contains("charsmap") && json["charsmap"] == Json("") &&
         IsFlag(json, "escape_whitespaces", true) &&
         IsFlag(json, "remove_extra_whitespaces", false) &&
         IsFlag(json, "whitespace_as_suffix", false);
}

// In UTF-8 all bytes of a character but the first have the form 10xxxxxx.
bool ContinuesCharacter(char byte) { return static_cast<uint8_t>(byte) >> 6 == 2; }

bool IsOneCharacter(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !ContinuesCharacter(c); }) ==
         1;
}

// The pieces, and which of them can come out of joining.
class Pieces {
 public:
  // False if a list cannot express these pieces.
  bool Read(const Json& json);
  std::optional<std::vector<Merge>> Merges() const;

 private:
  struct Made {
    std::string_view text;
    double score;
  };
  bool IsSymbol(std::string_view text) const {
    return IsOneCharacter(text) || made_.contains(text);
  }
  std::vector<Merge> HalvesOf(std::string_view text) const;

  absl::flat_hash_set<std::string_view> all_;
  absl::flat_hash_set<std::string_view> made_;
  std::vector<Made> longer_;  // normal pieces of more than one character
};

bool Pieces::Read(const Json& json) {
  for (const char* key : {"pieces", "scores", "types"}) {
    if (!json.contains(key) || !json[key].is_array()) return false;
  }
  const Json& pieces = json["pieces"];
  if (json["scores"].size() != pieces.size() || json["types"].size() != pieces.size()) return false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Json& type = json["types"][i];
    const Json& score = json["scores"][i];
    if (!pieces[i].is_string() || !type.is_number_integer() || !score.is_number()) return false;
    // A list of merges cannot say that a piece is never joined, or that it is taken apart again.
    if (type == kUserDefined || type == kUnused) return false;
    const std::string_view text = pieces[i].get_ref<const std::string&>();
    all_.insert(text);
    if (type == kNormalPiece && !IsOneCharacter(text))
      longer_.push_back({text, score.get<double>()});
  }
  // Halves are shorter than the pieces that they make.
  std::sort(longer_.begin(), longer_.end(),
            [](const Made& a, const Made& b) { return a.text.size() < b.text.size(); });
  for (const Made& piece : longer_) {
    if (!HalvesOf(piece.text).empty()) made_.insert(piece.text);
  }
  return true;
}

// The pairs of symbols that make a piece.
std::vector<Merge> Pieces::HalvesOf(std::string_view text) const {
  std::vector<Merge> halves;
  for (size_t at = 1; at < text.size(); ++at) {
    if (ContinuesCharacter(text[at])) continue;
    const Merge pair = {text.substr(0, at), text.substr(at)};
    if (IsSymbol(pair.first) && IsSymbol(pair.second)) halves.push_back(pair);
  }
  return halves;
}

std::optional<std::vector<Merge>> Pieces::Merges() const {
  std::vector<Made> order;
  for (const Made& piece : longer_) {
    if (made_.contains(piece.text)) order.push_back(piece);
  }
  std::sort(order.begin(), order.end(),
            [](const Made& a, const Made& b) { return a.score > b.score; });
  std::vector<Merge> merges;
  for (size_t i = 0; i < order.size(); ++i) {
    // Between equal scores the leftmost pair of a text wins, which no order of a list expresses.
    if (i > 0 && order[i].score == order[i - 1].score) return std::nullopt;
    for (const Merge& pair : HalvesOf(order[i].text)) {
      // A list names tokens, so both halves have to be tokens themselves.
      if (!all_.contains(pair.first) || !all_.contains(pair.second)) return std::nullopt;
      merges.push_back(pair);
    }
  }
  return merges;
}

}  // namespace

std::optional<std::vector<Merge>> MergesOfPieces(const Json& tokenizer) {
  Pieces pieces;
  if (!tokenizer.is_object() || !LeavesTextsAlone(tokenizer) || !pieces.Read(tokenizer)) {
    return std::nullopt;
  }
  return pieces.Merges();
}

}  // namespace tercio::tokenizer
