#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/plain_tokenizers.h"
#include "tokenizer/sentence_piece.h"
#include "tokenizer/tokenizer_files.h"
#include "tokenizer/word_piece.h"

namespace tercio::tokenizer {
namespace {

// Below this a thread costs more than it saves.
constexpr size_t kLeastPart = 64 << 10;
// More parts than threads, since they differ in cost.
constexpr size_t kPartsOfThread = 4;

using ModelPointer = std::shared_ptr<const TokenizerModel>;

absl::StatusOr<ModelPointer> ModelFromJson(const nlohmann::json& stored) {
  // FromJson has found that this key holds a text.
  const std::string kind = stored["kind"];
  if (kind == "bytes") return MakeBytes();
  if (kind == "chars") return CharsFromJson(stored);
  if (kind == "byte_level_bpe") return ByteLevelBpeFromJson(stored);
  if (kind == "sentence_piece") return SentencePieceFromJson(stored);
  if (kind == "word_piece") return WordPieceFromJson(stored);
  return absl::InvalidArgumentError(absl::StrCat("unknown kind '", kind, "'"));
}

// Cuts the text into about `parts` pieces, at places that the model allows.
std::vector<std::string_view> CutAtBorders(const TokenizerModel& model, std::string_view text,
                                           size_t parts) {
  std::vector<std::string_view> cut;
  const size_t size = text.size() / parts;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end =
        // The last part is whatever is left, so no part is much smaller than the others.
        text.size() - begin <= size ? text.size() : model.FindBorder(text, begin + size);
    cut.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return cut;
}

}  // namespace

Tokenizer Tokenizer::Bytes() { return Tokenizer(MakeBytes()); }

absl::StatusOr<Tokenizer> Tokenizer::CharsOf(const std::vector<std::string_view>& texts) {
  TERCIO_ASSIGN_OR_RETURN(ModelPointer model, MakeCharsOf(texts));
  return Tokenizer(std::move(model));
}

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(ModelPointer model, LoadTokenizerFiles(path));
  return Tokenizer(std::move(model));
}

absl::StatusOr<Tokenizer> Tokenizer::FromJson(std::string_view text) {
  const nlohmann::json stored = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!stored.is_object() || !stored.contains("kind") || !stored["kind"].is_string()) {
    return absl::InvalidArgumentError("not a tokenizer: no key 'kind'");
  }
  absl::StatusOr<ModelPointer> model = ModelFromJson(stored);
  if (!model.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("not a tokenizer: ", model.status().message()));
  }
  return Tokenizer(*std::move(model));
}

Tokenizer::BertIds Tokenizer::bert_ids() const {
  BertIds ids = {cls(), separator(), mask(), pad()};
  // One token for both ends of a text, as GPT-2 has it, does not count as two.
  if (beginning() != end_of_text()) {
    if (!ids.cls.has_value()) ids.cls = beginning();
    if (!ids.sep.has_value()) ids.sep = end_of_text();
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  const std::optional<std::string> prepared = model_->Prepare(text);
  return model_->EncodePart(prepared.has_value() ? std::string_view(*prepared) : text);
}

absl::StatusOr<std::vector<int32_t>> EncodeParallel(const Tokenizer& tokenizer,
                                                    std::string_view text, int threads) {
  // Without threads there would be no parts, and CutAtBorders divides by their number.
  TERCIO_CHECK(threads >= 1);
  const TokenizerModel& model = tokenizer.model();
  const std::optional<std::string> prepared = model.Prepare(text);
  const std::string_view whole = prepared.has_value() ? std::string_view(*prepared) : text;
  const size_t workers =
      std::min(static_cast<size_t>(threads), std::max<size_t>(1, whole.size() / kLeastPart));
  if (workers == 1) return model.EncodePart(whole);

  const std::vector<std::string_view> parts = CutAtBorders(model, whole, workers * kPartsOfThread);
  std::vector<absl::StatusOr<std::vector<int32_t>>> encoded(parts.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    // Each thread takes the next part that nobody has, and writes only to that part's place.
    for (size_t i = next++; i < parts.size(); i = next++) encoded[i] = model.EncodePart(parts[i]);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(workers, parts.size()); ++i) others.emplace_back(work);
  // The calling thread works, too, instead of waiting for the others.
  work();
  for (std::thread& thread : others) thread.join();

  size_t count = 0;
  for (const auto& ids : encoded) {
    // Errors name positions in the text, so the whole text is encoded again to report them.
    if (!ids.ok()) return model.EncodePart(whole);
    count += ids->size();
  }
  std::vector<int32_t> ids;
  ids.reserve(count);
  // The order is that of the text, whichever thread was done first.
  for (const auto& part : encoded) model.Join(*part, &ids);
  return ids;
}

}  // namespace tercio::tokenizer
