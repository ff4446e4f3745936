#include "cli/commands/run_forecast.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"
#include "cli/text.h"
#include "common/status_macros.h"
#include "config/quantity.h"
#include "plan/model_tensors.h"
#include "plan/planner/cost/recipe.h"
#include "plan/planner/cost/step_cost.h"

namespace tercio::cli {
namespace {

using config::FaultFigures;
using nlohmann::ordered_json;
using plan::simulator::Forecast;
using plan::simulator::Interval;
using plan::simulator::RunInput;
using plan::simulator::RunOutcome;
using plan::simulator::RunSimulator;
using plan::simulator::Spread;

// What is assumed where the cluster file gives no figure; docs/planner.md has the sources.
constexpr double kNodeMtbf = 54.0 * 2048 / 466 * 86400;
constexpr double kDetect = 15;
constexpr double kRestart = 600;
constexpr double kReplace = 4 * 3600;
constexpr double kLeastPause = 5;
constexpr double kCopyRate = 10e9;    // bytes a second, from a GPU to the host
constexpr double kWriteRate = 1.2e9;  // bytes a second, from a node to storage
constexpr double kBytesOfState = 12;  // bytes of a parameter: weight and moments in fp32

constexpr uint64_t kDefaultSeed = 1;
constexpr int kRuns = 200;
constexpr int kRunsOfSearch = 60;  // for each interval that is tried
constexpr double kLongest = 100 * 365.25 * 86400;

// "237.3 d", "1h40m".
std::string LengthText(double seconds) {
  constexpr double kDay = 86400;
  if (seconds >= 2 * kDay) return absl::StrFormat("%.1f d", seconds / kDay);
  return DurationText(seconds);
}

std::string Percents(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// Takes a figure of the file, or assumes one and says so.
class Figures {
 public:
  Figures(const FaultFigures& given, std::vector<Assumption>* assumed)
      : given_(given), assumed_(*assumed) {}

  double Get(std::optional<double> FaultFigures::*figure, const char* key, double otherwise,
             const std::string& source) {
    if ((given_.*figure).has_value()) return *(given_.*figure);
    assumed_.push_back({key, LengthText(otherwise), source});
    return otherwise;
  }

 private:
  const FaultFigures& given_;
  std::vector<Assumption>& assumed_;
};

void FillFaults(const ClusterPlan& plan, RunForecast* forecast) {
  const FaultFigures& given = plan.file.faults;
  Figures figures(given, &forecast->assumed);
  RunInput& input = forecast->input;
  input.faults.nodes = plan.file.cluster.nodes;
  input.faults.node_mtbf =
      figures.Get(&FaultFigures::node_mtbf, "node_mtbf", kNodeMtbf,
                  "Llama 3: 466 interruptions of 2048 nodes in 54 days (Dubey et al. 2024)");
  input.faults.detect = figures.Get(&FaultFigures::detect, "detect", kDetect,
                                    "an agent is given up after three heartbeats of 5 s");
  input.faults.restart =
      figures.Get(&FaultFigures::restart, "restart", kRestart,
                  "less on 12288 GPUs, with diagnosis (MegaScale, Jiang et al. 2024)");
  if (given.spare_nodes.has_value()) {
    input.faults.spare_nodes = static_cast<int>(*given.spare_nodes);
    input.faults.replace = figures.Get(&FaultFigures::replace, "replace", kReplace,
                                       "hours for a machine (OPT-175B, Zhang et al. 2022)");
  } else {
    forecast->assumed.push_back({"spare_nodes", "enough", "a failed node is replaced at once"});
  }
  const double bytes = kBytesOfState * static_cast<double>(plan::ParameterCount(plan.job.model()));
  const double of_gpu = bytes / plan.file.cluster.devices();
  input.checkpoint_pause = figures.Get(
      &FaultFigures::checkpoint_pause, "checkpoint_pause",
      std::max(kLeastPause, of_gpu / kCopyRate),
      "12 bytes for each parameter, divided by all GPUs, at 10 GB/s of each; at least 5 s");
  if (given.checkpoint_bandwidth.has_value()) {
    input.checkpoint_written = input.checkpoint_pause + bytes / *given.checkpoint_bandwidth;
  } else {
    input.checkpoint_written =
        figures.Get(&FaultFigures::checkpoint_write, "checkpoint_write",
                    input.checkpoint_pause + bytes / (kWriteRate * input.faults.nodes),
                    "12 bytes for each parameter at 1.2 GB/s of each node (BLOOM: 2.3 TB from 48 "
                    "nodes in 40 s)");
  }
  input.disturbances = {.pass_jitter = given.pass_jitter.value_or(0),
                        .step_jitter = given.step_jitter.value_or(0),
                        .slow_share = given.slow_gpus.value_or(0),
                        .slow_by = given.slow_by.value_or(0)};
  if (input.disturbances.none()) {
    forecast->assumed.push_back({"pass_jitter, step_jitter, slow_gpus", "0",
                                 "the predicted step has what ranks wait on average"});
  }
}

void FillStep(const ClusterPlan& plan, RunForecast* forecast) {
  const v1::Layout& layout = forecast->layout.layout;
  const plan::cost::ClusterModel cluster = ClusterOf(plan, forecast->layout);
  plan::cost::PipelineWalks walks;
  const plan::cost::StepTiming timing =
      plan::cost::TimingOfStep({.job = plan.job,
                                .layout = layout,
                                .cluster = cluster,
                                .recipe = *plan::cost::FindRecipe("tercio")},
                               &walks);
  forecast->input.step = plan::simulator::ShapeOfStep(timing, layout);
}

IntervalChoice Choose(const RunSimulator& simulator, const char* key, const char* name,
                      const Interval& interval, double step_seconds) {
  IntervalChoice choice;
  choice.key = key;
  choice.name = name;
  choice.interval = interval;
  if (interval.steps > 0) choice.seconds = static_cast<double>(interval.steps) * step_seconds;
  if (interval.seconds > 0 && (choice.seconds <= 0 || interval.seconds < choice.seconds)) {
    choice.seconds = interval.seconds;
  }
  choice.forecast = simulator.Predict(interval, kRuns);
  if (choice.seconds > 0) {
    // The formula knows no jitter: steps that take longer count for less.
    const RunOutcome& mean = choice.forecast.mean;
    const double kept = mean.useful + mean.slower;
    choice.expected_goodput =
        (1 - plan::simulator::ExpectedWaste(simulator.Costs(), choice.seconds)) *
        (kept > 0 ? mean.useful / kept : 1);
  }
  return choice;
}

void FillIntervals(const ClusterPlan& plan, RunForecast* forecast) {
  const RunSimulator simulator(forecast->input, forecast->seed);
  const double step = forecast->input.step.seconds();
  const plan::simulator::SaveCosts costs = simulator.Costs();
  const v1::CheckpointSpec& spec = plan.job.checkpoint();
  const auto add = [&](const char* key, const char* name, const Interval& interval) {
    forecast->intervals.push_back(Choose(simulator, key, name, interval, step));
  };
  add("job", "the job's", {.steps = spec.every_steps(), .seconds = spec.every_seconds()});
  add("young_1974", "Young 1974", simulator.InSteps(YoungInterval(costs)));
  add("daly_2006", "Daly 2006", simulator.InSteps(DalyInterval(costs)));
  add("least_expected_waste", "least expected waste", simulator.InSteps(LeastWasteInterval(costs)));
  add("simulated", "best simulated", simulator.InSteps(simulator.BestInterval(kRunsOfSearch)));
}

struct PartOfRun {
  const char* key;
  const char* name;
  double RunOutcome::*seconds;
};
constexpr PartOfRun kPartsOfRun[] = {
    {"useful", "steps that count", &RunOutcome::useful},
    {"slower", "jitter and slow GPUs", &RunOutcome::slower},
    {"checkpoints", "pauses for checkpoints", &RunOutcome::checkpoints},
    {"lost", "steps lost by failures", &RunOutcome::lost},
    {"restarts", "detecting and restarting", &RunOutcome::restarts}};

const Forecast& OfTheJob(const RunForecast& forecast) {
  return forecast.intervals.front().forecast;
}

ordered_json SpreadJson(const Spread& spread) {
  return {{"mean", spread.mean}, {"p10", spread.low}, {"p90", spread.high}};
}

// Days of a run of --tokens tokens at this goodput; 0: not asked for.
double DaysOfTokens(const RunForecast& forecast) {
  const double goodput = OfTheJob(forecast).goodput.mean;
  if (forecast.tokens <= 0 || goodput <= 0) return 0;
  return forecast.tokens / forecast.layout.cost.tokens_per_second / goodput / 86400;
}

std::string IntervalSteps(const IntervalChoice& choice) {
  return choice.interval.steps > 0 ? absl::StrCat(choice.interval.steps) : "";
}

std::string IntervalsText(const RunForecast& forecast) {
  std::vector<std::vector<std::string>> rows = {
      {"CHECKPOINT INTERVAL", "STEPS", "TIME", "GOODPUT", "BY FORMULA"}};
  for (const IntervalChoice& choice : forecast.intervals) {
    if (choice.seconds > 0) {
      rows.push_back({choice.name, IntervalSteps(choice), LengthText(choice.seconds),
                      Percents(choice.forecast.goodput.mean), Percents(choice.expected_goodput)});
    } else {
      rows.push_back(
          {choice.name, "", "at the end only", Percents(choice.forecast.goodput.mean), ""});
    }
  }
  return Table(rows);
}

}  // namespace

absl::StatusOr<std::optional<RunForecast>> ForecastRun(const ClusterPlan& plan,
                                                       const PlanOptions& options) {
  if (options.simulate.empty()) return std::nullopt;
  const std::optional<double> length = config::ParseDuration(options.simulate);
  if (!length.has_value() || !(*length > 0) || *length > kLongest) {
    return absl::InvalidArgumentError(
        absl::StrCat("--simulate ", options.simulate,
                     ": is no length of a run; write a duration such as 12h or 30d"));
  }
  if (plan.found.fitting.empty()) return std::nullopt;
  RunForecast forecast;
  forecast.layout = plan.found.fitting.front();
  forecast.seed = options.seed < 0 ? kDefaultSeed : static_cast<uint64_t>(options.seed);
  forecast.tokens = plan.tokens;
  forecast.input.length = *length;
  FillStep(plan, &forecast);
  FillFaults(plan, &forecast);
  FillIntervals(plan, &forecast);
  return forecast;
}

std::string ForecastText(const RunForecast& forecast) {
  const Forecast& run = OfTheJob(forecast);
  const RunInput& input = forecast.input;
  std::vector<std::vector<std::string>> rows = {
      {absl::StrCat("RUN OF ", LengthText(input.length)), "MEAN", "10 %", "90 %"},
      {"goodput", Percents(run.goodput.mean), Percents(run.goodput.low),
       Percents(run.goodput.high)},
      {"steps", absl::StrFormat("%.0f", run.steps.mean), absl::StrFormat("%.0f", run.steps.low),
       absl::StrFormat("%.0f", run.steps.high)},
      {"failures", absl::StrFormat("%.1f", run.failures.mean),
       absl::StrFormat("%.0f", run.failures.low), absl::StrFormat("%.0f", run.failures.high)}};
  std::string text = Table(rows);
  absl::StrAppend(&text, run.runs, " runs drawn with seed ", forecast.seed, "; a failure every ",
                  LengthText(input.faults.MeanToFailure()), " on ", input.faults.nodes,
                  input.faults.nodes == 1 ? " node" : " nodes", "\n\n");
  rows = {{"WHERE ITS TIME GOES", "", ""}};
  for (const PartOfRun& part : kPartsOfRun) {
    // Rounding may leave a little less than nothing.
    const double seconds = std::max(0.0, run.mean.*part.seconds);
    rows.push_back({part.name, LengthText(seconds), Percents(seconds / input.length)});
  }
  absl::StrAppend(&text, Table(rows), "\n", IntervalsText(forecast));
  if (const double days = DaysOfTokens(forecast); days > 0) {
    absl::StrAppendFormat(&text, "\n%.4g tokens at this goodput: %.1f days\n", forecast.tokens,
                          days);
  }
  if (forecast.assumed.empty()) return text;
  rows = {{"ASSUMED (faults)", "", "SOURCE"}};
  for (const Assumption& each : forecast.assumed)
    rows.push_back({each.key, each.value, each.source});
  return absl::StrCat(text, "\n", Table(rows));
}

ordered_json ForecastJson(const RunForecast& forecast) {
  const Forecast& run = OfTheJob(forecast);
  ordered_json seconds;
  for (const PartOfRun& part : kPartsOfRun) seconds[part.key] = run.mean.*part.seconds;
  ordered_json intervals = ordered_json::array();
  for (const IntervalChoice& choice : forecast.intervals) {
    const bool saves = choice.seconds > 0;
    intervals.push_back(
        {{"name", choice.key},
         {"steps",
          choice.interval.steps > 0 ? ordered_json(choice.interval.steps) : ordered_json()},
         {"seconds", saves ? ordered_json(choice.seconds) : ordered_json()},
         {"goodput", choice.forecast.goodput.mean},
         {"expected_goodput", saves ? ordered_json(choice.expected_goodput) : ordered_json()}});
  }
  ordered_json assumed = ordered_json::array();
  for (const Assumption& each : forecast.assumed) {
    assumed.push_back({{"key", each.key}, {"value", each.value}, {"source", each.source}});
  }
  const double days = DaysOfTokens(forecast);
  return {{"length_seconds", forecast.input.length},
          {"runs", run.runs},
          {"seed", forecast.seed},
          {"nodes", forecast.input.faults.nodes},
          {"seconds_to_failure", forecast.input.faults.MeanToFailure()},
          {"goodput", SpreadJson(run.goodput)},
          {"steps", SpreadJson(run.steps)},
          {"failures", SpreadJson(run.failures)},
          {"seconds", seconds},
          {"checkpoint_pause_seconds", forecast.input.checkpoint_pause},
          {"checkpoint_written_seconds", forecast.input.checkpoint_written},
          {"intervals", intervals},
          {"days", days > 0 ? ordered_json(days) : ordered_json()},
          {"assumed", assumed}};
}

}  // namespace tercio::cli
