#include "tokenizer/huggingface_parts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tokenizer/vocabulary.h"

namespace tercio::tokenizer {

using nlohmann::json;

absl::Status UnknownPart(std::string_view key, const json& value) {
  std::string shown = value.dump();
  // A part may hold a table of megabytes, which is nothing for a message.
  if (shown.size() > 200) shown = absl::StrCat(shown.substr(0, 200), "...");
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(key), " ", shown,
      " is not supported; supported are byte-level BPE as in GPT-2 and Llama 3, "
      "BPE of SentencePiece's pieces as in Llama 2 and Mistral, BERT's WordPiece, and single "
      "characters"));
}

std::string TypeOfPart(const json& part) {
  const json& type = JsonAt(part, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

// Writers differ in whether they wrap a single part in a Sequence, and its readers here know single
// parts only.
const json& UnwrappedPart(const json& part, const char* list) {
  static const json& null = *new json();
  if (TypeOfPart(part) != "Sequence" || !JsonAt(part, list).is_array()) return part;
  const json& parts = JsonAt(part, list);
  if (parts.empty()) return null;
  return parts.size() == 1 ? parts[0] : part;
}

absl::Status ExpectNone(const json& model, std::initializer_list<const char*> keys) {
  for (const char* const key : keys) {
    const json& value = JsonAt(model, key);
    // Writers have several values for a setting that is off.
    const bool none = value.is_null() || value == json(false) || value == json("") ||
                      (value.is_number() && value.get<double>() == 0);
    if (!none) return UnknownPart(absl::StrCat("model.", key), value);
  }
  return absl::OkStatus();
}

}  // namespace tercio::tokenizer
