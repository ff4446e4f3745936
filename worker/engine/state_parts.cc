#include "worker/engine/state_parts.h"

#include "common/check.h"
#include "plan/fp8.h"
#include "plan/precision.h"
#include "worker/engine/spikes.h"

namespace tercio::engine {
namespace {

// All ranks have judged by the same numbers, so one of them speaks for all.
bool IsFirstOfJob(const v1::RankPlan& plan) {
  const v1::RankPlacement& at = plan.placement();
  return at.pipeline_index() == 0 && at.tensor_index() == 0 && at.data_index() == 0;
}

class GuardPart : public StatePart {
 public:
  GuardPart(const v1::RankPlan& plan, StepGuard& guard) : plan_(plan), guard_(guard) {}
  std::string tensor() const override { return kGuardTensor; }
  std::vector<int64_t> shape() const override { return {plan::kGuardStateElements}; }
  bool IsSaved() const override { return IsFirstOfJob(plan_); }
  std::vector<float> Values() const override {
    const StepGuard::State values = guard_.state();
    return {values.begin(), values.end()};
  }
  absl::Status Restore(absl::Span<const float> values) override { return guard_.Restore(values); }

 private:
  const v1::RankPlan& plan_;
  StepGuard& guard_;
};

class SpikesPart : public StatePart {
 public:
  SpikesPart(const v1::RankPlan& plan, StepGuard& guard) : plan_(plan), guard_(guard) {}
  std::string tensor() const override { return kSpikeTensor; }
  std::vector<int64_t> shape() const override { return {plan::kSpikeStateElements}; }
  bool IsSaved() const override { return IsFirstOfJob(plan_); }
  std::vector<float> Values() const override { return guard_.spikes().state(); }
  absl::Status Restore(absl::Span<const float> values) override {
    return guard_.spikes().Restore(values);
  }

 private:
  const v1::RankPlan& plan_;
  StepGuard& guard_;
};

// The history of the scales of one layer of the stage.
class Fp8Part : public StatePart {
 public:
  Fp8Part(const v1::RankPlan& plan, int layer, blocks::Fp8Scaling& scaling)
      : plan_(plan), layer_(layer), scaling_(scaling) {}
  std::string tensor() const override { return blocks::Fp8Tensor(plan_.stage().layers(layer_)); }
  std::vector<int64_t> shape() const override {
    return {plan::kFp8SlotsOfLayer, plan::kFp8History};
  }
  // The ranks of a stage share their scales, but each stage has other layers.
  bool IsSaved() const override {
    return plan_.placement().tensor_index() == 0 && plan_.placement().data_index() == 0;
  }
  std::vector<float> Values() const override {
    const absl::Span<const float> values = scaling_.state(layer_);
    return {values.begin(), values.end()};
  }
  absl::Status Restore(absl::Span<const float> values) override {
    return scaling_.Restore(layer_, values);
  }

 private:
  const v1::RankPlan& plan_;
  const int layer_;
  blocks::Fp8Scaling& scaling_;
};

}  // namespace

v1::TensorSlice StatePart::Slice() const {
  v1::TensorSlice slice;
  slice.set_tensor(tensor());
  int64_t elements = 1;
  for (const int64_t extent : shape()) {
    slice.add_shape(extent);
    elements *= extent;
  }
  slice.set_row_end(shape().front());
  slice.set_column_end(elements / shape().front());
  slice.set_dtype("F32");
  return slice;
}

absl::Status StatePart::RestorePiece(int64_t first, absl::Span<const float> values) {
  TERCIO_CHECK_EQ(first, 0);
  return Restore(values);
}

std::vector<std::unique_ptr<StatePart>> StatePartsOf(const v1::JobSpec& job,
                                                     const v1::RankPlan& plan, StepGuard& guard,
                                                     blocks::Fp8Scaling& scaling) {
  std::vector<std::unique_ptr<StatePart>> parts;
  if (plan::MaySkipSteps(job)) parts.push_back(std::make_unique<GuardPart>(plan, guard));
  if (plan::ActsOnSpikes(job)) parts.push_back(std::make_unique<SpikesPart>(plan, guard));
  if (!plan::HasFp8(job)) return parts;
  for (int layer = 0; layer < plan.stage().layers_size(); ++layer) {
    parts.push_back(std::make_unique<Fp8Part>(plan, layer, scaling));
  }
  return parts;
}

}  // namespace tercio::engine
