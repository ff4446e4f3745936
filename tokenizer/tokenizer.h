// Text to token ids and back, for every kind of tokenizer that Tercio supports:
//
//   bytes, chars      plain_tokenizers.h: no file
//   byte_level_bpe    byte_level_bpe.h: GPT-2, RoBERTa, Llama 3
//   sentence_piece    sentence_piece.h: unigram and BPE `.model` files (T5, Llama 2)
//   word_piece        word_piece.h: BERT
//
// The JSON form holds all that is needed to encode and decode. It is stored in token caches, beside
// token files, and in checkpoints, so that generated ids can be decoded; each kind's header
// describes its content.
//
// Thread safety: immutable after construction. A copy shares the vocabulary, and costs nothing.
// Errors:        INVALID_ARGUMENT: text or ids that the vocabulary does not have, a file or JSON
//                that is not a tokenizer, or requires something that is not supported: named,
//                never ignored. NOT_FOUND: no file. Messages name file, byte, line or id.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tokenizer/tokenizer_model.h"

namespace tercio::tokenizer {

class Tokenizer {
 public:
  static Tokenizer Bytes();

  // Collects the code points of one or more texts (all text of the job, before it is split).
  static absl::StatusOr<Tokenizer> CharsOf(const std::vector<std::string_view>& texts);

  // A file tokenizer.json, vocab.json (with merges.txt beside it), *.model or vocab.txt; or a
  // directory, in which the first of these counts.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);

  static absl::StatusOr<Tokenizer> FromJson(std::string_view json);
  std::string ToJson() const { return model_->ToJson(); }

  const std::string& kind() const { return model_->kind(); }
  int32_t vocab_size() const { return model_->vocab_size(); }

  // Special ids, if the tokenizer has them.
  std::optional<int32_t> end_of_text() const { return model_->special().end_of_text; }
  std::optional<int32_t> beginning() const { return model_->special().beginning; }
  std::optional<int32_t> pad() const { return model_->special().pad; }
  std::optional<int32_t> mask() const { return model_->special().mask; }
  std::optional<int32_t> cls() const { return model_->special().cls; }
  std::optional<int32_t> separator() const { return model_->special().separator; }

  // The special tokens of BERT's samples: [CLS], [SEP], [MASK] and [PAD], or like RoBERTa <s>,
  // </s>, <mask> and <pad>.
  struct BertIds {
    std::optional<int32_t> cls;
    std::optional<int32_t> sep;
    std::optional<int32_t> mask;
    std::optional<int32_t> pad;
  };
  BertIds bert_ids() const;

  // By id: whether a token continues the word of the token before it ("##ing"). nullopt if the ids
  // do not show that (SentencePiece with spaces at the end of words).
  std::optional<std::vector<bool>> WordContinuations() const { return model_->WordContinuations(); }

  // The ids of the text only: beginnings and ends are added by the caller.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;
  // Special tokens are written out, too.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const {
    return model_->Decode(ids);
  }

  const TokenizerModel& model() const { return *model_; }

  bool operator==(const Tokenizer& other) const {
    return model_ == other.model_ || (kind() == other.kind() && ToJson() == other.ToJson());
  }

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}

  std::shared_ptr<const TokenizerModel> model_;  // never null
};

// The ids of Encode, computed by several threads if the kind's text may be cut (at least 64 KiB for
// each). Requires: threads >= 1.
absl::StatusOr<std::vector<int32_t>> EncodeParallel(const Tokenizer& tokenizer,
                                                    std::string_view text, int threads);

}  // namespace tercio::tokenizer
