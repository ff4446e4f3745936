#include "tokenizer/export/sentence_piece_model.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "proto/tercio/sentencepiece/model.pb.h"

namespace tercio::tokenizer {
namespace {

using Json = nlohmann::json;
using PieceProto = sentencepiece::ModelProto::SentencePiece;
using sentencepiece::TrainerSpec;

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

bool IsPieceType(const Json& type) {
  if (!type.is_number_integer()) return false;
  const auto number = type.get<int64_t>();
  return number >= PieceProto::NORMAL && number <= PieceProto::BYTE;
}

// All entries are checked here, so that conversions further down throw no exceptions.
std::optional<Lists> ListsOf(const Json& json) {
  for (const char* key : {"pieces", "scores", "types"}) {
    if (!json.contains(key) || !json[key].is_array()) return std::nullopt;
  }
  const Lists lists = {json["pieces"], json["scores"], json["types"]};
  const size_t count = lists.pieces.size();
  if (lists.scores.size() != count || lists.types.size() != count) return std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    if (!lists.pieces[i].is_string() || !lists.scores[i].is_number() ||
        !IsPieceType(lists.types[i])) {
      return std::nullopt;
    }
  }
  return lists;
}

std::string PiecesOf(const Lists& lists) {
  sentencepiece::ModelProto model;
  for (size_t i = 0; i < lists.pieces.size(); ++i) {
    PieceProto* piece = model.add_pieces();
    piece->set_piece(lists.pieces[i].get_ref<const std::string&>());
    piece->set_score(lists.scores[i].get<float>());
    const auto type = static_cast<PieceProto::Type>(lists.types[i].get<int>());
    if (type != PieceProto::NORMAL) piece->set_type(type);
  }
  return model.SerializeAsString();
}

// The fields of trainer_spec with the id and the name of a special piece.
struct Role {
  const char* key;
  void (TrainerSpec::*set_id)(int32_t id);
  std::string* (TrainerSpec::*mutable_name)();
};
constexpr Role kRoles[] = {
    {"beginning", &TrainerSpec::set_bos_id, &TrainerSpec::mutable_bos_piece},
    {"end_of_text", &TrainerSpec::set_eos_id, &TrainerSpec::mutable_eos_piece},
    {"pad", &TrainerSpec::set_pad_id, &TrainerSpec::mutable_pad_piece},
};

std::string UnknownOf(const Lists& lists) {
  for (size_t i = 0; i < lists.types.size(); ++i) {
    if (lists.types[i] == static_cast<int>(PieceProto::UNKNOWN)) {
      return lists.pieces[i].get<std::string>();
    }
  }
  return "";
}

void FillTrainer(const Json& json, const Lists& lists, const std::string& algorithm,
                 TrainerSpec* trainer) {
  trainer->set_model_type(algorithm == "unigram" ? TrainerSpec::UNIGRAM : TrainerSpec::BPE);
  trainer->set_vocab_size(static_cast<int32_t>(lists.pieces.size()));
  trainer->set_treat_whitespace_as_suffix(Flag(json, "whitespace_as_suffix"));
  trainer->set_byte_fallback(Flag(json, "byte_fallback"));
  for (size_t i = 0; i < lists.types.size(); ++i) {
    if (lists.types[i] != static_cast<int>(PieceProto::UNKNOWN)) continue;
    trainer->set_unk_id(static_cast<int32_t>(i));
    trainer->set_unk_piece(lists.pieces[i].get_ref<const std::string&>());
  }
  const Json special = json.value("special", Json::object());
  for (const Role& role : kRoles) {
    // Each id is written, even where there is none: the library's defaults, 1 for the beginning and
    // 2 for the end, may be other pieces here.
    const Json id = special.is_object() ? special.value(role.key, Json()) : Json();
    const bool known = id.is_number_unsigned() && id.get<uint64_t>() < lists.pieces.size();
    (trainer->*role.set_id)(known ? id.get<int32_t>() : -1);
    if (!known) continue;
    *(trainer->*role.mutable_name)() = lists.pieces[id.get<size_t>()].get_ref<const std::string&>();
  }
  if (const std::string* surface = Text(json, "unknown_surface")) {
    trainer->set_unk_surface(*surface);
  }
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
  sentencepiece::ModelProto rest;
  FillTrainer(json, *lists, *algorithm, rest.mutable_trainer_spec());
  sentencepiece::NormalizerSpec* normalizer = rest.mutable_normalizer_spec();
  // The name only describes the rules; what the library applies are the compiled ones.
  normalizer->set_name(rules.empty() ? "identity" : "user_defined");
  normalizer->set_precompiled_charsmap(rules);
  normalizer->set_add_dummy_prefix(Flag(json, "add_dummy_prefix"));
  normalizer->set_remove_extra_whitespaces(Flag(json, "remove_extra_whitespaces"));
  normalizer->set_escape_whitespaces(Flag(json, "escape_whitespaces"));
  return SentencePieceModel{PiecesOf(*lists), rest.SerializeAsString(), UnknownOf(*lists)};
}

}  // namespace tercio::tokenizer
