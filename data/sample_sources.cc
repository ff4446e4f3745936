#include "data/sample_sources.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/check.h"
#include "data/objective.h"
#include "plan/data_position.h"

namespace tercio::data {
namespace {

// The numbers of samples, data set after data set.
class SampleNumbers {
 public:
  // `samples`: of each data set.
  explicit SampleNumbers(const std::vector<int64_t>& samples) : ends_(samples) {
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t FirstOf(size_t dataset) const { return dataset == 0 ? 0 : ends_[dataset - 1]; }
  // REQUIRES: 0 <= number < count(). No data set is empty, so that the end decides.
  size_t DatasetOf(int64_t number) const {
    TERCIO_CHECK(number >= 0 && number < count());
    return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), number) -
                               ends_.begin());
  }

 private:
  std::vector<int64_t> ends_;
};

// Reading keeps no state, so that any number of engines may share one source.
class CausalSamples : public CausalSource {
 public:
  CausalSamples(PreparedData data, const v1::JobSpec& spec)
      // These members are copied, since the job's message may die before the source.
      : data_(std::move(data)),
        training_(spec.training()),
        context_(spec.model().context()),
        numbers_(data_.numbered),
        // The numbers are computed once, as the blends are searched for them.
        validation_samples_(data_.validation.Samples(context_)),
        test_samples_(data_.test.Samples(context_)) {}

  void TrainingSample(int64_t step, int64_t sequence, Sample* out) override {
    Read(data_.train, 0, PlaceOfTraining(step, sequence), out);
  }
  void HeldOutSample(HeldOut set, int64_t index, Sample* out) override {
    const BlendedDataset& data = DataOf(set);
    Read(data, FirstDatasetOf(set), data.PlaceInOrder(index), out);
  }
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    data_.train.Read(PlaceOfTraining(step, sequence), context_, out);
  }
  int64_t held_out_samples(HeldOut set) const override {
    return set == HeldOut::kTest ? test_samples_ : validation_samples_;
  }
  void ReadHeldOut(HeldOut set, int64_t index, int32_t* out) override {
    DataOf(set).ReadInOrder(index, context_, out);
  }
  int64_t numbered_samples() const override { return numbers_.count(); }
  void NumberedSample(int64_t number, Sample* out) override {
    const size_t dataset = numbers_.DatasetOf(number);
    const int64_t sample = number - numbers_.FirstOf(dataset);
    size_t first = 0;
    for (const BlendedDataset* data : {&data_.train, &data_.validation, &data_.test}) {
      const size_t end = first + data->datasets().size();
      if (dataset < end) return Read(*data, first, {dataset - first, sample}, out);
      first = end;
    }
  }

 private:
  // The position depends on step and sequence alone, so a resumed run reads what it would have
  // read.
  BlendedDataset::Place PlaceOfTraining(int64_t step, int64_t sequence) const {
    return data_.train.PlaceShuffled(training_.seed(),
                                     plan::FirstSampleOfStep(training_, step) + sequence, context_);
  }
  const BlendedDataset& DataOf(HeldOut set) const {
    return set == HeldOut::kTest ? data_.test : data_.validation;
  }
  // Training data has the first numbers, the test the last.
  size_t FirstDatasetOf(HeldOut set) const {
    const size_t training = data_.train.datasets().size();
    return set == HeldOut::kTest ? training + data_.validation.datasets().size() : training;
  }
  void Read(const BlendedDataset& data, size_t first_dataset, BlendedDataset::Place place,
            Sample* out) const {
    data.Read(place, context_, RoomFor(out));
    Split(out);
    out->number = numbers_.FirstOf(first_dataset + place.dataset) + place.sample;
  }

  PreparedData data_;
  const v1::TrainingSpec training_;
  int64_t context_;
  SampleNumbers numbers_;
  int64_t validation_samples_;
  int64_t test_samples_;
};

class RuledSamples : public SampleSource {
 public:
  RuledSamples(PreparedData data, const v1::JobSpec& spec)
      : data_(std::move(data)),
        training_(spec.training()),
        numbers_(data_.numbered),
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
  int64_t numbered_samples() const override { return numbers_.count(); }
  void NumberedSample(int64_t number, Sample* out) override {
    const int64_t of_sample = number % numbered_samples();
    const size_t dataset = numbers_.DatasetOf(of_sample);
    const int64_t sample = of_sample - numbers_.FirstOf(dataset);
    if (!data_.chats.empty()) return data_.chats[dataset]->Read(sample, kValidationKey, out);
    const PreferenceDataset& answers = *data_.preferences[dataset];
    if (number == of_sample) return answers.Read(sample, kValidationKey, out);
    answers.ReadMismatched(sample, out);
    out->number = number;
  }

 private:
  PreparedData data_;
  const v1::TrainingSpec training_;
  SampleNumbers numbers_;
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
