#include "plan/objective_figures.h"

namespace tercio::plan {
namespace {

using Figures = v1::ObjectiveFigures;

template <bool (Figures::*kHas)() const, double (Figures::*kGet)() const>
std::optional<double> Get(const Figures& figures) {
  return (figures.*kHas)() ? std::optional((figures.*kGet)()) : std::nullopt;
}

template <void (Figures::*kSet)(double)>
void Set(double value, Figures* figures) {
  (figures->*kSet)(value);
}

constexpr ObjectiveFigure kFigures[] = {
    {"rewards_chosen", "Reward of chosen answers", "",
     Get<&Figures::has_chosen_reward, &Figures::chosen_reward>, Set<&Figures::set_chosen_reward>},
    {"rewards_rejected", "Reward of rejected answers", "",
     Get<&Figures::has_rejected_reward, &Figures::rejected_reward>,
     Set<&Figures::set_rejected_reward>},
    {"rewards_margin", "Reward margin", "", Get<&Figures::has_margin, &Figures::margin>,
     Set<&Figures::set_margin>},
    {"rewards_accuracy", "Reward accuracy", "share of pairs",
     Get<&Figures::has_accuracy, &Figures::accuracy>, Set<&Figures::set_accuracy>},
    {"logps_chosen", "Log-probability of chosen answers", "nats",
     Get<&Figures::has_chosen_log_probability, &Figures::chosen_log_probability>,
     Set<&Figures::set_chosen_log_probability>},
    {"logps_rejected", "Log-probability of rejected answers", "nats",
     Get<&Figures::has_rejected_log_probability, &Figures::rejected_log_probability>,
     Set<&Figures::set_rejected_log_probability>},
    {"kl", "Divergence from the reference", "nats",
     Get<&Figures::has_divergence, &Figures::divergence>, Set<&Figures::set_divergence>},
    {"teacher_kl", "Divergence from the teacher", "nats",
     Get<&Figures::has_teacher_divergence, &Figures::teacher_divergence>,
     Set<&Figures::set_teacher_divergence>},
    {"cross_entropy", "Cross-entropy", "nats",
     Get<&Figures::has_cross_entropy, &Figures::cross_entropy>, Set<&Figures::set_cross_entropy>},
};

}  // namespace

absl::Span<const ObjectiveFigure> ObjectiveFigureList() { return kFigures; }

}  // namespace tercio::plan
