// Reads `.model` files: a protobuf message, by hand, since Debian's libsentencepiece brings a
// second protobuf library with it.
#include <bit>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tokenizer/sentence_piece.h"

namespace tercio::tokenizer {
namespace {

absl::Status SentencePieceFileFault(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a SentencePiece model: ", std::string(what)));
}

// One field of a message. Groups are refused: no version of these messages has any.
struct Field {
  uint32_t number = 0;
  enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 } wire = Wire::kVarint;
  uint64_t value = 0;      // of the numeric forms
  std::string_view bytes;  // of kBytes
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  // nullopt at the end of the message.
  absl::StatusOr<std::optional<Field>> Next() {
    if (rest_.empty()) return std::nullopt;
    TERCIO_ASSIGN_OR_RETURN(const uint64_t key, Varint());
    Field field;
    if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF)
      return SentencePieceFileFault("a field has no number");
    field.number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0: {
        TERCIO_ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
        field.wire = Field::Wire::kFixed64;
        return Fixed(8, field);
      case 2: {
        field.wire = Field::Wire::kBytes;
        TERCIO_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > rest_.size()) return SentencePieceFileFault("a field is longer than the file");
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      case 5:
        field.wire = Field::Wire::kFixed32;
        return Fixed(4, field);
      default:
        return SentencePieceFileFault("a field has an unknown wire type");
    }
  }

 private:
  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (size_t i = 0; i < 10 && i < rest_.size(); ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if (byte < 0x80) {
        rest_.remove_prefix(i + 1);
        return value;
      }
    }
    return SentencePieceFileFault("a number is truncated");
  }
  absl::StatusOr<std::optional<Field>> Fixed(size_t size, Field field) {
    if (rest_.size() < size) return SentencePieceFileFault("a number is truncated");
    for (size_t i = 0; i < size; ++i) {
      field.value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(size);
    return field;
  }

  std::string_view rest_;
};

// Calls visit(field) for each field of a message.
template <typename Visit>
absl::Status ForFields(std::string_view message, const Visit& visit) {
  FieldReader reader(message);
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const std::optional<Field> field, reader.Next());
    if (!field.has_value()) return absl::OkStatus();
    TERCIO_RETURN_IF_ERROR(visit(*field));
  }
}

absl::Status ExpectWire(const Field& field, Field::Wire wire) {
  if (field.wire == wire) return absl::OkStatus();
  return SentencePieceFileFault(absl::StrCat("field ", field.number, " has the wrong wire type"));
}

absl::Status ReadText(const Field& field, std::string* out) {
  TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kBytes));
  out->assign(field.bytes);
  return absl::OkStatus();
}

absl::Status ReadFlag(const Field& field, bool* out) {
  TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kVarint));
  *out = field.value != 0;
  return absl::OkStatus();
}

absl::StatusOr<SentencePiece::Piece> ParsePiece(std::string_view message) {
  SentencePiece::Piece piece;
  const absl::Status read = ForFields(message, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 1:
        return ReadText(field, &piece.text);
      case 2:
        TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kFixed32));
        piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
        return absl::OkStatus();
      case 3:
        TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kVarint));
        if (field.value < 1 || field.value > 6) {
          return SentencePieceFileFault(absl::StrCat("a piece has the unknown type ", field.value));
        }
        piece.type = static_cast<SentencePiece::Type>(field.value);
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  });
  TERCIO_RETURN_IF_ERROR(read);
  return piece;
}

// Reads the rules of normalization. Their name, and the rules before they were compiled, do not
// change how a text is encoded.
absl::Status ParseNormalizer(std::string_view message, SentencePieceRules* rules) {
  return ForFields(message, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 1:
      case 6:
        return absl::OkStatus();
      case 2:
        return ReadText(field, &rules->charsmap);
      case 3:
        return ReadFlag(field, &rules->add_dummy_prefix);
      case 4:
        return ReadFlag(field, &rules->remove_extra_whitespaces);
      case 5:
        return ReadFlag(field, &rules->escape_whitespaces);
      default:
        return SentencePieceFileFault(
            absl::StrCat("its normalizer_spec has the unknown field ", field.number));
    }
  });
}

