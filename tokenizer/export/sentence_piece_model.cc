#include "tokenizer/export/sentence_piece_model.h"

#include <bit>
#include <cstdint>
#include <string_view>

#include "absl/strings/escaping.h"

namespace tercio::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kNormal = 1;
constexpr int kUnknown = 2;

// Appends fields of a protobuf message.
class Message {
 public:
  void Number(int field, uint64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(value);
  }
  void Float(int field, float value) {
    Varint(static_cast<uint64_t>(field) << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
  }
  void Bytes(int field, std::string_view value) {
    Varint(static_cast<uint64_t>(field) << 3 | 2);
    Varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

bool Flag(const Json& json, const char* key) { return json.value(key, Json()) == Json(true); }

const std::string* Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? nullptr : found->get_ptr<const std::string*>();
}

struct Lists {
  const Json& pieces;
  const Json& scores;
  const Json& types;
};

std::optional<Lists> ListsOf(const Json& json) {
  for (const char* key : {"pieces", "scores", "types"}) {
    if (!json.contains(key) || !json[key].is_array()) return std::nullopt;
  }
  const Lists lists = {json["pieces"], json["scores"], json["types"]};
  const size_t count = lists.pieces.size();
  if (lists.scores.size() != count || lists.types.size() != count) return std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    if (!lists.pieces[i].is_string() || !lists.scores[i].is_number() ||
        !lists.types[i].is_number_integer()) {
      return std::nullopt;
    }
  }
  return lists;
}

std::string PiecesOf(const Lists& lists) {
  Message model;
  for (size_t i = 0; i < lists.pieces.size(); ++i) {
    Message piece;
    piece.Bytes(1, lists.pieces[i].get_ref<const std::string&>());
    piece.Float(2, lists.scores[i].get<float>());
    const auto type = lists.types[i].get<uint64_t>();
    if (type != kNormal) piece.Number(3, type);
    model.Bytes(1, piece.bytes());
  }
  return model.bytes();
}

// Fields of trainer_spec with the id and the name of a special piece.
struct Role {
  const char* key;
  int id_field;
  int name_field;
};
constexpr Role kRoles[] = {{"beginning", 41, 46}, {"end_of_text", 42, 47}, {"pad", 43, 48}};

std::string UnknownOf(const Lists& lists) {
  for (size_t i = 0; i < lists.types.size(); ++i) {
    if (lists.types[i] == kUnknown) return lists.pieces[i].get<std::string>();
  }
  return "";
}

std::string TrainerOf(const Json& json, const Lists& lists, const std::string& algorithm) {
  Message trainer;
  trainer.Number(3, algorithm == "unigram" ? 1 : 2);
  trainer.Number(4, lists.pieces.size());
  trainer.Number(24, Flag(json, "whitespace_as_suffix") ? 1 : 0);
  trainer.Number(35, Flag(json, "byte_fallback") ? 1 : 0);
  for (size_t i = 0; i < lists.types.size(); ++i) {
    if (lists.types[i] != kUnknown) continue;
    trainer.Number(40, i);
    trainer.Bytes(45, lists.pieces[i].get_ref<const std::string&>());
  }
  const Json special = json.value("special", Json::object());
  for (const Role& role : kRoles) {
    const Json id = special.is_object() ? special.value(role.key, Json()) : Json();
    const bool known = id.is_number_unsigned() && id.get<uint64_t>() < lists.pieces.size();
    trainer.Number(role.id_field, known ? id.get<uint64_t>() : UINT64_MAX);  // -1: there is none
    if (!known) continue;
    trainer.Bytes(role.name_field, lists.pieces[id.get<size_t>()].get_ref<const std::string&>());
  }
  if (const std::string* surface = Text(json, "unknown_surface")) trainer.Bytes(44, *surface);
  return trainer.bytes();
}

}  // namespace

std::optional<SentencePieceModel> SentencePieceModelOf(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const std::optional<Lists> lists = ListsOf(json);
  const std::string* algorithm = Text(json, "algorithm");
  const std::string* charsmap = Text(json, "charsmap");
  std::string rules;
  if (!lists.has_value() || algorithm == nullptr || charsmap == nullptr ||
      !absl::Base64Unescape(*charsmap, &rules)) {
    return std::nullopt;
  }
  Message normalizer;
  normalizer.Bytes(1, rules.empty() ? "identity" : "user_defined");
  normalizer.Bytes(2, rules);
  normalizer.Number(3, Flag(json, "add_dummy_prefix") ? 1 : 0);
  normalizer.Number(4, Flag(json, "remove_extra_whitespaces") ? 1 : 0);
  normalizer.Number(5, Flag(json, "escape_whitespaces") ? 1 : 0);
  Message rest;
  rest.Bytes(2, TrainerOf(json, *lists, *algorithm));
  rest.Bytes(3, normalizer.bytes());
  return SentencePieceModel{PiecesOf(*lists), rest.bytes(), UnknownOf(*lists)};
}

}  // namespace tercio::tokenizer
