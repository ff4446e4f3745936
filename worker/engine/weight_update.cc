#include "worker/engine/weight_update.h"

#include <cmath>
#include <utility>

#include "common/status_macros.h"
#include "plan/program.h"
#include "plan/tensor_policy.h"

namespace tercio::engine {
namespace {

kernels::AdamWTensor Listed(const StateRange& range, const plan::TensorPolicy& policy,
                            const v1::OptimizerSpec& optimizer, const UpdateBuffers& buffers) {
  kernels::AdamWTensor tensor{};
  tensor.parameter = range.weights;
  tensor.gradient = buffers.gradients + range.part.sum_offset;
  tensor.m = range.first_moment;
  tensor.v = range.second_moment;
  tensor.count = range.part.elements();
  tensor.weight_decay = policy.weight_decay ? static_cast<float>(optimizer.weight_decay()) : 0.0f;
  if (buffers.rounded != nullptr) tensor.rounded = buffers.rounded + range.model_offset;
  return tensor;
}

}  // namespace

WeightUpdate::WeightUpdate(const v1::TrainingSpec& training, const plan::StageTensors& tensors,
                           const plan::RankShards& shards, const StateStore& store,
                           const UpdateBuffers& buffers, const Arena& arena)
    : optimizer_(training.optimizer()), is_paged_(store.IsOnDisk(arena)) {
  const std::vector<int> unit_of = plan::ProgramUnitsOf(shards.units);
  first_unit_ = unit_of.front();
  for (int unit = first_unit_; unit <= unit_of.back(); ++unit) {
    units_.push_back({{}, PagedUpdate(arena)});
  }
  for (size_t i = 0; i < shards.units.size(); ++i) {
    const plan::StateUnit& unit = shards.units[i];
    for (size_t t = unit.first_tensor; t < unit.first_tensor + unit.tensor_count; ++t) {
      const StateRange* const range = store.Find(t);
      if (range == nullptr || range->frozen || range->part.elements() == 0) continue;
      const plan::TensorPolicy policy = plan::PolicyOf(tensors.tensors[t].tensor, training);
      // It is a part of a matrix that is trained, and has gradients.
      if (policy.frozen) continue;
      UnitAt(unit_of[i]).list.push_back(Listed(*range, policy, optimizer_, buffers));
    }
  }
}

void WeightUpdate::Fetch(int unit) {
  if (is_paged_) UnitAt(unit).paged.ReadAhead(UnitAt(unit).list);
}

absl::Status WeightUpdate::Update(int unit, const UpdateNumbers& numbers, kernels::Ops& ops) {
  Unit& here = UnitAt(unit);
  if (here.list.empty()) return absl::OkStatus();
  kernels::AdamWArgs args{};
  args.learning_rate = static_cast<float>(numbers.learning_rate);
  args.beta1 = static_cast<float>(optimizer_.beta1());
  args.beta2 = static_cast<float>(optimizer_.beta2());
  args.eps = static_cast<float>(optimizer_.eps());
  // In fp32 this difference from 1 would lose bits in the first steps.
  args.bias_correction1 = 1.0 - std::pow(optimizer_.beta1(), static_cast<double>(numbers.step));
  args.bias_correction2 = 1.0 - std::pow(optimizer_.beta2(), static_cast<double>(numbers.step));
  // Clipping and the loss scale are one factor, so that gradients are read once.
  args.clip = static_cast<float>(numbers.gradient_factor);
  const auto update = [&](absl::Span<kernels::AdamWTensor> tensors_of_it) {
    args.tensors = tensors_of_it.data();
    args.tensor_count = static_cast<int64_t>(tensors_of_it.size());
    ops.AdamW(args);
  };
  if (is_paged_) return here.paged.Run(here.list, update);
  update(absl::MakeSpan(here.list));
  return absl::OkStatus();
}

absl::Status WeightUpdate::Verify() const {
  for (const Unit& unit : units_) TERCIO_RETURN_IF_ERROR(unit.paged.Verify());
  return absl::OkStatus();
}

void WeightUpdate::Forget() {
  for (Unit& unit : units_) unit.paged.Forget();
}

}  // namespace tercio::engine