struct ControlNames {
  std::string beginning = "<s>";
  std::string end = "</s>";
  std::string pad = "<pad>";
};

absl::Status ReadAlgorithm(const Field& field, SentencePiece* model) {
  TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kVarint));
  if (field.value != 1 && field.value != 2) {
    return absl::InvalidArgumentError(absl::StrCat("the SentencePiece model type ",
                                                   field.value == 3   ? "'word'"
                                                   : field.value == 4 ? "'char'"
                                                                      : absl::StrCat(field.value),
                                                   " is not supported; unigram and bpe are"));
  }
  model->algorithm =
      field.value == 1 ? SentencePiece::Algorithm::kUnigram : SentencePiece::Algorithm::kBpe;
  return absl::OkStatus();
}

// Reads how the model was trained; other fields have no part in encoding.
absl::Status ParseTrainer(std::string_view message, SentencePiece* model, ControlNames* names) {
  return ForFields(message, [&](const Field& field) -> absl::Status {
    switch (field.number) {
      case 3:
        return ReadAlgorithm(field, model);
      case 24:
        return ReadFlag(field, &model->rules.whitespace_as_suffix);
      case 35:
        return ReadFlag(field, &model->byte_fallback);
      case 44:
        return ReadText(field, &model->unknown_surface);
      case 46:
        return ReadText(field, &names->beginning);
      case 47:
        return ReadText(field, &names->end);
      case 48:
        return ReadText(field, &names->pad);
      default:
        return absl::OkStatus();
    }
  });
}

void FindControls(const ControlNames& names, SentencePiece* model) {
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const SentencePiece::Piece& piece = model->pieces[id];
    if (piece.type != SentencePiece::Type::kControl &&
        piece.type != SentencePiece::Type::kUserDefined) {
      continue;
    }
    const auto known = static_cast<int32_t>(id);
    if (piece.text == "[CLS]") model->special.cls = known;
    if (piece.text == "[SEP]") model->special.separator = known;
    if (piece.text == "[MASK]" || piece.text == "<mask>") model->special.mask = known;
    if (piece.type != SentencePiece::Type::kControl) continue;
    if (piece.text == names.beginning) model->special.beginning = known;
    if (piece.text == names.end) model->special.end_of_text = known;
    if (piece.text == names.pad) model->special.pad = known;
  }
}

}  // namespace

absl::StatusOr<SentencePiece> ParseSentencePieceFile(std::string_view bytes) {
  SentencePiece model;
  ControlNames names;
  const absl::Status read = ForFields(bytes, [&](const Field& field) -> absl::Status {
    if (field.number >= 1 && field.number <= 5) {
      TERCIO_RETURN_IF_ERROR(ExpectWire(field, Field::Wire::kBytes));
    }
    switch (field.number) {
      case 1: {
        TERCIO_ASSIGN_OR_RETURN(SentencePiece::Piece piece, ParsePiece(field.bytes));
        model.pieces.push_back(std::move(piece));
        return absl::OkStatus();
      }
      case 2:
        return ParseTrainer(field.bytes, &model, &names);
      case 3:
        return ParseNormalizer(field.bytes, &model.rules);
      case 5: {
        SentencePieceRules denormalizer;
        TERCIO_RETURN_IF_ERROR(ParseNormalizer(field.bytes, &denormalizer));
        if (denormalizer.charsmap.empty()) return absl::OkStatus();
        return absl::InvalidArgumentError("a SentencePiece denormalizer_spec is not supported");
      }
      default:
        return absl::OkStatus();
    }
  });
  TERCIO_RETURN_IF_ERROR(read);
  FindControls(names, &model);
  return model;
}

}  // namespace tercio::tokenizer
