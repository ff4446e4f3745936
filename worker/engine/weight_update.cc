#include "worker/engine/weight_update.h"

#include <cmath>
#include <vector>

#include "plan/tensor_policy.h"

namespace tercio::engine {

absl::Status UpdateStageWeights(const v1::TrainingSpec& training, const plan::StageTensors& tensors,
                                const StateStore& store, const UpdateBuffers& buffers,
                                const UpdateNumbers& numbers,
                                std::vector<kernels::AdamWTensor>& list, PagedUpdate* paged,
                                kernels::Ops& ops) {
  const v1::OptimizerSpec& optimizer = training.optimizer();
  list.clear();
  for (const StateRange& range : store.ranges()) {
    if (range.part.elements() == 0) continue;
    const plan::TensorPolicy policy =
        plan::PolicyOf(tensors.tensors[range.tensor].tensor, training);
    // Even with a zero gradient the update would let a frozen weight decay.
    if (policy.frozen) continue;
    kernels::AdamWTensor tensor{};
    tensor.parameter = range.weights;
    tensor.gradient = buffers.gradients + range.part.sum_offset;
    tensor.m = range.first_moment;
    tensor.v = range.second_moment;
    tensor.count = range.part.elements();
    tensor.weight_decay = policy.weight_decay ? static_cast<float>(optimizer.weight_decay()) : 0.0f;
    if (buffers.rounded != nullptr) tensor.rounded = buffers.rounded + range.model_offset;
    list.push_back(tensor);
  }
  kernels::AdamWArgs args{};
  args.learning_rate = static_cast<float>(numbers.learning_rate);
  args.beta1 = static_cast<float>(optimizer.beta1());
  args.beta2 = static_cast<float>(optimizer.beta2());
  args.eps = static_cast<float>(optimizer.eps());
  // In fp32 this difference from 1 would lose bits in the first steps.
  args.bias_correction1 = 1.0 - std::pow(optimizer.beta1(), static_cast<double>(numbers.step));
  args.bias_correction2 = 1.0 - std::pow(optimizer.beta2(), static_cast<double>(numbers.step));
  // Clipping and the loss scale are one factor, so that gradients are read once.
  args.clip = static_cast<float>(numbers.gradient_factor);
  const auto update = [&](absl::Span<kernels::AdamWTensor> tensors_of_it) {
    args.tensors = tensors_of_it.data();
    args.tensor_count = static_cast<int64_t>(tensors_of_it.size());
    ops.AdamW(args);
  };
  if (paged != nullptr) return paged->Run(list, update);
  update(absl::MakeSpan(list));
  return absl::OkStatus();
}

}  // namespace tercio::engine
