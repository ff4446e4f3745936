#include "plan/tensor_policy.h"

#include <algorithm>
#include <string>

namespace tercio::plan {

TensorPolicy PolicyOf(const LogicalTensor& tensor, const v1::TrainingSpec& training) {
  const auto named = [&](const auto& patterns) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return MatchesPattern(tensor.name, pattern);
    });
  };
  TensorPolicy policy;
  // The job's patterns only take decay away: norms and biases never have any.
  policy.weight_decay = tensor.weight_decay && !named(training.optimizer().no_decay());
  policy.frozen = tensor.below_adapters || named(training.frozen());
  return policy;
}

bool FreezesAnything(const v1::JobSpec& job) {
  return job.model().has_adapter() || !job.training().frozen().empty();
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
