#include "worker/trainer/samples_of_rank.h"

#include <utility>

#include "checkpoint/logits/reader.h"
#include "common/status_macros.h"
#include "data/sample_sources.h"
#include "plan/memory_map.h"
#include "plan/token_buffers.h"

namespace tercio::trainer {
namespace {

class SamplesWithLogits : public data::SampleSource {
 public:
  SamplesWithLogits(std::unique_ptr<data::SampleSource> samples,
                    std::unique_ptr<const checkpoint::StoredLogits> logits)
      : samples_(std::move(samples)), logits_(std::move(logits)) {}

  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    samples_->TrainingSample(step, sequence, out);
    AddLogits(out);
  }
  int64_t held_out_samples(data::HeldOut set) const override {
    return samples_->held_out_samples(set);
  }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    samples_->HeldOutSample(set, index, out);
    AddLogits(out);
  }
  int64_t numbered_samples() const override { return samples_->numbered_samples(); }
  void NumberedSample(int64_t number, data::Sample* out) override {
    samples_->NumberedSample(number, out);
    AddLogits(out);
  }

 private:
  void AddLogits(data::Sample* out) const {
    logits_->Read(out->number, &out->teacher_ids, &out->teacher_logits);
  }

  const std::unique_ptr<data::SampleSource> samples_;
  const std::unique_ptr<const checkpoint::StoredLogits> logits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<data::SampleSource>> WithStoredLogits(
    std::unique_ptr<data::SampleSource> samples, const std::string& directory) {
  TERCIO_ASSIGN_OR_RETURN(
      auto logits, checkpoint::StoredLogits::Open(directory, checkpoint::DigestCheck::kNone));
  return std::make_unique<SamplesWithLogits>(std::move(samples), std::move(logits));
}

absl::StatusOr<std::unique_ptr<data::SampleSource>> MakeSamplesOfRank(
    data::PreparedData data, const v1::TrainerAssignment& assignment) {
  const v1::JobSpec& job = assignment.spec();
  std::unique_ptr<data::SampleSource> samples = data::MakeSampleSource(std::move(data), job);
  if (!plan::ReadsStoredLogits(job.training())) return samples;
  const v1::RankPlan& plan = assignment.plan();
  const plan::StageShape shape =
      plan::ShapeOfStage(job, plan.layout(), plan.placement().pipeline_index());
  if (!shape.last) return samples;
  return WithStoredLogits(std::move(samples), job.training().distillation().logits());
}

}  // namespace tercio::trainer
