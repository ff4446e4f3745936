#include "cli/compare/method.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/evaluation_json.h"
#include "cli/report/numbers.h"
#include "common/version.h"
#include "plan/epochs.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/planner/largest.h"

namespace tercio::compare {
namespace {

constexpr double kSecondsOfHour = 3600;

template <typename T>
std::optional<double> AsNumber(const std::optional<T>& value) {
  if (!value.has_value()) return std::nullopt;
  return static_cast<double>(*value);
}

// A count of 0 was not reported.
std::optional<double> CountIfKnown(int64_t count) {
  if (count <= 0) return std::nullopt;
  return static_cast<double>(count);
}

MethodState StateOf(const v1::JobStatus& status) {
  switch (status.state()) {
    case v1::JOB_STATE_SUCCEEDED:
      return MethodState::kSucceeded;
    case v1::JOB_STATE_FAILED:
      return MethodState::kFailed;
    case v1::JOB_STATE_CANCELLED:
      return MethodState::kCancelled;
    case v1::JOB_STATE_UNSPECIFIED:
    case v1::JOB_STATE_QUEUED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_RESTARTING:
    case v1::JobState_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::JobState_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return MethodState::kNotRun;
}

// The sum of the steps of each epoch that has ended. A batch that ends several shares its time
// among them.
std::vector<double> SecondsOfEpochs(const report::JobData& job) {
  const int64_t samples = job.status.train_samples();
  std::vector<double> epochs;
  if (samples <= 0) return epochs;
  double seconds = 0;
  for (const v1::StepRecord& step : job.steps) {
    if (std::isfinite(step.step_seconds())) seconds += step.step_seconds();
    const int64_t ended = plan::EpochsEndedBy(job.status.spec().training(), samples, step.step()) -
                          static_cast<int64_t>(epochs.size());
    if (ended <= 0) continue;
    epochs.insert(epochs.end(), static_cast<size_t>(ended), seconds / static_cast<double>(ended));
    seconds = 0;
  }
  return epochs;
}

// Ranks count their own time; over several attempts only the coordinator does.
std::optional<double> SecondsOfTraining(const v1::JobStatus& status) {
  double seconds = 0;
  for (const v1::RankView& rank : status.ranks()) {
    seconds = std::max(seconds, rank.figures().elapsed_seconds());
  }
  if (status.attempt() > 1) {
    const v1::Goodput& goodput = status.goodput();
    seconds = goodput.productive() + goodput.degraded() + goodput.checkpoint_stall();
  }
  return seconds > 0 ? std::optional<double>(seconds) : std::nullopt;
}

void AddLargest(const v1::JobStatus& status, Method* method) {
  const v1::Plan& plan = status.plan();
  const int64_t memory = plan.predicted().memory_bytes_available();
  if (memory <= 0 || status.spec().model().vocab_size() <= 0) return;
  const auto largest =
      plan::LargestModelThatFits(status.spec(), plan.layout(), plan.threads_per_rank(), memory);
  if (!largest.has_value()) return;
  method->largest_layers = largest->layers;
  method->largest_hidden = largest->hidden;
  method->largest_parameters = static_cast<double>(largest->parameters);
  method->largest_bytes = static_cast<double>(largest->memory_bytes);
}

void AddNumbers(const report::JobData& job, Method* method) {
  const report::Numbers numbers = report::NumbersOf(job);
  method->steps = CountIfKnown(numbers.steps);
  if (numbers.step_seconds.has_value()) {
    method->step_median = numbers.step_seconds->median;
    method->step_p10 = numbers.step_seconds->p10;
    method->step_p90 = numbers.step_seconds->p90;
    if (method->step_median > 0) {
      method->samples_per_second =
          static_cast<double>(job.status.spec().training().global_batch()) / *method->step_median;
    }
  }
  method->micro_batch_seconds = numbers.micro_batch_seconds;
  method->tokens_per_second = numbers.tokens_per_second;
  method->cores_used = numbers.cores_used;
  method->device_utilization = numbers.device_utilization;
  method->planned_bytes = AsNumber(numbers.planned_bytes_total);
  method->used_bytes = AsNumber(numbers.used_bytes_total);
  method->resident_bytes = AsNumber(numbers.resident_bytes_total);
  if (numbers.communication.has_value()) {
    method->sent_tensor = static_cast<double>(numbers.communication->tensor());
    method->sent_pipeline = static_cast<double>(numbers.communication->pipeline());
    method->sent_data = static_cast<double>(numbers.communication->data());
    method->sent_world = static_cast<double>(numbers.communication->world());
  }
  method->sent_per_step = numbers.communication_bytes_per_step;
  method->wait_share = numbers.wait_share;
  method->final_loss = numbers.final_loss;
  method->validation_loss = numbers.validation_loss;
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Every number that a run measures or knows.
using NumberField = std::optional<double> Method::*;
constexpr NumberField kNumberFields[] = {&Method::parameters,
                                         &Method::global_batch,
                                         &Method::epochs,
                                         &Method::steps,
                                         &Method::samples_per_epoch,
                                         &Method::seconds,
                                         &Method::step_median,
                                         &Method::step_p10,
                                         &Method::step_p90,
                                         &Method::micro_batch_seconds,
                                         &Method::samples_per_second,
                                         &Method::tokens_per_second,
                                         &Method::cores_used,
                                         &Method::device_utilization,
                                         &Method::planned_bytes,
                                         &Method::used_bytes,
                                         &Method::resident_bytes,
                                         &Method::sent_tensor,
                                         &Method::sent_pipeline,
                                         &Method::sent_data,
                                         &Method::sent_world,
                                         &Method::sent_per_step,
                                         &Method::wait_share,
                                         &Method::final_loss,
                                         &Method::validation_loss,
                                         &Method::largest_layers,
                                         &Method::largest_hidden,
                                         &Method::largest_parameters,
                                         &Method::largest_bytes};

void TakeMedians(const std::vector<const Method*>& runs, Method* method) {
  for (const NumberField field : kNumberFields) {
    std::vector<double> values;
    for (const Method* run : runs) {
      if ((run->*field).has_value()) values.push_back(*(run->*field));
    }
    if (!values.empty()) method->*field = MedianOf(std::move(values));
  }
  for (size_t epoch = 0; epoch < method->epoch_seconds.size(); ++epoch) {
    std::vector<double> values;
    for (const Method* run : runs) {
      if (epoch < run->epoch_seconds.size()) values.push_back(run->epoch_seconds[epoch]);
    }
    method->epoch_seconds[epoch] = MedianOf(std::move(values));
  }
}

}  // namespace

std::string TextOf(MethodState state) {
  switch (state) {
    case MethodState::kSucceeded:
      return "succeeded";
    case MethodState::kFailed:
      return "failed";
    case MethodState::kCancelled:
      return "cancelled";
    case MethodState::kNotRun:
      break;
  }
  return "not run";
}

Method MethodOfJob(const std::string& name, const report::JobData& job) {
  const v1::JobStatus& status = job.status;
  const v1::JobSpec& spec = status.spec();
  Method method;
  method.name = name;
  method.software = absl::StrCat("tercio ", job.version.empty() ? kVersion : job.version);
  method.state = StateOf(status);
  method.error = status.error();
  if (method.state == MethodState::kNotRun && method.error.empty()) method.error = "not ended";
  method.job_id = status.id();
  if (status.has_plan()) {
    const v1::Layout& layout = status.plan().layout();
    method.layout =
        Degrees{layout.tensor(), layout.pipeline(), layout.data(), status.plan().ranks_size()};
  }
  method.device = plan::TextOf(spec.resources().device());
  method.precision = plan::TextOf(spec.training().precision());
  // The vocabulary is known once the data was prepared.
  if (spec.model().vocab_size() > 0) {
    method.parameters = static_cast<double>(plan::ParameterCount(spec.model()));
  }
  method.global_batch = CountIfKnown(spec.training().global_batch());
  method.epochs = CountIfKnown(spec.training().epochs());
  method.samples_per_epoch = CountIfKnown(status.train_samples());
  method.seconds = SecondsOfTraining(status);
  method.epoch_seconds = SecondsOfEpochs(job);
  AddNumbers(job, &method);
  if (status.has_plan()) AddLargest(status, &method);
  method.history = job.steps;
  if (status.has_validation()) {
    method.validation = cli::EvaluationToJson(status.validation(), spec.model());
  }
  if (status.has_test()) method.test = cli::EvaluationToJson(status.test(), spec.model());
  method.best_step = CountIfKnown(status.best_step());
  method.runs = {{method.job_id, method.state, method.error, method.seconds, method.step_median}};
  return method;
}

Method MethodWithoutJob(const std::string& name, MethodState state, const std::string& error) {
  Method method;
  method.name = name;
  method.software = absl::StrCat("tercio ", kVersion);
  method.state = state;
  method.error = error;
  method.runs = {{"", state, error, std::nullopt, std::nullopt}};
  return method;
}

Method Together(const std::vector<Method>& runs) {
  std::vector<const Method*> good;
  for (const Method& run : runs) {
    if (run.state == MethodState::kSucceeded) good.push_back(&run);
  }
  // Without a run that succeeded, the numbers of one that did not are better than none.
  Method method = good.empty() ? runs.front() : *good.front();
  if (!good.empty()) TakeMedians(good, &method);
  method.runs.clear();
  for (const Method& run : runs) {
    method.runs.insert(method.runs.end(), run.runs.begin(), run.runs.end());
    // The worst of them is what a reader has to know.
    if (run.state == MethodState::kSucceeded || method.state == MethodState::kFailed) continue;
    method.state = run.state;
    method.error = run.error;
  }
  return method;
}

const Method* BaseOf(const std::vector<Method>& methods) {
  const Method* base = nullptr;
  for (const Method& method : methods) {
    if (method.kind != MethodKind::kVariant || !method.layout.has_value() ||
        !method.samples_per_second.has_value()) {
      continue;
    }
    if (method.layout->ranks == 1) return &method;
    if (base == nullptr) base = &method;
  }
  return base;
}

void CompareSpeeds(std::vector<Method>* methods) {
  const Method* base = BaseOf(*methods);
  if (base == nullptr) return;
  const double rate = *base->samples_per_second;
  const int ranks = base->layout->ranks;
  for (Method& method : *methods) {
    if (!method.samples_per_second.has_value() || rate <= 0) continue;
    method.speed_up = *method.samples_per_second / rate;
    if (method.layout.has_value() && method.layout->ranks > 0) {
      method.efficiency = *method.speed_up * ranks / method.layout->ranks;
    }
  }
}

void AddCosts(double per_device_hour, std::vector<Method>* methods) {
  for (Method& method : *methods) {
    if (!method.seconds.has_value() || !method.layout.has_value()) continue;
    method.cost = *method.seconds / kSecondsOfHour * method.layout->ranks * per_device_hour;
  }
}

}  // namespace tercio::compare
