#include "data/span_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "data/objective.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// As many as the published vocabularies have.
constexpr int32_t kAddedSentinels = 100;
constexpr int32_t kAddedTokens = kAddedSentinels + 2;

// Finds <extra_id_0> and those that follow it downwards; none leaves the vocabulary as it is.
void FindSentinels(const tokenizer::Tokenizer& tokenizer, SpanVocabulary* out) {
  const auto is = [&tokenizer](int32_t id, int32_t sentinel) {
    const absl::StatusOr<std::string> text = tokenizer.Decode({&id, 1});
    return text.ok() && *text == absl::StrCat("<extra_id_", sentinel, ">");
  };
  // Published vocabularies have them last, so the search begins there.
  int32_t id = tokenizer.vocab_size() - 1;
  while (id >= 0 && !is(id, 0)) --id;
  out->first_sentinel = id;
  while (id >= 0 && is(id, out->sentinels)) {
    ++out->sentinels;
    --id;
  }
}

// What is not there is placed behind `vocab_size`.
void PlaceMissing(bool has_ends, SpanVocabulary* out) {
  if (!has_ends) {
    out->pad = out->vocab_size++;
    out->eos = out->vocab_size++;
  }
  if (out->sentinels > 0) return;
  out->vocab_size += kAddedSentinels;
  out->sentinels = kAddedSentinels;
  out->first_sentinel = out->vocab_size - 1;
}

// Ids that a person wrote are checked before they reach the embedding table, which they index.
absl::Status CheckSpecialTokens(const SpanVocabulary& vocabulary) {
  const auto fault = [](const char* key, int32_t id, const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.special_tokens.", key, " is ", id, ", ", what));
  };
  const int32_t last = vocabulary.first_sentinel - vocabulary.sentinels + 1;
  if (vocabulary.sentinels < 1 || last < 0) {
    return fault(
        "sentinels", vocabulary.sentinels,
        absl::StrCat("expected from 1 to first_sentinel + 1 = ", vocabulary.first_sentinel + 1));
  }
  for (const auto& [key, id] : {std::pair("pad", vocabulary.pad), std::pair("eos", vocabulary.eos),
                                std::pair("first_sentinel", vocabulary.first_sentinel)}) {
    if (id >= 0 && id < vocabulary.vocab_size) continue;
    return fault(key, id,
                 absl::StrCat("outside the vocabulary of ", vocabulary.vocab_size,
                              "; use an id of the vocabulary, or leave model.vocab_size out"));
  }
  for (const auto& [key, id] :
       {std::pair("pad", vocabulary.pad), std::pair("eos", vocabulary.eos)}) {
    if (id < last || id > vocabulary.first_sentinel) continue;
    return fault(key, id,
                 absl::StrCat("one of the sentinels ", last, " to ", vocabulary.first_sentinel,
                              "; name another id, or fewer sentinels"));
  }
  if (vocabulary.pad != vocabulary.eos) return absl::OkStatus();
  return fault("pad", vocabulary.pad, "which is also eos; name two ids");
}

}  // namespace

absl::StatusOr<SpanVocabulary> SpanVocabularyOf(
    const v1::DataSpec& data, const std::optional<tokenizer::Tokenizer>& tokenizer, int32_t given,
    int32_t highest) {
  SpanVocabulary out;
  out.data_ids = tokenizer ? tokenizer->vocab_size() : highest + 1;
  // What the job says counts before the tokenizer, so that a wrong guess by name can be corrected.
  if (data.has_special_tokens()) {
    const v1::SpecialTokens& special = data.special_tokens();
    out.vocab_size =
        !tokenizer && given > 0 ? given : std::max(out.data_ids, HighestSpecialToken(data) + 1);
    out.data_ids = out.vocab_size;
    out.pad = special.pad();
    out.eos = special.eos();
    out.first_sentinel = special.first_sentinel();
    out.sentinels = special.sentinels();
    TERCIO_RETURN_IF_ERROR(CheckSpecialTokens(out));
    return out;
  }
  if (!tokenizer && given > 0) {
    // The size of a job that ran before has its special tokens, and they must not move.
    if (given <= kAddedTokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model.vocab_size is ", given, ", of which ", kAddedTokens, " ids are special tokens; ",
          "make it larger, leave it out, or name data.special_tokens"));
    }
    out.data_ids = given - kAddedTokens;
  }
  out.vocab_size = out.data_ids;
  bool has_ends = false;
  if (tokenizer) {
    has_ends = tokenizer->pad().has_value() && tokenizer->end_of_text().has_value() &&
               tokenizer->pad() != tokenizer->end_of_text();
    if (has_ends) {
      out.pad = *tokenizer->pad();
      out.eos = *tokenizer->end_of_text();
    }
    FindSentinels(*tokenizer, &out);
  }
  PlaceMissing(has_ends, &out);
  return out;
}

absl::StatusOr<SpanRules> SpanRulesOf(const v1::DataSpec& data, const v1::ModelSpec& model,
                                      const SpanVocabulary& vocabulary) {
  SpanRules rules;
  TERCIO_ASSIGN_OR_RETURN(rules.lengths, plan::SpanLengthsOf(model.context(), data.masking()));
  if (model.decoder_context() != rules.lengths.targets) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.decoder_context is ", model.decoder_context(), ", but samples of ",
                     model.context(), " tokens (model.context) have ", rules.lengths.targets,
                     " in the decoder; use that number, or leave the key out"));
  }
  if (rules.lengths.spans > vocabulary.sentinels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.masking: a sample of ", model.context(), " tokens (model.context) has ",
        rules.lengths.spans, " spans, but there are only ", vocabulary.sentinels,
        " sentinels; use a larger data.masking.mean_span, a lower data.masking.probability, a ",
        "shorter model.context, or name more in data.special_tokens.sentinels"));
  }
  rules.pad = vocabulary.pad;
  rules.eos = vocabulary.eos;
  rules.first_sentinel = vocabulary.first_sentinel;
  return rules;
}

std::string Describe(const SpanRules& rules) {
  return nlohmann::json{{"spans", {rules.lengths.raw, rules.lengths.noise, rules.lengths.spans}},
                        {"special", {rules.pad, rules.eos, rules.first_sentinel}}}
      .dump();
}

}  // namespace tercio::data
