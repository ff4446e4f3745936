#include "cli/report/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "cli/plot/figure.h"
#include "plan/quality.h"

namespace tercio::report {
namespace {

constexpr int kSmoothing = 21;  // steps, for finding when a loss is reached

std::vector<double> StepSecondsOf(const std::vector<v1::StepRecord>& steps) {
  std::vector<double> seconds;
  // The first step of an attempt loads data and warms
  // caches: it is only counted where there is no other.
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
  // Counts are cumulative, so that only the difference says what a step has.
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

void AddCommunication(const v1::JobStatus& status, Numbers* numbers) {
  int64_t all = 0;
  int64_t steps = 0;
  v1::CommunicationBytes sum;
  for (const v1::RankView& rank : status.ranks()) {
    // The sum of some ranks only would pass for that of all.
    if (!rank.has_figures() || !rank.figures().has_communication()) return;
    const v1::CommunicationBytes& sent = rank.figures().communication();
    sum.set_tensor(sum.tensor() + sent.tensor());
    sum.set_pipeline(sum.pipeline() + sent.pipeline());
    sum.set_data(sum.data() + sent.data());
    sum.set_world(sum.world() + sent.world());
    steps = std::max(steps, rank.figures().steps());
  }
  if (status.ranks_size() == 0) return;
  for (const GroupKind& kind : kGroupKinds) all += (sum.*kind.bytes)();
  numbers->communication = sum;
  numbers->communication_bytes = all;
  // Bytes are those of one process, and so are the steps that they are divided by.
  if (steps > 0) {
    numbers->communication_bytes_per_step = static_cast<double>(all) / static_cast<double>(steps);
  }
}

void AddRanks(const v1::JobStatus& status, Numbers* numbers) {
  // Averages count the ranks that have reported, sums add what is known.
  double cores = 0, utilization = 0, waits = 0, per_compute = 0;
  int with_cores = 0, with_utilization = 0, with_phases = 0;
  const auto most = [](int64_t value, std::optional<int64_t>* target) {
    // A figure of 0 was not reported.
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
    // Phases sum to the time of the loop, whatever the clock of the process says.
    const double whole = SumOf(figures.phases());
    if (whole > 0) {
      const double compute = figures.phases().forward() + figures.phases().backward();
      waits += figures.phases().wait() / whole;
      // This ratio is what the plan calls the bubble.
      per_compute += compute > 0 ? figures.phases().wait() / compute : 0;
      ++with_phases;
    }
    most(figures.planned_bytes(), &numbers->planned_bytes_most);
    most(figures.used_bytes(), &numbers->used_bytes_most);
    most(figures.peak_bytes(), &numbers->peak_bytes_most);
    // What is beyond the arena is memory that no plan counts.
    most(figures.peak_bytes() - figures.used_bytes(), &numbers->outside_bytes_most);
    most(figures.resident_bytes(), &numbers->resident_bytes_most);
    add(figures.peak_bytes(), &numbers->peak_bytes_total);
    add(figures.resident_bytes(), &numbers->resident_bytes_total);
    add(figures.planned_bytes(), &numbers->planned_bytes_total);
    add(figures.used_bytes(), &numbers->used_bytes_total);
  }
  AddCommunication(status, numbers);
  // Zero ranks with a figure make it unknown, not zero.
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
  // Short runs are smoothed less, as the window must not cover most of them.
  const int window = std::min<int>(kSmoothing, static_cast<int>(steps.size()) / 4 * 2 + 1);
  return plot::Smoothed(losses, window);
}

std::optional<LossComparison::Reached> FirstAt(const std::vector<v1::StepRecord>& steps,
                                               double loss) {
  // A single lucky step does not mean that a loss was reached.
  const std::vector<double> smooth = SmoothLosses(steps);
  double seconds = 0;
  for (size_t i = 0; i < smooth.size(); ++i) {
    seconds += steps[i].step_seconds();
    // The first step counts, also where the loss rises again.
    if (smooth[i] <= loss) return LossComparison::Reached{steps[i].step(), seconds};
  }
  return std::nullopt;
}

void AddFigures(const v1::ObjectiveFigures& figures, std::optional<double>* margin,
                std::optional<double>* accuracy) {
  if (figures.has_margin()) *margin = figures.margin();
  if (figures.has_accuracy()) *accuracy = figures.accuracy();
}

void AddQuality(const JobData& job, Numbers* numbers) {
  for (const v1::StepRecord& step : job.steps) {
    if (step.has_validation_loss()) numbers->validation_loss = step.validation_loss();
    if (step.has_validation_accuracy()) numbers->validation_accuracy = step.validation_accuracy();
    if (step.has_validation_f1()) numbers->validation_f1 = step.validation_f1();
    AddFigures(step.figures(), &numbers->rewards_margin, &numbers->rewards_accuracy);
    AddFigures(step.validation_figures(), &numbers->validation_rewards_margin,
               &numbers->validation_rewards_accuracy);
  }
  if (numbers->validation_loss.has_value()) {
    numbers->perplexity = std::exp(*numbers->validation_loss);
  }
  if (!job.status.has_test()) return;
  const v1::Evaluation& test = job.status.test();
  numbers->test_loss = test.loss();
  if (!plan::IsConfusion(test.confusion())) return;
  const plan::Quality quality = plan::QualityOf(test.confusion());
  numbers->test_accuracy = quality.accuracy;
  numbers->test_f1 = quality.overall.f1;
}

// Bits are compared, so that NaN equals NaN and -0 is not 0.
bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

}  // namespace

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

std::optional<Distribution> DistributionOf(std::vector<double> values) {
  // Values that are not finite have no place in an order.
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  // The nearest value is taken, so that every quantile is one that occurred.
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
    // The last finite loss is shown: a run that ended with NaN has had one.
    if (!std::isfinite(step.loss())) continue;
    numbers.final_loss = step.loss();
    numbers.least_loss = std::min(numbers.least_loss.value_or(step.loss()), step.loss());
  }
  AddQuality(job, &numbers);
  numbers.step_seconds = DistributionOf(StepSecondsOf(job.steps));
  if (numbers.step_seconds.has_value() && numbers.step_seconds->median > 0) {
    // The median ignores steps with an evaluation or a checkpoint.
    numbers.tokens_per_second = TokensPerStep(job.steps) / numbers.step_seconds->median;
    if (status.plan().layout().micro_batches() > 0) {
      numbers.micro_batch_seconds =
          numbers.step_seconds->median / status.plan().layout().micro_batches();
    }
  }
  if (status.has_mfu()) numbers.mfu = status.mfu();
  const v1::Goodput& goodput = status.goodput();
  if (goodput.total() > 0) numbers.total_seconds = goodput.total();
  // Time in which the job was stopped is nobody's loss (coordinator/core/ledger.h).
  if (goodput.total() > goodput.stopped()) {
    numbers.goodput =
        (goodput.productive() + goodput.degraded()) / (goodput.total() - goodput.stopped());
  }
  AddRanks(status, &numbers);
  return numbers;
}

Json NumbersToJson(const Numbers& numbers) {
  // Keys that are not known are null, so that all jobs have the same keys.
  Json json = {{"steps", numbers.steps},
               {"tokens", numbers.tokens},
               {"ranks", numbers.ranks},
               {"final_loss", OrNull(numbers.final_loss)},
               {"least_loss", OrNull(numbers.least_loss)},
               {"validation_loss", OrNull(numbers.validation_loss)},
               {"perplexity", OrNull(numbers.perplexity)},
               {"validation_accuracy", OrNull(numbers.validation_accuracy)},
               {"validation_f1", OrNull(numbers.validation_f1)},
               {"test_loss", OrNull(numbers.test_loss)},
               {"test_accuracy", OrNull(numbers.test_accuracy)},
               {"test_f1", OrNull(numbers.test_f1)}};
  // Most jobs learn no preferences.
  const std::pair<const char*, std::optional<double>> preferences[] = {
      {"rewards_margin", numbers.rewards_margin},
      {"rewards_accuracy", numbers.rewards_accuracy},
      {"validation_rewards_margin", numbers.validation_rewards_margin},
      {"validation_rewards_accuracy", numbers.validation_rewards_accuracy}};
  for (const auto& [key, value] : preferences) {
    if (value.has_value()) json[key] = OrNull(value);
  }
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
  json["planned_bytes_total"] = OrNull(numbers.planned_bytes_total);
  json["used_bytes_total"] = OrNull(numbers.used_bytes_total);
  json["communication_bytes"] = nullptr;
  if (numbers.communication.has_value()) {
    json["communication_bytes"] = Json::object();
    for (const GroupKind& kind : kGroupKinds) {
      json["communication_bytes"][kind.name] = (*numbers.communication.*kind.bytes)();
    }
  }
  json["communication_bytes_per_step"] = OrNull(numbers.communication_bytes_per_step);
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
    // Both lists are ascending; a step that only one job has is skipped.
    while (k < other.steps.size() && other.steps[k].step() < step.step()) ++k;
    if (k == other.steps.size() || other.steps[k].step() != step.step()) continue;
    ++comparison.steps;
    comparison.equal_steps += SameBits(step.loss(), other.steps[k].loss()) ? 1 : 0;
    if (step.has_state_digest() && other.steps[k].has_state_digest()) {
      ++comparison.states;
      comparison.equal_states += step.state_digest() == other.steps[k].state_digest() ? 1 : 0;
    }
    const double difference = std::abs(step.loss() - other.steps[k].loss());
    comparison.not_finite_steps += std::isfinite(difference) ? 0 : 1;
    // Two infinities differ by NaN, which is larger than nothing.
    if (std::isfinite(difference) && difference > comparison.largest_difference) {
      comparison.largest_difference = difference;
      comparison.largest_at = step.step();
    }
  }
  // The goal is smoothed like the curves, or noise would decide who reaches it.
  const std::vector<double> goal = SmoothLosses(base.steps);
  if (goal.empty() || !std::isfinite(goal.back())) return comparison;
  comparison.base_reaches = FirstAt(base.steps, goal.back());
  // The same goal for both, so that the two times can be compared.
  comparison.other_reaches = FirstAt(other.steps, goal.back());
  return comparison;
}

std::vector<Fault> FaultsOf(const JobData& job) {
  int last_attempt = 0;  // the last one that completed a step
  for (const v1::StepRecord& step : job.steps)
    last_attempt = std::max(last_attempt, step.attempt());
  // Steps that were repeated belong to the attempt that lost them.
  std::map<int, int64_t> lost;
  for (const v1::StepRecord& step : job.lost_steps) ++lost[step.attempt()];
  std::vector<Fault> faults;
  for (const v1::JobEvent& event : job.events) {
    // The first attempt that runs after a fault ends the interruption.
    if (event.kind() == "running") {
      for (Fault& fault : faults) {
        if (fault.training_again_seconds.has_value() || event.attempt() <= fault.attempt) continue;
        fault.training_again_seconds = SecondsOf(event.time()) - fault.at;
      }
    }
    // These are the events that interrupt training.
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
    // Without a later attempt it is not known what was lost.
    const bool went_on = last_attempt > event.attempt();
    if (went_on) fault.steps_lost = lost[event.attempt()];
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace tercio::report
