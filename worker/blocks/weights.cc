#include "worker/blocks/weights.h"

namespace tercio::blocks {

WeightRef WeightFinder::FindUse(const std::string& name) const {
  for (const plan::StageTensor& entry : tensors_.tensors) {
    if (entry.use == name) return {entry.parameter_offset, entry.gradient_offset, entry.elements};
  }
  return {};
}

WeightRef WeightFinder::Find(const std::string& name) const { return FindUse(prefix_ + name); }

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

WeightRef WeightFinder::TokenTable() const { return FindUse(model::kTokenTable); }

WeightRef WeightFinder::HeadMatrix() const { return FindUse(plan::kHeadMatrix); }

}  // namespace tercio::blocks
