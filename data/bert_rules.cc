#include "data/bert_rules.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// Protobuf cannot tell an empty key from a missing one, and no member has an empty name.
std::string OrElse(const std::string& text, const char* otherwise) {
  return text.empty() ? otherwise : text;
}

// Ids that a person wrote are checked before they reach the embedding table, which they index.
absl::Status CheckInVocabulary(const v1::SpecialTokens& special, int32_t vocab_size) {
  for (const auto& [name, id] :
       {std::pair("cls", special.cls()), std::pair("sep", special.sep()),
        std::pair("mask", special.mask()), std::pair("pad", special.pad())}) {
    if (id >= 0 && id < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("data.special_tokens.", name, " is ", id,
                                                   ", outside the vocabulary of ", vocab_size,
                                                   "; use an id of the vocabulary"));
  }
  return absl::OkStatus();
}

// A classifier masks nothing, and needs no mask.
absl::StatusOr<v1::SpecialTokens> SpecialTokensOf(
    const v1::DataSpec& data, const std::optional<tokenizer::Tokenizer>& tokenizer, bool masks,
    int32_t vocab_size) {
  // What the job says counts before the tokenizer, so that a wrong guess by name can be corrected.
  if (data.has_special_tokens()) {
    TERCIO_RETURN_IF_ERROR(CheckInVocabulary(data.special_tokens(), vocab_size));
    return data.special_tokens();
  }
  if (!tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        "data.special_tokens is missing: token files without a tokenizer do not say which ids are "
        "[CLS], [SEP], [MASK] and [PAD]; give {cls: .., sep: .., mask: .., pad: ..}, or name the "
        "tokenizer in data.tokenizer");
  }
  const tokenizer::Tokenizer::BertIds ids = tokenizer->bert_ids();
  // All that is missing is named at once, which spares a person one run for each.
  std::vector<std::string> missing;
  if (!ids.cls.has_value()) missing.push_back("[CLS]");
  if (!ids.sep.has_value()) missing.push_back("[SEP]");
  if (!ids.mask.has_value() && masks) missing.push_back("[MASK]");
  if (!ids.pad.has_value()) missing.push_back("[PAD]");
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer: the tokenizer (", tokenizer->kind(), ") has no ",
        absl::StrJoin(missing, ", "), ", which bert needs; use one that was made for BERT ",
        "(vocab.txt, tokenizer.json), or name ids of its vocabulary in data.special_tokens"));
  }
  v1::SpecialTokens special;
  special.set_cls(*ids.cls);
  special.set_sep(*ids.sep);
  // A classifier without a mask gets another valid id; no rule of its samples uses it.
  special.set_mask(ids.mask.value_or(*ids.pad));
  special.set_pad(*ids.pad);
  return special;
}

// Whole words need the tokenizer, because ids alone do not show where a word begins.
absl::StatusOr<std::shared_ptr<const std::vector<bool>>> ContinuationsOf(
    const std::optional<tokenizer::Tokenizer>& tokenizer) {
  if (!tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        "data.masking.whole_word: token files without a tokenizer do not say which ids continue a "
        "word; name the tokenizer in data.tokenizer, put it beside the files "
        "(PREFIX.tokenizer.json), or set whole_word to false");
  }
  std::optional<std::vector<bool>> continues = tokenizer->WordContinuations();
  if (!continues.has_value()) {
    // A space at the end of a token belongs to the word before it and tells nothing of the next.
    return absl::InvalidArgumentError(absl::StrCat(
        "data.masking.whole_word: the tokenizer (", tokenizer->kind(),
        ") puts spaces at the end of words, so its ids do not show where words begin; ",
        "set whole_word to false"));
  }
  return std::make_shared<const std::vector<bool>>(*std::move(continues));
}

}  // namespace

