#include "plan/preference.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/names.h"

namespace tercio::plan {
namespace {

// Odds of a probability of 1 would be infinite.
constexpr double kHighestMean = -1e-7;

double Sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : 1 - 1 / (1 + std::exp(x)); }

double LogSigmoid(double x) {
  return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}

// log(1 - exp(x)) of x < 0; Maechler 2012, eq. 7.
double Log1MinusExp(double x) {
  constexpr double kLogHalf = -0.6931471805599453;
  return x > kLogHalf ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

double Ratio(const Answer& answer) { return answer.log_probability - answer.reference; }

// A pair's loss as a function of what speaks for the chosen answer: value and derivative.
struct MarginLoss {
  double loss;
  double slope;
};

MarginLoss LossOfMargin(const v1::PreferenceSpec& spec, double margin) {
  switch (spec.loss()) {
    case v1::PREFERENCE_LOSS_HINGE: {
      const double left = 1 - spec.beta() * margin;
      return {std::max(0.0, left), left > 0 ? -spec.beta() : 0.0};
    }
    case v1::PREFERENCE_LOSS_IPO: {
      const double off = margin - 1 / (2 * spec.beta());
      return {off * off, 2 * off};
    }
    case v1::PREFERENCE_LOSS_SIGMOID:
    case v1::PREFERENCE_LOSS_UNSPECIFIED:
    case v1::PreferenceLoss_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::PreferenceLoss_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  const double x = spec.beta() * margin;
  const double swapped = spec.label_smoothing();
  return {-(1 - swapped) * LogSigmoid(x) - swapped * LogSigmoid(-x),
          spec.beta() * (swapped * Sigmoid(x) - (1 - swapped) * Sigmoid(-x))};
}

absl::Status Impossible(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckNumbers(const v1::PreferenceSpec& spec) {
  // Written so that NaN is refused, too.
  if (!(spec.beta() > 0)) return Impossible("training.preference.beta is not above 0");
  if (!(spec.label_smoothing() >= 0 && spec.label_smoothing() < 0.5)) {
    return Impossible("training.preference.label_smoothing is not in [0, 0.5)");
  }
  if (!(spec.desirable_weight() >= 0 && spec.undesirable_weight() >= 0)) {
    return Impossible("training.preference: a weight of kto is below 0");
  }
  return absl::OkStatus();
}

}  // namespace

bool LearnsPreferences(const v1::TrainingSpec& training) {
  return training.objective() == v1::TRAINING_OBJECTIVE_DPO ||
         training.objective() == v1::TRAINING_OBJECTIVE_ORPO ||
         training.objective() == v1::TRAINING_OBJECTIVE_KTO;
}

bool HasReference(const v1::TrainingSpec& training) {
  return training.objective() == v1::TRAINING_OBJECTIVE_DPO || HasDivergence(training);
}

bool HasDivergence(const v1::TrainingSpec& training) {
  return training.objective() == v1::TRAINING_OBJECTIVE_KTO;
}

int SequencesTogether(const v1::TrainingSpec& training) {
  return LearnsPreferences(training) && !HasDivergence(training) ? 2 : 1;
}

absl::Status CheckPreferences(const v1::JobSpec& job, int64_t micro_batch) {
  const v1::TrainingSpec& training = job.training();
  const v1::AnswerForm answers = job.data().chat().answers();
  const v1::AnswerForm wanted = !LearnsPreferences(training) ? v1::ANSWER_FORM_UNSPECIFIED
                                : HasDivergence(training)    ? v1::ANSWER_FORM_LABELLED
                                                             : v1::ANSWER_FORM_PAIR;
  if (answers != wanted) {
    return Impossible(absl::StrCat("training.objective ", TextOf(training.objective()),
                                   " does not learn from the answers that data describes"));
  }
  if (!LearnsPreferences(training)) return absl::OkStatus();
  TERCIO_CHECK(training.global_batch() > 0);
  if (training.label_smoothing() > 0) {
    return Impossible(absl::StrCat("training.label_smoothing changes probabilities of tokens, ",
                                   "which objective ", TextOf(training.objective()),
                                   " compares; use training.preference.label_smoothing"));
  }
  if (absl::Status numbers = CheckNumbers(training.preference()); !numbers.ok()) return numbers;
  const int together = SequencesTogether(training);
  const auto cuts = [&](const char* what, int64_t sequences) {
    return Impossible(absl::StrCat(what, " ", sequences, " is odd, and cuts a pair: objective ",
                                   TextOf(training.objective()),
                                   " counts sequences, two for each pair of answers"));
  };
  if (training.global_batch() % together != 0) {
    return cuts("training.global_batch", training.global_batch());
  }
  if (micro_batch % together != 0) return cuts("training.micro_batch", micro_batch);
  if (training.lanes() > 0 && training.global_batch() / training.lanes() % together != 0) {
    return Impossible(absl::StrCat("training.lanes ", training.lanes(), " of global_batch ",
                                   training.global_batch(), " cut a pair of answers; use at most ",
                                   training.lanes() / 2));
  }
  return absl::OkStatus();
}

PairLoss DpoLoss(const v1::PreferenceSpec& spec, const Answer& chosen, const Answer& rejected) {
  const bool per_token = spec.loss() == v1::PREFERENCE_LOSS_IPO;
  const double chosen_scale = per_token ? 1 / std::max(1.0, chosen.tokens) : 1;
  const double rejected_scale = per_token ? 1 / std::max(1.0, rejected.tokens) : 1;
  const MarginLoss of_margin =
      LossOfMargin(spec, Ratio(chosen) * chosen_scale - Ratio(rejected) * rejected_scale);
  return {.loss = of_margin.loss,
          .chosen_gradient = of_margin.slope * chosen_scale,
          .rejected_gradient = -of_margin.slope * rejected_scale,
          .chosen_reward = spec.beta() * Ratio(chosen),
          .rejected_reward = spec.beta() * Ratio(rejected)};
}

PairLoss OrpoLoss(const v1::PreferenceSpec& spec, const Answer& chosen, const Answer& rejected) {
  const double chosen_tokens = std::max(1.0, chosen.tokens);
  const double rejected_tokens = std::max(1.0, rejected.tokens);
  const double chosen_mean = chosen.log_probability / chosen_tokens;
  const double rejected_mean = rejected.log_probability / rejected_tokens;
  const double c = std::min(chosen_mean, kHighestMean);
  const double r = std::min(rejected_mean, kHighestMean);
  const double log_odds = (c - r) - (Log1MinusExp(c) - Log1MinusExp(r));
  // d log(p / (1 - p)) / d log p = 1 / (1 - p).
  const double pull = -spec.beta() * Sigmoid(-log_odds);
  return {.loss = -chosen_mean - spec.beta() * LogSigmoid(log_odds),
          .chosen_gradient = (-1 + pull / -std::expm1(c)) / chosen_tokens,
          .rejected_gradient = -pull / -std::expm1(r) / rejected_tokens,
          .chosen_reward = spec.beta() * chosen_mean,
          .rejected_reward = spec.beta() * rejected_mean};
}

AnswerLoss KtoLoss(const v1::PreferenceSpec& spec, const Answer& answer, double divergence) {
  const double sign = answer.desirable ? 1 : -1;
  const double weight = answer.desirable ? spec.desirable_weight() : spec.undesirable_weight();
  const double value = Sigmoid(sign * spec.beta() * (Ratio(answer) - divergence));
  return {.loss = weight * (1 - value),
          .gradient = -sign * weight * spec.beta() * value * (1 - value),
          .reward = spec.beta() * Ratio(answer)};
}

double DivergenceOf(absl::Span<const Answer> mismatched) {
  double sum = 0;
  for (const Answer& answer : mismatched) sum += Ratio(answer);
  if (mismatched.empty()) return 0;
  const double mean = sum / static_cast<double>(mismatched.size());
  // A NaN stays one: the step's judge names it.
  return mean < 0 ? 0 : mean;
}

void PreferenceGradients(const v1::TrainingSpec& training, absl::Span<const Answer> answers,
                         double divergence, absl::Span<double> gradients) {
  TERCIO_CHECK_EQ(gradients.size(), answers.size());
  const auto together = static_cast<size_t>(SequencesTogether(training));
  TERCIO_CHECK_EQ(answers.size() % together, size_t{0});
  const double share = static_cast<double>(together) / static_cast<double>(training.global_batch());
  const v1::PreferenceSpec& spec = training.preference();
  for (size_t i = 0; i < answers.size(); i += together) {
    if (together == 1) {
      gradients[i] = share * KtoLoss(spec, answers[i], divergence).gradient;
      continue;
    }
    const PairLoss pair = HasReference(training) ? DpoLoss(spec, answers[i], answers[i + 1])
                                                 : OrpoLoss(spec, answers[i], answers[i + 1]);
    gradients[i] = share * pair.chosen_gradient;
    gradients[i + 1] = share * pair.rejected_gradient;
  }
}

void PreferenceTotals::Side::Add(double answer_reward, const Answer& answer) {
  reward += answer_reward;
  log_probability += answer.log_probability;
  ++answers;
}

void PreferenceTotals::AddPair(const PairLoss& pair, const Answer& chosen, const Answer& rejected) {
  loss_ += pair.loss;
  ++losses_;
  chosen_.Add(pair.chosen_reward, chosen);
  rejected_.Add(pair.rejected_reward, rejected);
  ++pairs_;
  right_ += pair.chosen_reward > pair.rejected_reward ? 1 : 0;
}

void PreferenceTotals::Add(const v1::TrainingSpec& training, absl::Span<const Answer> answers,
                           double divergence) {
  const v1::PreferenceSpec& spec = training.preference();
  if (HasDivergence(training)) {
    for (const Answer& answer : answers) {
      const AnswerLoss of_answer = KtoLoss(spec, answer, divergence);
      loss_ += of_answer.loss;
      ++losses_;
      (answer.desirable ? chosen_ : rejected_).Add(of_answer.reward, answer);
    }
    divergence_ += divergence;
    ++divergences_;
    return;
  }
  TERCIO_CHECK_EQ(answers.size() % 2, size_t{0});
  for (size_t i = 0; i < answers.size(); i += 2) {
    AddPair(HasReference(training) ? DpoLoss(spec, answers[i], answers[i + 1])
                                   : OrpoLoss(spec, answers[i], answers[i + 1]),
            answers[i], answers[i + 1]);
  }
}

v1::ObjectiveFigures PreferenceTotals::Figures() const {
  v1::ObjectiveFigures figures;
  const auto mean = [](double sum, int64_t count) { return sum / static_cast<double>(count); };
  if (chosen_.answers > 0) {
    figures.set_chosen_reward(mean(chosen_.reward, chosen_.answers));
    figures.set_chosen_log_probability(mean(chosen_.log_probability, chosen_.answers));
  }
  if (rejected_.answers > 0) {
    figures.set_rejected_reward(mean(rejected_.reward, rejected_.answers));
    figures.set_rejected_log_probability(mean(rejected_.log_probability, rejected_.answers));
  }
  if (chosen_.answers > 0 && rejected_.answers > 0) {
    figures.set_margin(figures.chosen_reward() - figures.rejected_reward());
  }
  if (pairs_ > 0) figures.set_accuracy(right_ / static_cast<double>(pairs_));
  if (divergences_ > 0) figures.set_divergence(mean(divergence_, divergences_));
  return figures;
}

}  // namespace tercio::plan
