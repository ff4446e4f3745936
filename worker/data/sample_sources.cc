#include "worker/data/sample_sources.h"

#include <utility>

#include "worker/data/bert_rules.h"

namespace tercio::data {
namespace {

// Place of a sequence in the run.
int64_t PositionOf(int64_t step, int64_t sequence, int64_t global_batch) {
  return (step - 1) * global_batch + sequence;
}

class CausalSamples : public CausalSource {
 public:
  CausalSamples(PreparedData data, const v1::JobSpec& spec)
      : data_(std::move(data)),
        seed_(spec.training().seed()),
        global_batch_(spec.training().global_batch()),
        context_(spec.model().context()),
        validation_samples_(data_.validation.Samples(context_)) {}

  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    data_.train.ReadShuffled(seed_, PositionOf(step, sequence, global_batch_), context_, out);
  }
  int64_t validation_samples() const override { return validation_samples_; }
  void ReadValidation(int64_t index, int32_t* out) override {
    data_.validation.ReadInOrder(index, context_, out);
  }

 private:
  PreparedData data_;
  uint64_t seed_;
  int64_t global_batch_;
  int64_t context_;
  int64_t validation_samples_;
};

class BertSamples : public SampleSource {
 public:
  BertSamples(PreparedData data, const v1::JobSpec& spec)
      : data_(std::move(data)),
        seed_(spec.training().seed()),
        global_batch_(spec.training().global_batch()),
        validation_samples_(data_.validation_samples.samples()) {}

  void TrainingSample(int64_t step, int64_t sequence, Sample* out) override {
    data_.train_samples.ReadShuffled(seed_, PositionOf(step, sequence, global_batch_), out);
  }
  int64_t validation_samples() const override { return validation_samples_; }
  void ValidationSample(int64_t index, Sample* out) override {
    data_.validation_samples.ReadInOrder(index, out);
  }

 private:
  PreparedData data_;
  uint64_t seed_;
  int64_t global_batch_;
  int64_t validation_samples_;
};

}  // namespace

std::unique_ptr<SampleSource> MakeSampleSource(PreparedData data, const v1::JobSpec& spec) {
  if (ObjectiveOf(spec.model()) == Objective::kCausal) {
    return std::make_unique<CausalSamples>(std::move(data), spec);
  }
  return std::make_unique<BertSamples>(std::move(data), spec);
}

}  // namespace tercio::data
