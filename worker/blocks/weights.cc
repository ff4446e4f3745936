#include "worker/blocks/weights.h"

#include <algorithm>
#include <string_view>

namespace tercio::blocks {

WeightRef WeightFinder::FindUse(const std::string& name) const {
  for (const plan::StageTensor& entry : tensors_.tensors) {
    if (entry.use != name) continue;
    return {entry.parameter_offset, entry.gradient_offset, entry.elements, entry.frozen};
  }
  for (size_t i = 0; i < tensors_.quantized.size(); ++i) {
    const plan::QuantizedTensor& entry = tensors_.quantized[i];
    if (entry.tensor.name != name) continue;
    WeightRef weight;
    weight.elements = entry.elements();
    weight.frozen = true;
    weight.quantized = static_cast<int>(i);
    weight.quantized_count = 1;
    return weight;
  }
  return {};
}

WeightRef WeightFinder::Find(const std::string& name) const { return FindUse(prefix_ + name); }

bool WeightFinder::FindsGradient(const std::string& name) const {
  const std::string whole = prefix_ + name;
  return std::any_of(tensors_.tensors.begin(), tensors_.tensors.end(),
                     [&](const plan::StageTensor& entry) {
                       const std::string_view use = entry.use;
                       return !entry.frozen && use.starts_with(whole) &&
                              (use.size() == whole.size() || use[whole.size()] == '.');
                     });
}

WeightRef WeightFinder::Joined(std::initializer_list<const char*> names) const {
  WeightRef joined;
  for (const char* name : names) {
    const WeightRef part = Find(name);
    if (joined.elements == 0) {
      joined = part;
    } else {
      joined.elements += part.elements;
      joined.quantized_count += part.quantized_count;
    }
  }
  return joined;
}

WeightRef WeightFinder::TokenTable() const { return FindUse(model::kTokenTable); }

WeightRef WeightFinder::HeadMatrix() const { return FindUse(plan::kHeadMatrix); }

}  // namespace tercio::blocks
