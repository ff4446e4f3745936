#include "worker/trainer/initial_weights.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/weight_source.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"
#include "worker/engine/state_slices.h"

namespace tercio::trainer {
namespace {

class InitialWeights : public StateSource {
 public:
  InitialWeights(const v1::ModelSpec& model, std::unique_ptr<checkpoint::WeightSource> weights)
      : model_(model), weights_(std::move(weights)) {}

  bool IsOfModel() const override { return true; }
  bool Wants(const v1::TensorSlice& slice) const override {
    // Only weights are taken over: moments and counters start at zero.
    return !absl::StartsWith(slice.tensor(), "adamw.") &&
           !absl::StartsWith(slice.tensor(), plan::kBasePrefix) &&
           !engine::IsOptionalState(slice.tensor());
  }
  bool MayLack(const v1::TensorSlice& slice) const override {
    // A bert that changes its task begins with a head of its own.
    return plan::BelongsToTask(model_, slice.tensor());
  }
  absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values, const Arrived& arrived,
                    Check*) override {
    TERCIO_RETURN_IF_ERROR(checkpoint::ReadSliceFor(*weights_, slice, values.data()));
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    bytes_read_ += bytes;
    arrived(bytes);
    return absl::OkStatus();
  }
  // Their size in memory: files of half precision have fewer.
  int64_t bytes_read() const override { return bytes_read_; }

 private:
  const v1::ModelSpec model_;
  const std::unique_ptr<checkpoint::WeightSource> weights_;
  // One thread reads the values, another asks how many there were.
  std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace

namespace {

// `what`: for messages. Errors of a model that is not the source's.
absl::StatusOr<std::shared_ptr<StateSource>> WeightsFor(
    const v1::ModelSpec& model, const std::string& what,
    std::unique_ptr<checkpoint::WeightSource> weights) {
  if (absl::Status same = checkpoint::CheckStartsFrom(model, weights->model()); !same.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::string(same.message())));
  }
  return std::make_shared<InitialWeights>(model, std::move(weights));
}

}  // namespace

absl::StatusOr<std::shared_ptr<StateSource>> OpenInitialWeights(const v1::ModelSpec& model) {
  // The agent read every byte before it started this rank.
  TERCIO_ASSIGN_OR_RETURN(auto weights,
                          checkpoint::OpenInitialSource(model, checkpoint::DigestCheck::kNone));
  return WeightsFor(model, absl::StrCat("model.from ", model.from()), std::move(weights));
}

absl::Status LoadTeacherWeights(const v1::DistillationSpec& spec, const LoadGroup& group,
                                const LoadedBytes& loaded, engine::LoadTarget* teacher) {
  if (teacher == nullptr) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(
      auto weights, checkpoint::OpenWeightSource(spec.teacher(), checkpoint::DigestCheck::kNone));
  TERCIO_ASSIGN_OR_RETURN(
      const auto source,
      WeightsFor(spec.model(), absl::StrCat("training.distillation.teacher ", spec.teacher()),
                 std::move(weights)));
  return LoadState(source, group, loaded, *teacher);
}

}  // namespace tercio::trainer
