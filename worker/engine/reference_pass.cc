#include "worker/engine/reference_pass.h"

#include <algorithm>

#include "common/status_macros.h"
#include "plan/preference.h"

namespace tercio::engine {

std::vector<int64_t> NumbersToScore(const v1::JobSpec& spec, data::SampleSource& source,
                                    int64_t after_step) {
  const auto numbered = static_cast<size_t>(source.numbered_samples());
  const v1::TrainingSpec& training = spec.training();
  std::vector<bool> wanted(numbered, false);
  size_t count = 0;
  data::Sample sample(spec.model().context());
  const auto want = [&] {
    const auto number = static_cast<size_t>(sample.number);
    count += wanted[number] ? 0 : 1;
    wanted[number] = true;
  };
  for (const data::HeldOut set : {data::HeldOut::kValidation, data::HeldOut::kTest}) {
    for (int64_t i = 0; i < source.held_out_samples(set); ++i) {
      source.HeldOutSample(set, i, &sample);
      want();
    }
  }
  for (int64_t step = after_step + 1; step <= training.steps() && count < numbered; ++step) {
    for (int64_t i = 0; i < training.global_batch(); ++i) {
      source.TrainingSample(step, i, &sample);
      want();
    }
  }
  std::vector<int64_t> numbers;
  for (const size_t offset : {size_t{0}, numbered}) {
    // Only the divergence reads prompts with the answers of others.
    if (offset > 0 && !plan::HasDivergence(training)) break;
    for (size_t i = 0; i < numbered; ++i) {
      if (wanted[i]) numbers.push_back(static_cast<int64_t>(offset + i));
    }
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> ReferencesOf(const v1::JobSpec& spec,
                                                 data::SampleSource& source, int64_t after_step,
                                                 RankBatch& batch, HeldOutEvaluation& evaluation) {
  const std::vector<int64_t> numbers = NumbersToScore(spec, source, after_step);
  std::vector<double> references(static_cast<size_t>(2 * source.numbered_samples()), 0);
  batch.SetReferences(nullptr);
  const auto size = static_cast<size_t>(spec.training().global_batch());
  for (size_t first = 0; first < numbers.size(); first += size) {
    // Sequences that fill up the last batch are scored and not used.
    const size_t count = std::min(size, numbers.size() - first);
    TERCIO_RETURN_IF_ERROR(evaluation.Score("reference", [&](int64_t i, data::Sample* out) {
      const auto at = static_cast<size_t>(i);
      source.NumberedSample(numbers[first + (at < count ? at : 0)], out);
    }));
    const std::vector<plan::Answer> answers =
        batch.exchange().KnownAnswers(static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) {
      references[static_cast<size_t>(numbers[first + i])] = answers[i].log_probability;
    }
  }
  return references;
}

}  // namespace tercio::engine
