#include "worker/engine/weight_update.h"

#include <cmath>
#include <vector>

#include "plan/tensor_policy.h"

namespace tercio::engine {

absl::Status UpdateStageWeights(const v1::TrainingSpec& training, const plan::StageTensors& tensors,
                                const plan::RankShards& shards, const StageState& state,
                                const UpdateNumbers& numbers,
                                std::vector<kernels::AdamWTensor>& list, PagedUpdate* paged,
                                kernels::Ops& ops) {
  const v1::OptimizerSpec& optimizer = training.optimizer();
  list.clear();
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    const plan::ShardPart& part = shards.own.part(i);
    // Further uses share the memory of the first one, which would be updated twice.
    if (!entry.own_parameter || part.elements() == 0) continue;
    const plan::TensorPolicy policy = plan::PolicyOf(entry.tensor, training);
    // Even with a zero gradient the update would let a frozen weight decay.
    if (policy.frozen) continue;
    kernels::AdamWTensor tensor{};
    const int64_t place = entry.parameter_offset + part.begin;  // in what the model reads
    tensor.parameter = state.parameters + (shards.divides_master ? part.state_offset : place);
    tensor.gradient = state.gradients + part.sum_offset;
    tensor.m = state.first_moments + part.state_offset;
    tensor.v = state.second_moments + part.state_offset;
    tensor.count = part.elements();
    tensor.weight_decay = policy.weight_decay ? static_cast<float>(optimizer.weight_decay()) : 0.0f;
    if (state.rounded != nullptr) tensor.rounded = state.rounded + place;
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
