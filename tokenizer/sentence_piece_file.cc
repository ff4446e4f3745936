// Reads `.model` files by their published schema (proto/tercio/sentencepiece/model.proto), without
// Debian's libsentencepiece, which brings a second protobuf library with it.
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "proto/tercio/sentencepiece/model.pb.h"
#include "tokenizer/sentence_piece.h"

namespace tercio::tokenizer {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using sentencepiece::ModelProto;
using sentencepiece::NormalizerSpec;
using sentencepiece::TrainerSpec;
using PieceProto = ModelProto::SentencePiece;

absl::Status SentencePieceFileFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a SentencePiece model: ", std::string(what)));
}

const UnknownFieldSet& UnknownFields(const google::protobuf::Message& message) {
  return message.GetReflection()->GetUnknownFields(message);
}

// Refuses fields of the schema that have another wire type than the schema says: protobuf keeps
// these among the unknown fields. Groups are refused: no version of these messages has any.
absl::Status CheckWireTypes(const google::protobuf::Message& message) {
  const UnknownFieldSet& fields = UnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.type() == UnknownField::TYPE_GROUP)
      return SentencePieceFileFault("a field has an unknown wire type");
    if (message.GetDescriptor()->FindFieldByNumber(field.number()) != nullptr) {
      return SentencePieceFileFault(
          absl::StrCat("field ", field.number(), " has the wrong wire type"));
    }
  }
  return absl::OkStatus();
}

// The value of an enum that the schema lacks: protobuf keeps it among the unknown fields.
std::optional<uint64_t> UnknownValue(const google::protobuf::Message& message, int number) {
  const UnknownFieldSet& fields = UnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == UnknownField::TYPE_VARINT) {
      return field.varint();
    }
  }
  return std::nullopt;
}

absl::StatusOr<SentencePiece::Piece> PieceOf(const PieceProto& piece) {
  static_assert(static_cast<int>(SentencePiece::Type::kNormal) == PieceProto::NORMAL &&
                static_cast<int>(SentencePiece::Type::kByte) == PieceProto::BYTE);
  if (const auto type = UnknownValue(piece, PieceProto::kTypeFieldNumber)) {
    return SentencePieceFileFault(absl::StrCat("a piece has the unknown type ", *type));
  }
  TERCIO_RETURN_IF_ERROR(CheckWireTypes(piece));
  return SentencePiece::Piece{piece.piece(), piece.score(),
                              static_cast<SentencePiece::Type>(piece.type())};
}

// A rule that this code does not know could change how a text is encoded: any is refused.
absl::Status CheckNormalizer(const NormalizerSpec& normalizer) {
  TERCIO_RETURN_IF_ERROR(CheckWireTypes(normalizer));
  const UnknownFieldSet& fields = UnknownFields(normalizer);
  if (fields.empty()) return absl::OkStatus();
  return SentencePieceFileFault(
      absl::StrCat("its normalizer_spec has the unknown field ", fields.field(0).number()));
}

absl::StatusOr<SentencePiece::Algorithm> AlgorithmOf(const TrainerSpec& trainer) {
  const auto refused = [](std::string_view type) {
    return absl::InvalidArgumentError(absl::StrCat("the SentencePiece model type ",
                                                   std::string(type),
                                                   " is not supported; unigram and bpe are"));
  };
  if (const auto type = UnknownValue(trainer, TrainerSpec::kModelTypeFieldNumber)) {
    return refused(absl::StrCat(*type));
  }
  switch (trainer.model_type()) {
    case TrainerSpec::UNIGRAM:
      return SentencePiece::Algorithm::kUnigram;
    case TrainerSpec::BPE:
      return SentencePiece::Algorithm::kBpe;
    case TrainerSpec::WORD:
      return refused("'word'");
    case TrainerSpec::CHAR:
      return refused("'char'");
  }
  return refused(absl::StrCat(static_cast<int>(trainer.model_type())));
}

absl::Status ReadTrainer(const TrainerSpec& trainer, SentencePiece* model) {
  TERCIO_ASSIGN_OR_RETURN(model->algorithm, AlgorithmOf(trainer));
  TERCIO_RETURN_IF_ERROR(CheckWireTypes(trainer));
  model->rules.whitespace_as_suffix = trainer.treat_whitespace_as_suffix();
  model->byte_fallback = trainer.byte_fallback();
  model->unknown_surface = trainer.unk_surface();
  return absl::OkStatus();
}

absl::Status ReadNormalizers(const ModelProto& file, SentencePiece* model) {
  const NormalizerSpec& normalizer = file.normalizer_spec();
  TERCIO_RETURN_IF_ERROR(CheckNormalizer(normalizer));
  model->rules.charsmap = normalizer.precompiled_charsmap();
  model->rules.add_dummy_prefix = normalizer.add_dummy_prefix();
  model->rules.remove_extra_whitespaces = normalizer.remove_extra_whitespaces();
  model->rules.escape_whitespaces = normalizer.escape_whitespaces();
  TERCIO_RETURN_IF_ERROR(CheckNormalizer(file.denormalizer_spec()));
  if (file.denormalizer_spec().precompiled_charsmap().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("a SentencePiece denormalizer_spec is not supported");
}

void FindControls(const TrainerSpec& trainer, SentencePiece* model) {
  // As in the library, controls are found by the names in trainer_spec and not by its ids.
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const SentencePiece::Piece& piece = model->pieces[id];
    if (piece.type != SentencePiece::Type::kControl &&
        piece.type != SentencePiece::Type::kUserDefined) {
      continue;
    }
    const auto known = static_cast<int32_t>(id);
    // The format has no fields for these roles; ALBERT's models name the pieces like this.
    if (piece.text == "[CLS]") model->special.cls = known;
    if (piece.text == "[SEP]") model->special.separator = known;
    if (piece.text == "[MASK]" || piece.text == "<mask>") model->special.mask = known;
    // A user-defined piece is found in texts, and therefore cannot mark their ends.
    if (piece.type != SentencePiece::Type::kControl) continue;
    if (piece.text == trainer.bos_piece()) model->special.beginning = known;
    if (piece.text == trainer.eos_piece()) model->special.end_of_text = known;
    if (piece.text == trainer.pad_piece()) model->special.pad = known;
  }
}

}  // namespace

absl::StatusOr<SentencePiece> ParseSentencePieceFile(std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<int>::max())
    return SentencePieceFileFault("it is larger than 2 GiB");
  ModelProto file;
  if (!file.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return SentencePieceFileFault("a field is truncated, or has no number or an unknown wire type");
  }
  TERCIO_RETURN_IF_ERROR(CheckWireTypes(file));
  SentencePiece model;
  model.pieces.reserve(static_cast<size_t>(file.pieces_size()));
  for (const PieceProto& proto : file.pieces()) {
    TERCIO_ASSIGN_OR_RETURN(SentencePiece::Piece piece, PieceOf(proto));
    model.pieces.push_back(std::move(piece));
  }
  TERCIO_RETURN_IF_ERROR(ReadTrainer(file.trainer_spec(), &model));
  TERCIO_RETURN_IF_ERROR(ReadNormalizers(file, &model));
  // The fields may come in any order, so names are compared after the last one.
  FindControls(file.trainer_spec(), &model);
  return model;
}

}  // namespace tercio::tokenizer
