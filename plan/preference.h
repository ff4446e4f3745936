// Learning from preferences: what the answers of a prompt cost, and in which direction that pulls
// their probabilities.
//
//   dpo   two answers to a prompt, of which one was chosen. Rafailov et al. 2023, "Direct
//         Preference Optimization", eq. 7; with hinge Zhao et al. 2023, "SLiC-HF"; with ipo Azar et
//         al. 2023, "A General Theoretical Paradigm to Understand Learning from Human Preferences",
//         eq. 17, with log-probabilities per token; label smoothing: Mitchell 2023, "A note on DPO
//         with noisy preferences", eq. 3
//   orpo  likewise, without a reference. Hong et al. 2024, "ORPO", eq. 6 and 7
//   kto   single answers that are desirable or not. Ethayarajh et al. 2024, "KTO", eq. 7 and 8
//
// A log-probability is that of a whole answer, the sum over its tokens, in nats. The reference is
// the model as the job began with it. The loss of a global batch is the mean over its pairs, for
// kto over its answers.
//
// Pure. In double, and in the order of the answers, so that the results are the same in every
// layout.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// The objective is dpo, orpo or kto.
bool LearnsPreferences(const v1::TrainingSpec& training);
// The loss compares answers with what the reference makes of them: dpo, kto.
bool HasReference(const v1::TrainingSpec& training);
// The loss needs an estimate of KL(policy, reference): kto.
bool HasDivergence(const v1::TrainingSpec& training);
// Sequences that follow each other in the global batch and that nothing may separate: 2 for pairs,
// the chosen answer first; else 1.
int SequencesTogether(const v1::TrainingSpec& training);

// INVALID_ARGUMENT: the job's numbers are not those of its objective, or the global batch, its
// lanes or the micro-batch (0: not chosen yet) cut a pair.
absl::Status CheckPreferences(const v1::JobSpec& job, int64_t micro_batch);

struct Answer {
  double log_probability = 0;
  double reference = 0;   // the log-probability by the reference
  double tokens = 0;      // of the answer
  bool desirable = true;  // kto
};

struct PairLoss {
  double loss = 0;
  // d(loss) / d(log_probability).
  double chosen_gradient = 0;
  double rejected_gradient = 0;
  double chosen_reward = 0;
  double rejected_reward = 0;
};
PairLoss DpoLoss(const v1::PreferenceSpec& spec, const Answer& chosen, const Answer& rejected);
// The mean of -log p over the chosen answer's tokens, and the odds ratio's part.
PairLoss OrpoLoss(const v1::PreferenceSpec& spec, const Answer& chosen, const Answer& rejected);

struct AnswerLoss {
  double loss = 0;
  double gradient = 0;
  double reward = 0;
};
// `divergence`: the estimate of KL(policy, reference), at least 0, through which no gradient flows.
AnswerLoss KtoLoss(const v1::PreferenceSpec& spec, const Answer& answer, double divergence);

// kto's estimate: the mean of log p - log p_ref over answers that belong to other prompts, at least
// 0. 0 for no answers.
double DivergenceOf(absl::Span<const Answer> mismatched);

// d(loss of the global batch) / d(log_probability) of answers that follow each other in it, whole
// pairs. REQUIRES: gradients.size() == answers.size().
void PreferenceGradients(const v1::TrainingSpec& training, absl::Span<const Answer> answers,
                         double divergence, absl::Span<double> gradients);

// The loss and the figures of one or several global batches.
class PreferenceTotals {
 public:
  // `answers`: whole pairs.
  void Add(const v1::TrainingSpec& training, absl::Span<const Answer> answers, double divergence);

  // REQUIRES: something was added.
  double MeanLoss() const { return loss_ / static_cast<double>(losses_); }
  v1::ObjectiveFigures Figures() const;

 private:
  struct Side {
    double reward = 0;
    double log_probability = 0;
    int64_t answers = 0;
    void Add(double answer_reward, const Answer& answer);
  };
  void AddPair(const PairLoss& pair, const Answer& chosen, const Answer& rejected);

  double loss_ = 0;
  int64_t losses_ = 0;
  Side chosen_, rejected_;
  int64_t pairs_ = 0;
  double right_ = 0;  // pairs whose chosen answer has the greater reward
  double divergence_ = 0;
  int64_t divergences_ = 0;
};

}  // namespace tercio::plan
