#include "cli/report/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "cli/plot/figure.h"

namespace tercio::report {
namespace {

constexpr int kSmoothing = 21;  // steps, for finding when a loss is reached

std::vector<double> StepSecondsOf(const std::vector<v1::StepRecord>& steps) {
  std::vector<double> seconds;
  std::vector<double> first;
  int attempt = 0;
  for (const v1::StepRecord& step : steps) {
    (step.attempt() == attempt ? seconds : first).push_back(step.step_seconds());
    attempt = step.attempt();
  }
  return seconds.empty() ? first : seconds;
}

// Tokens of one step, from the cumulative counts.
double TokensPerStep(const std::vector<v1::StepRecord>& steps) {
  if (steps.empty()) return 0;
  const v1::StepRecord& first = steps.front();
  const v1::StepRecord& last = steps.back();
  if (last.step() == first.step()) {
    return static_cast<double>(last.tokens()) /
           static_cast<double>(std::max<int64_t>(1, last.step()));
  }
  return static_cast<double>(last.tokens() - first.tokens()) /
         static_cast<double>(last.step() - first.step());
}

double SumOf(const v1::PhaseSeconds& phases) {
  return phases.forward() + phases.backward() + phases.wait() + phases.optimizer() + phases.data() +
         phases.checkpoint() + phases.evaluation() + phases.other();
}

void AddRanks(const v1::JobStatus& status, Numbers* numbers) {
  double cores = 0, utilization = 0, waits = 0, per_compute = 0;
  int with_cores = 0, with_utilization = 0, with_phases = 0;
  const auto most = [](int64_t value, std::optional<int64_t>* target) {
    if (value > 0) *target = std::max(target->value_or(0), value);
  };
  const auto add = [](int64_t value, std::optional<int64_t>* target) {
    if (value > 0) *target = target->value_or(0) + value;
  };
  for (const v1::RankView& rank : status.ranks()) {
    if (!rank.has_figures()) continue;
    const v1::RankFigures& figures = rank.figures();
    if (figures.elapsed_seconds() > 0) {
      cores += figures.cpu_seconds() / figures.elapsed_seconds();
      ++with_cores;
    }
    if (figures.has_device_utilization()) {
      utilization += figures.device_utilization();
      ++with_utilization;
    }
    const double whole = SumOf(figures.phases());
    if (whole > 0) {
      const double compute = figures.phases().forward() + figures.phases().backward();
      waits += figures.phases().wait() / whole;
      per_compute += compute > 0 ? figures.phases().wait() / compute : 0;
      ++with_phases;
    }
    most(figures.planned_bytes(), &numbers->planned_bytes_most);
    most(figures.used_bytes(), &numbers->used_bytes_most);
    most(figures.peak_bytes(), &numbers->peak_bytes_most);
    most(figures.peak_bytes() - figures.used_bytes(), &numbers->outside_bytes_most);
    most(figures.resident_bytes(), &numbers->resident_bytes_most);
    add(figures.peak_bytes(), &numbers->peak_bytes_total);
    add(figures.resident_bytes(), &numbers->resident_bytes_total);
  }
  if (with_cores > 0) numbers->cores_used = cores;
  if (with_utilization > 0) numbers->device_utilization = utilization / with_utilization;
  if (with_phases > 0) {
    numbers->wait_share = waits / with_phases;
    numbers->wait_per_compute = per_compute / with_phases;
  }
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// The smoothed losses of the steps.
std::vector<double> SmoothLosses(const std::vector<v1::StepRecord>& steps) {
  std::vector<double> losses;
  losses.reserve(steps.size());
  for (const v1::StepRecord& step : steps) losses.push_back(step.loss());
  const int window = std::min<int>(kSmoothing, static_cast<int>(steps.size()) / 4 * 2 + 1);
  return plot::Smoothed(losses, window);
}

std::optional<LossComparison::Reached> FirstAt(const std::vector<v1::StepRecord>& steps,
                                               double loss) {
  const std::vector<double> smooth = SmoothLosses(steps);
  double seconds = 0;
  for (size_t i = 0; i < smooth.size(); ++i) {
    seconds += steps[i].step_seconds();
    if (smooth[i] <= loss) return LossComparison::Reached{steps[i].step(), seconds};
  }
  return std::nullopt;
}

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

}  // namespace

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

std::optional<Distribution> DistributionOf(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return Distribution{
      values.front(),
      at(0.1),
      at(0.5),
      at(0.9),
      at(0.99),
      values.back(),
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())};
}

Numbers NumbersOf(const JobData& job) {
  Numbers numbers;
  const v1::JobStatus& status = job.status;
  numbers.restarts = status.restarts();
  numbers.ranks = status.plan().ranks_size();
  numbers.lost_steps = static_cast<int64_t>(job.lost_steps.size());
  if (!job.steps.empty()) {
    numbers.steps = job.steps.back().step();
    numbers.tokens = job.steps.back().tokens();
  }
  for (const v1::StepRecord& step : job.steps) {
    if (step.has_validation_loss()) numbers.validation_loss = step.validation_loss();
    if (!std::isfinite(step.loss())) continue;
    numbers.final_loss = step.loss();
    numbers.least_loss = std::min(numbers.least_loss.value_or(step.loss()), step.loss());
  }
  if (numbers.validation_loss.has_value()) numbers.perplexity = std::exp(*numbers.validation_loss);
  numbers.step_seconds = DistributionOf(StepSecondsOf(job.steps));
  if (numbers.step_seconds.has_value() && numbers.step_seconds->median > 0) {
    numbers.tokens_per_second = TokensPerStep(job.steps) / numbers.step_seconds->median;
    if (status.plan().layout().micro_batches() > 0) {
      numbers.micro_batch_seconds =
          numbers.step_seconds->median / status.plan().layout().micro_batches();
    }
  }
  if (status.has_mfu()) numbers.mfu = status.mfu();
  const v1::Goodput& goodput = status.goodput();
  if (goodput.total() > 0) numbers.total_seconds = goodput.total();
  if (goodput.total() > goodput.stopped()) {
    numbers.goodput =
        (goodput.productive() + goodput.degraded()) / (goodput.total() - goodput.stopped());
  }
  AddRanks(status, &numbers);
  return numbers;
}

Json NumbersToJson(const Numbers& numbers) {
  Json json = {{"steps", numbers.steps},
               {"tokens", numbers.tokens},
               {"ranks", numbers.ranks},
               {"final_loss", OrNull(numbers.final_loss)},
               {"least_loss", OrNull(numbers.least_loss)},
               {"validation_loss", OrNull(numbers.validation_loss)},
               {"perplexity", OrNull(numbers.perplexity)}};
  json["step_seconds"] = nullptr;
  if (numbers.step_seconds.has_value()) {
    const Distribution& seconds = *numbers.step_seconds;
    json["step_seconds"] = {{"least", seconds.least},   {"p10", seconds.p10},
                            {"median", seconds.median}, {"p90", seconds.p90},
                            {"p99", seconds.p99},       {"greatest", seconds.greatest},
                            {"mean", seconds.mean}};
  }
  json["micro_batch_seconds"] = OrNull(numbers.micro_batch_seconds);
  json["tokens_per_second"] = OrNull(numbers.tokens_per_second);
  json["mfu"] = OrNull(numbers.mfu);
  json["cores_used"] = OrNull(numbers.cores_used);
  json["device_utilization"] = OrNull(numbers.device_utilization);
  json["wait_share"] = OrNull(numbers.wait_share);
  json["wait_per_compute"] = OrNull(numbers.wait_per_compute);
  json["planned_bytes_most"] = OrNull(numbers.planned_bytes_most);
  json["used_bytes_most"] = OrNull(numbers.used_bytes_most);
  json["outside_bytes_most"] = OrNull(numbers.outside_bytes_most);
  json["peak_bytes_most"] = OrNull(numbers.peak_bytes_most);
  json["peak_bytes_total"] = OrNull(numbers.peak_bytes_total);
  json["resident_bytes_most"] = OrNull(numbers.resident_bytes_most);
  json["resident_bytes_total"] = OrNull(numbers.resident_bytes_total);
  json["goodput"] = OrNull(numbers.goodput);
  json["total_seconds"] = OrNull(numbers.total_seconds);
  json["restarts"] = numbers.restarts;
  json["lost_steps"] = numbers.lost_steps;
  return json;
}

LossComparison CompareLosses(const JobData& base, const JobData& other) {
  LossComparison comparison;
  size_t k = 0;
  for (const v1::StepRecord& step : base.steps) {
    while (k < other.steps.size() && other.steps[k].step() < step.step()) ++k;
    if (k == other.steps.size() || other.steps[k].step() != step.step()) continue;
    ++comparison.steps;
    comparison.equal_steps += SameBits(step.loss(), other.steps[k].loss()) ? 1 : 0;
    const double difference = std::abs(step.loss() - other.steps[k].loss());
    comparison.not_finite_steps += std::isfinite(difference) ? 0 : 1;
    if (std::isfinite(difference) && difference > comparison.largest_difference) {
      comparison.largest_difference = difference;
      comparison.largest_at = step.step();
    }
  }
  const std::vector<double> goal = SmoothLosses(base.steps);
  if (goal.empty() || !std::isfinite(goal.back())) return comparison;
  comparison.base_reaches = FirstAt(base.steps, goal.back());
  comparison.other_reaches = FirstAt(other.steps, goal.back());
  return comparison;
}

std::vector<Fault> FaultsOf(const JobData& job) {
  int last_attempt = 0;  // the last one that completed a step
  for (const v1::StepRecord& step : job.steps)
    last_attempt = std::max(last_attempt, step.attempt());
  std::map<int, int64_t> lost;
  for (const v1::StepRecord& step : job.lost_steps) ++lost[step.attempt()];
  std::vector<Fault> faults;
  for (const v1::JobEvent& event : job.events) {
    if (event.kind() == "running") {
      for (Fault& fault : faults) {
        if (fault.training_again_seconds.has_value() || event.attempt() <= fault.attempt) continue;
        fault.training_again_seconds = SecondsOf(event.time()) - fault.at;
      }
    }
    if (event.kind() != "attempt_broken" && event.kind() != "moving" &&
        event.kind() != "rolled_back" && event.kind() != "data_refused") {
      continue;
    }
    Fault fault{event.attempt(),
                SecondsOf(event.time()),
                event.kind(),
                event.message(),
                event.node(),
                {},
                {}};
    const bool went_on = last_attempt > event.attempt();
    if (went_on) fault.steps_lost = lost[event.attempt()];
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace tercio::report
