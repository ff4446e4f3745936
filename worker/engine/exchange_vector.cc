#include "worker/engine/exchange_vector.h"

#include <algorithm>
#include <limits>

namespace tercio::engine {
namespace {

// Sums per sequence but for that of the divergence.
int OwnSums(const v1::JobSpec& spec) {
  return plan::SumsPerSequence(spec) - (plan::LearnsFromTeacher(spec.training()) ? 1 : 0);
}

}  // namespace

ExchangeVector::ExchangeVector(const v1::JobSpec& spec, const plan::StageShape& shape,
                               double* device)
    : global_batch_(spec.training().global_batch()),
      tokens_(shape.head_stream().tokens),
      sum_count_(plan::SumsPerSequence(spec) * global_batch_),
      counts_predictions_(OwnSums(spec) > static_cast<int>(Sum::kPredictions)),
      has_sequence_losses_(OwnSums(spec) > static_cast<int>(Sum::kSequenceLoss) &&
                           !plan::LearnsPreferences(spec.training())),
      predicts_tokens_(spec.model().labels() == 0),
      preferences_(plan::LearnsPreferences(spec.training()) ? std::optional(spec.training())
                                                            : std::nullopt),
      distillation_(plan::LearnsFromTeacher(spec.training())
                        ? std::optional(spec.training().distillation())
                        : std::nullopt),
      device_(device),
      known_(static_cast<size_t>(plan::ExchangedNumbers(spec))) {}

absl::Span<const double> ExchangeVector::KnownSums(Sum sum) const {
  return {known_.data() + (SumsOf(sum) - device_), static_cast<size_t>(global_batch_)};
}

std::vector<double> ExchangeVector::KnownLosses() const {
  const absl::Span<const double> tokens = KnownSums(Sum::kTokenLoss);
  std::vector<double> losses(tokens.begin(), tokens.end());
  for (size_t i = 0; has_sequence_losses_ && i < losses.size(); ++i) {
    losses[i] += KnownSums(Sum::kSequenceLoss)[i];
  }
  for (size_t i = 0; distillation_.has_value() && i < losses.size(); ++i) {
    losses[i] = plan::DistillationLoss(*distillation_, {losses[i], KnownSums(Sum::kDivergence)[i]});
  }
  return losses;
}

absl::Span<const double> ExchangeVector::KnownNotFinite() const {
  const absl::Span<const double> all = known_;
  // The last number is the signal.
  return all.subspan(static_cast<size_t>(NotFinite(0) - device_))
      .first(all.size() - static_cast<size_t>(NotFinite(0) - device_) - 1);
}

double ExchangeVector::KnownSquares() const {
  const absl::Span<const double> not_finite = KnownNotFinite();
  const bool finite =
      std::all_of(not_finite.begin(), not_finite.end(), [](double count) { return count == 0; });
  if (!finite) return std::numeric_limits<double>::quiet_NaN();
  return kernels::RoundedSum(known_.data() + (SquareLimbs() - device_));
}

std::vector<plan::Answer> ExchangeVector::KnownAnswers(int64_t sequences) const {
  std::vector<plan::Answer> answers(static_cast<size_t>(sequences));
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i] = {.log_probability = -KnownSums(Sum::kTokenLoss)[i],
                  .reference = KnownSums(Sum::kReference)[i],
                  .tokens = KnownSums(Sum::kPredictions)[i],
                  .desirable = KnownSums(Sum::kDesirable)[i] > 0};
  }
  return answers;
}

void ExchangeVector::AddTotals(int64_t sequences, Totals* totals) const {
  // Every rank adds in the order of sequences, so all of them know the same mean.
  const auto add = [&](Sum sum, double* total) {
    for (const double value : KnownSums(sum).first(static_cast<size_t>(sequences))) *total += value;
  };
  // Sequences that only fill up the last batch of an evaluation lie behind these.
  totals->sequences += sequences;
  if (predicts_tokens_) add(Sum::kTokenLoss, &totals->token_loss);
  if (counts_predictions_) {
    add(Sum::kPredictions, &totals->predictions);
  } else {
    totals->predictions += static_cast<double>(sequences * tokens_);
  }
  if (has_sequence_losses_) add(Sum::kSequenceLoss, &totals->sequence_loss);
  totals->distillation = distillation_;
  if (distillation_.has_value()) add(Sum::kDivergence, &totals->divergence);
  if (!preferences_.has_value()) return;
  if (!totals->preferences.has_value()) totals->preferences.emplace();
  totals->preferences->Add(*preferences_, KnownAnswers(sequences), divergence_);
}

plan::DistillationMeans ExchangeVector::Totals::MeansOfTokens() const {
  if (predictions == 0) return {};
  return {.cross_entropy = token_loss / predictions, .divergence = divergence / predictions};
}

std::optional<v1::ObjectiveFigures> ExchangeVector::Totals::Figures() const {
  if (preferences.has_value()) return preferences->Figures();
  if (!distillation.has_value()) return std::nullopt;
  const plan::DistillationMeans means = MeansOfTokens();
  v1::ObjectiveFigures figures;
  figures.set_teacher_divergence(means.divergence);
  figures.set_cross_entropy(means.cross_entropy);
  return figures;
}

double ExchangeVector::MeanLoss(const Totals& totals) {
  if (totals.preferences.has_value()) return totals.preferences->MeanLoss();
  if (totals.distillation.has_value()) {
    return plan::DistillationLoss(*totals.distillation, totals.MeansOfTokens());
  }
  // No token may have been chosen in a small batch of a bert.
  const double tokens = totals.predictions > 0 ? totals.token_loss / totals.predictions : 0;
  return tokens + totals.sequence_loss / static_cast<double>(totals.sequences);
}

}  // namespace tercio::engine
