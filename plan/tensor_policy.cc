#include "plan/tensor_policy.h"

#include <algorithm>
#include <string>

namespace tercio::plan {

bool MatchesPattern(std::string_view name, std::string_view pattern) {
  // The position of the last star, and how much of the name it has matched.
  size_t star = std::string_view::npos;
  size_t taken = 0;
  size_t at = 0;
  size_t i = 0;
  // Going back to the last star is enough, since what earlier ones matched can stay as
  // it is: the time is bounded by both lengths multiplied, whatever the pattern.
  while (i < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      taken = i;
    } else if (at < pattern.size() && pattern[at] == name[i]) {
      ++at;
      ++i;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      i = ++taken;
    } else {
      return false;
    }
  }
  // Stars at the end match nothing.
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

TensorPolicy PolicyOf(const LogicalTensor& tensor, const v1::TrainingSpec& training) {
  const auto named = [&](const auto& patterns) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return MatchesPattern(tensor.name, pattern);
    });
  };
  TensorPolicy policy;
  // The job's patterns only take decay away: norms and biases never have any.
  policy.weight_decay = tensor.weight_decay && !named(training.optimizer().no_decay());
  policy.frozen = named(training.frozen());
  return policy;
}

bool MatchesAnyTensor(const v1::ModelSpec& model, std::string_view pattern) {
  // Names do not depend on the vocabulary, but the list of tensors wants one.
  v1::ModelSpec sized = model;
  sized.set_vocab_size(std::max(1, model.vocab_size()));
  const std::vector<LogicalTensor> tensors = ModelTensors(sized);
  return std::any_of(tensors.begin(), tensors.end(), [&](const LogicalTensor& tensor) {
    return MatchesPattern(tensor.name, pattern);
  });
}

}  // namespace tercio::plan
