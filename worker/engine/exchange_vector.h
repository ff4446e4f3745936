// The numbers that all ranks learn after a step by one world-wide sum, whose order cannot matter:
// every entry has one contributor, or whole numbers of all. In order: sums of each sequence of the
// global batch, kind after kind, the limbs of the exact squared norm of the gradients
// (kernels/exact_sum.h), the number of elements of each tensor's gradient that are not finite, and
// the signal of rank 0.
//
// It lies on the device, in memory of the arena, and, once it is known, on the host. Knows where
// each number is and what the known ones mean; filling it is the engine's affair.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/exact_sum.h"
#include "plan/distillation.h"
#include "plan/memory_map.h"
#include "plan/preference.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::engine {

class ExchangeVector {
 public:
  // `device` holds all of it.
  ExchangeVector(const v1::JobSpec& spec, const plan::StageShape& shape, double* device);

  // A classifier predicts no tokens: what would be the losses of its tokens are, in evaluations,
  // the outcomes of its sequences (worker/engine/class_outcomes.h). So they cost steps nothing.
  // Where preferences are learnt, a sequence has no loss beside its tokens', but an answer. The
  // divergence from a teacher is the last of a job's sums.
  enum class Sum {
    kTokenLoss,
    kPredictions,
    kSequenceLoss,
    kDesirable,
    kDivergence,
    // Behind all others: an enumerator after one of these would be another's number.
    kReference = kSequenceLoss,
    kOutcome = kTokenLoss,
  };

  // ---- on the device ----
  double* begin() const { return device_; }
  double* SumsOf(Sum sum) const {
    if (sum == Sum::kDivergence) return SumsEnd() - global_batch_;
    return device_ + static_cast<int>(sum) * global_batch_;
  }
  double* SumsEnd() const { return device_ + sum_count_; }
  double* SquareLimbs() const { return SumsEnd(); }
  double* NotFinite(int tensor) const { return SquareLimbs() + kernels::kSumLimbs + tensor; }
  double* Signal() const { return device_ + count() - 1; }
  int64_t sum_count() const { return sum_count_; }
  int64_t count() const { return static_cast<int64_t>(known_.size()); }

  // ---- on the host ----
  double* known() { return known_.data(); }
  absl::Span<const double> KnownSums(Sum sum) const;
  // By sequences of the global batch, of all kinds together.
  std::vector<double> KnownLosses() const;
  // The squared norm of all gradients; NaN if one of them is not finite.
  double KnownSquares() const;
  // By tensors of the model.
  absl::Span<const double> KnownNotFinite() const;
  double KnownSignal() const { return known_.back(); }

  // Where preferences are learnt: the answers of the first `sequences`.
  std::vector<plan::Answer> KnownAnswers(int64_t sequences) const;
  // What the losses of answers are compared with (plan::KtoLoss).
  void SetDivergence(double divergence) { divergence_ = divergence; }

  // Totals of several global batches, which share a mean.
  struct Totals {
    double token_loss = 0;
    double predictions = 0;
    double sequence_loss = 0;
    int64_t sequences = 0;
    std::optional<plan::PreferenceTotals> preferences;  // where they are learnt
    double divergence = 0;
    std::optional<v1::DistillationSpec> distillation;  // where a teacher is learnt from

    // REQUIRES: a teacher is learnt from.
    plan::DistillationMeans MeansOfTokens() const;
    // What the objective has of them beside the loss.
    std::optional<v1::ObjectiveFigures> Figures() const;
  };
  // Adds the first `sequences` of the batch that is known.
  void AddTotals(int64_t sequences, Totals* totals) const;
  static double MeanLoss(const Totals& totals);

 private:
  const int64_t global_batch_;
  const int64_t tokens_;  // tokens of a sequence
  const int64_t sum_count_;
  const bool counts_predictions_;
  const bool has_sequence_losses_;
  const bool predicts_tokens_;
  const std::optional<v1::TrainingSpec> preferences_;       // where they are learnt
  const std::optional<v1::DistillationSpec> distillation_;  // where a teacher is learnt from
  double divergence_ = 0;
  double* const device_;
  std::vector<double> known_;
};

}  // namespace tercio::engine
