#include "plan/planner/largest.h"

#include <algorithm>

#include "plan/limits.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/offload.h"

namespace tercio::plan {
namespace {

// `value` * `numerator` / `denominator`, rounded to the nearest positive multiple of `unit`.
int64_t Scaled(int64_t value, int64_t numerator, int64_t denominator, int64_t unit) {
  const int64_t divisor = denominator * unit;
  return std::max<int64_t>(1, (value * numerator + divisor / 2) / divisor) * unit;
}

int64_t MemoryOfRanks(const v1::JobSpec& job, const v1::Layout& layout, int threads) {
  int64_t most = 0;
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    most = std::max(most, MemoryOfStage(job, layout, stage, threads).total_bytes());
  }
  return most;
}

// The least number for which `fits` is false. REQUIRES: fits(0), and once false it stays false.
template <typename Fits>
int64_t FirstThatDoesNotFit(const Fits& fits) {
  int64_t beyond = 1;
  while (fits(beyond)) beyond *= 2;
  int64_t fitting = beyond / 2;
  while (beyond - fitting > 1) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return beyond;
}

}  // namespace

std::optional<v1::JobSpec> FamilyMember(const v1::JobSpec& job, const v1::Layout& layout,
                                        int64_t number) {
  const v1::ModelSpec& model = job.model();
  const int64_t key_heads = model.kv_heads() > 0 ? model.kv_heads() : model.heads();
  // Tensor ranks hold whole key heads, each with all of its queries.
  const int64_t step = layout.tensor() * (model.heads() / key_heads);
  const int64_t head_size = model.hidden() / model.heads();
  // Checked first, so that no product below leaves its integer.
  if (number > kMostHidden / (step * head_size)) return std::nullopt;
  const int64_t hidden = number * step * head_size;
  const int64_t unit = int64_t{layout.pipeline()} * std::max(1, layout.virtual_pipeline());
  const int64_t layers = Scaled(hidden, model.layers(), model.hidden(), unit);
  const int64_t ffn = Scaled(hidden, model.ffn_hidden(), model.hidden(), layout.tensor());
  if (layers > kMostLayers || ffn > kMostFfn) return std::nullopt;
  v1::JobSpec member = job;
  v1::ModelSpec* grown = member.mutable_model();
  grown->set_hidden(static_cast<int32_t>(hidden));
  grown->set_heads(static_cast<int32_t>(number * step));
  grown->set_kv_heads(static_cast<int32_t>(number * layout.tensor()));
  grown->set_layers(static_cast<int32_t>(layers));
  grown->set_ffn_hidden(static_cast<int32_t>(ffn));
  if (!CheckSizes(member).ok()) return std::nullopt;
  return member;
}

std::optional<LargestModel> LargestModelThatFits(const v1::JobSpec& job, v1::Layout layout,
                                                 int threads, int64_t memory_bytes) {
  // A model of another size has other numbers of layers.
  layout.clear_stage_layers();
  // The planner would take more where the model needs it.
  if (ChoosesOffloadShare(job)) layout.set_offload_share(kWholeShare);
  const auto fits = [&](int64_t number) {
    if (number == 0) return true;
    const std::optional<v1::JobSpec> member = FamilyMember(job, layout, number);
    return member.has_value() && MemoryOfRanks(*member, layout, threads) <= memory_bytes;
  };
  const int64_t number = FirstThatDoesNotFit(fits) - 1;
  if (number == 0) return std::nullopt;
  const v1::JobSpec largest = *FamilyMember(job, layout, number);
  return LargestModel{largest.model().layers(), largest.model().hidden(),
                      ParameterCount(largest.model()), MemoryOfRanks(largest, layout, threads)};
}

}  // namespace tercio::plan