absl::StatusOr<MaskingRules> MaskingRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                            const std::optional<tokenizer::Tokenizer>& tokenizer,
                                            int32_t vocab_size) {
  TERCIO_ASSIGN_OR_RETURN(const v1::SpecialTokens special,
                          SpecialTokensOf(data, tokenizer, /*masks=*/true, vocab_size));
  MaskingRules rules;
  rules.context = model.context();
  rules.vocab_size = vocab_size;
  rules.cls = special.cls();
  rules.sep = special.sep();
  rules.mask = special.mask();
  rules.pad = special.pad();
  // Zero is what Protobuf returns for a key that is missing, and leaves BERT's 15 %.
  if (data.masking().probability() > 0) rules.probability = data.masking().probability();
  rules.sentence_order = model.sentence_order();
  // Fewer tokens than a sample needs would leave it without anything to predict or to compare.
  if (rules.most_tokens() < rules.least_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.context is ", rules.context, ", but a sample ",
                     rules.sentence_order ? "of two segments " : "", "needs at least ",
                     rules.context - rules.most_tokens() + rules.least_tokens()));
  }
  // With one type the model could not see which segment a token belongs to. Zero means that the job
  // leaves the number to its default.
  if (rules.sentence_order && model.token_types() == 1) {
    return absl::InvalidArgumentError(
        "model.token_types is 1, but model.sentence_order needs 2 to tell the segments apart");
  }
  if (data.masking().whole_word()) {
    // The table is only made for jobs that use it, since not every tokenizer can make one.
    TERCIO_ASSIGN_OR_RETURN(rules.continues_word, ContinuationsOf(tokenizer));
  }
  return rules;
}

absl::StatusOr<LabelRules> LabelRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                        const tokenizer::Tokenizer& tokenizer) {
  TERCIO_ASSIGN_OR_RETURN(
      const v1::SpecialTokens special,
      SpecialTokensOf(data, tokenizer, /*masks=*/false, tokenizer.vocab_size()));
  LabelRules rules;
  rules.context = model.context();
  rules.cls = special.cls();
  rules.sep = special.sep();
  rules.pad = special.pad();
  if (model.token_types() > 0) rules.token_types = model.token_types();
  rules.labels = model.labels();
  rules.label_names.assign(model.label_names().begin(), model.label_names().end());
  rules.text_key = OrElse(data.text_key(), "text");
  rules.text_pair_key = OrElse(data.text_pair_key(), "text_pair");
  rules.label_key = OrElse(data.label_key(), "label");
  rules.skip_bad_lines = data.skip_bad_lines();
  // Two texts with [CLS] and two [SEP] need three, and a fourth leaves room for one token.
  if (rules.context < 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.context is ", rules.context, ", but a sample needs at least 4"));
  }
  if (!rules.label_names.empty() && rules.label_names.size() != static_cast<size_t>(rules.labels)) {
    return absl::InvalidArgumentError(absl::StrCat("model.labels has ", rules.label_names.size(),
                                                   " names for ", rules.labels, " classes"));
  }
  return rules;
}

// Whatever changes samples is in here, since nodes with different samples must get different
// digests.
std::string Describe(const MaskingRules& rules) {
  return nlohmann::json{{"context", rules.context},
                        {"vocab_size", rules.vocab_size},
                        {"special", {rules.cls, rules.sep, rules.mask, rules.pad}},
                        {"probability", rules.probability},
                        {"sentence_order", rules.sentence_order},
                        {"whole_word", rules.continues_word != nullptr}}
      .dump();
}

std::string Describe(const LabelRules& rules) {
  return nlohmann::json{{"context", rules.context},
                        {"special", {rules.cls, rules.sep, rules.pad}},
                        {"token_types", rules.token_types},
                        {"labels", rules.labels},
                        {"label_names", rules.label_names},
                        {"keys", {rules.text_key, rules.text_pair_key, rules.label_key}},
                        {"skip_bad_lines", rules.skip_bad_lines}}
      // Names and keys come from the job and may not be UTF-8, for which dump would throw
      // otherwise.
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tercio::data
