#include "data/objective.h"

#include <algorithm>

#include "model/architecture.h"

namespace tercio::data {

Objective ObjectiveOf(const v1::DataSpec& data, const v1::ModelSpec& model) {
  if (data.chat().answers() != v1::ANSWER_FORM_UNSPECIFIED) return Objective::kAnswers;
  if (data.has_chat()) return Objective::kChat;
  const model::Architecture architecture = model::ArchitectureOf(model);
  // A decoder is causal, too, but has an encoder's sequence beside its own.
  if (architecture.streams.size() > 1) return Objective::kSpans;
  if (architecture.causal) return Objective::kCausal;
  return architecture.head.masked.has_value() ? Objective::kMasked : Objective::kLabelled;
}

int32_t HighestSpecialToken(const v1::DataSpec& data) {
  // Without a tokenizer the vocabulary is found from the data, which may lack the special tokens.
  if (!data.has_special_tokens()) return -1;
  const v1::SpecialTokens& special = data.special_tokens();
  // Ids that the model does not have are 0.
  return std::max({special.cls(), special.sep(), special.mask(), special.pad(), special.eos(),
                   special.first_sentinel()});
}

}  // namespace tercio::data
