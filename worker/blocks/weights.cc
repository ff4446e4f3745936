#include "worker/blocks/weights.h"

namespace tercio::blocks {

WeightRef WeightFinder::FindInRole(const std::string& name, plan::TensorRole role) const {
  for (const plan::StageTensor& entry : tensors_.tensors) {
    if (entry.tensor.name == name && entry.role == role) {
      return {entry.parameter_offset, entry.gradient_offset, entry.elements};
    }
  }
  return {};
}

WeightRef WeightFinder::Find(const std::string& name) const {
  return FindInRole(prefix_ + name, plan::TensorRole::kPlain);
}

WeightRef WeightFinder::Joined(std::initializer_list<const char*> names) const {
  WeightRef joined;
  for (const char* name : names) {
    const WeightRef part = Find(name);
    if (joined.elements == 0) {
      joined = part;
    } else {
      joined.elements += part.elements;
    }
  }
  return joined;
}

WeightRef WeightFinder::TokenTable() const {
  // Where nothing else reads the table it is a tensor like any other.
  const WeightRef shared = FindInRole(model::kTokenTable, plan::TensorRole::kLookup);
  return shared.elements > 0 ? shared : FindInRole(model::kTokenTable, plan::TensorRole::kPlain);
}

WeightRef WeightFinder::HeadMatrix() const {
  const WeightRef tied = FindInRole(model::kTokenTable, plan::TensorRole::kHead);
  return tied.elements > 0 ? tied : Find("head.weight");
}

}  // namespace tercio::blocks
