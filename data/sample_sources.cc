#include "data/sample_sources.h"

#include <algorithm>
#include <utility>

#include "data/objective.h"
#include "plan/data_position.h"

namespace tercio::data {
namespace {

// Reading keeps no state, so that any number of engines may share one source.
class CausalSamples : public CausalSource {
 public:
  CausalSamples(PreparedData data, const v1::JobSpec& spec)
      // These members are copied, since the job's message may die before the source.
      : data_(std::move(data)),
        training_(spec.training()),
        context_(spec.model().context()),
        // The numbers are computed once, as the blends are searched for them.
        validation_samples_(data_.validation.Samples(context_)),
        test_samples_(data_.test.Samples(context_)) {}

  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    // The position depends on step and sequence alone, so a resumed run reads what it would have
    // read.
    data_.train.ReadShuffled(training_.seed(), plan::FirstSampleOfStep(training_, step) + sequence,
                             context_, out);
  }
  int64_t held_out_samples(HeldOut set) const override {
    return set == HeldOut::kTest ? test_samples_ : validation_samples_;
  }
  void ReadHeldOut(HeldOut set, int64_t index, int32_t* out) override {
    (set == HeldOut::kTest ? data_.test : data_.validation).ReadInOrder(index, context_, out);
  }

 private:
  PreparedData data_;
  const v1::TrainingSpec training_;
  int64_t context_;
  int64_t validation_samples_;
  int64_t test_samples_;
};

class RuledSamples : public SampleSource {
 public:
  RuledSamples(PreparedData data, const v1::JobSpec& spec)
      : data_(std::move(data)),
        training_(spec.training()),
        validation_samples_(data_.validation_samples.samples()),
        test_samples_(data_.test_samples.samples()) {}

  void TrainingSample(int64_t step, int64_t sequence, Sample* out) override {
    data_.train_samples.ReadShuffled(training_.seed(),
                                     plan::FirstSampleOfStep(training_, step) + sequence, out);
  }
  int64_t held_out_samples(HeldOut set) const override {
    return set == HeldOut::kTest ? test_samples_ : validation_samples_;
  }
  void HeldOutSample(HeldOut set, int64_t index, Sample* out) override {
    (set == HeldOut::kTest ? data_.test_samples : data_.validation_samples).ReadInOrder(index, out);
  }
  int64_t numbered_samples() const override {
    if (data_.preferences.empty()) return 0;
    return data_.preferences.back()->first_number() + data_.preferences.back()->samples();
  }
  void NumberedSample(int64_t number, Sample* out) override {
    const int64_t numbered = numbered_samples();
    const int64_t of_sample = number % numbered;
    const auto after = std::upper_bound(
        data_.preferences.begin(), data_.preferences.end(), of_sample,
        [](int64_t value, const auto& dataset) { return value < dataset->first_number(); });
    const PreferenceDataset& dataset = **(after - 1);
    const int64_t sample = of_sample - dataset.first_number();
    if (number == of_sample) return dataset.Read(sample, kValidationKey, out);
    dataset.ReadMismatched(sample, out);
    out->number = number;
  }

 private:
  PreparedData data_;
  const v1::TrainingSpec training_;
  int64_t validation_samples_;
  int64_t test_samples_;
};

}  // namespace

std::unique_ptr<SampleSource> MakeSampleSource(PreparedData data, const v1::JobSpec& spec) {
  // Causal samples are cut from tokens without special tokens, all others are made by rules.
  if (ObjectiveOf(spec.data(), spec.model()) == Objective::kCausal) {
    return std::make_unique<CausalSamples>(std::move(data), spec);
  }
  return std::make_unique<RuledSamples>(std::move(data), spec);
}

}  // namespace tercio::data
