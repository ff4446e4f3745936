#include "cli/format.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/evaluation_json.h"
#include "cli/evaluation_text.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "plan/epochs.h"
#include "plan/names.h"
#include "plan/numerics.h"
#include "plan/objective_figures.h"
#include "plan/quality.h"
#include "plan/stage_layers.h"
#include "plan/state_digest.h"
#include "plan/state_shards.h"

namespace tercio::cli {
namespace {

// Numbers that JSON cannot hold become null.
Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// An empty text would look like a value that somebody has chosen.
Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// As in a job file: true, false, or a number of ranks.
Json ReshardToJson(int ranks) {
  if (ranks > plan::kKeepsWeights) return ranks;
  return ranks != plan::kKeepsWeights;
}

// Null: as many for each stage.
Json StageLayersToJson(const v1::Layout& layout) {
  const auto& layers = layout.stage_layers();
  return layers.empty() ? Json(nullptr) : Json(std::vector<int>(layers.begin(), layers.end()));
}

Json PredictionToJson(const v1::Prediction& predicted) {
  return {{"step_seconds", NumberOrNull(predicted.step_seconds())},
          {"tflops_per_gpu", NumberOrNull(predicted.tflops_per_gpu())},
          {"mfu", NumberOrNull(predicted.mfu())},
          {"tokens_per_second", NumberOrNull(predicted.tokens_per_second())},
          {"memory_bytes_peak", predicted.memory_bytes_peak()},
          {"bubble_ratio", NumberOrNull(predicted.bubble_ratio())}};
}

Json StepPartsToJson(const v1::StepParts& parts) {
  return {{"compute", parts.compute()},
          {"tensor_communication", parts.tensor_communication()},
          {"recompute", parts.recompute()},
          {"pipeline_bubble", parts.pipeline_bubble()},
          {"pipeline_transfers", parts.pipeline_transfers()},
          {"data_exposed", parts.data_exposed()},
          {"optimizer", parts.optimizer()},
          {"offload", parts.offload()},
          {"other", parts.other()}};
}

Json PhasesToJson(const v1::PhaseSeconds& phases) {
  return {{"forward", phases.forward()},
          {"backward", phases.backward()},
          {"wait", phases.wait()},
          {"optimizer", phases.optimizer()},
          {"data", phases.data()},
          {"checkpoint", phases.checkpoint()},
          {"evaluation", phases.evaluation()},
          {"other", phases.other()}};
}

Json CommunicationToJson(const v1::CommunicationBytes& bytes) {
  return {{"tensor", bytes.tensor()},
          {"pipeline", bytes.pipeline()},
          {"data", bytes.data()},
          {"world", bytes.world()}};
}

// Figures of a rank that has not completed a step are null.
Json RankToJson(const v1::RankView& rank) {
  Json json = {{"rank", rank.rank()}, {"tensor", rank.tensor()}, {"pipeline", rank.pipeline()},
               {"data", rank.data()}, {"node", rank.node()},     {"device", rank.device()}};
  // Every key is there from the start, so that programs need not ask which exist.
  for (const char* key : {"step", "step_seconds", "phases", "cpu_ratio", "wait_ratio", "memory",
                          "device_utilization", "communication"}) {
    json[key] = nullptr;
  }
  if (!rank.has_figures()) return json;
  const v1::RankFigures& figures = rank.figures();
  json["step"] = figures.step();
  json["step_seconds"] = NumberOrNull(figures.step_seconds());
  json["phases"] = PhasesToJson(figures.phases());
  // Before any time has passed there is no ratio.
  if (figures.elapsed_seconds() > 0) {
    json["cpu_ratio"] = NumberOrNull(figures.cpu_seconds() / figures.elapsed_seconds());
    json["wait_ratio"] = NumberOrNull(figures.phases().wait() / figures.elapsed_seconds());
  }
  json["memory"] = {{"planned", figures.planned_bytes()},
                    {"used", figures.used_bytes()},
                    {"peak", figures.peak_bytes()},
                    {"resident", figures.resident_bytes()}};
  if (figures.has_device_utilization()) {
    json["device_utilization"] = NumberOrNull(figures.device_utilization());
  }
  // Trainers of versions that did not count them report none.
  if (figures.has_communication()) {
    json["communication"] = CommunicationToJson(figures.communication());
  }
  return json;
}

double Seconds(const google::protobuf::Timestamp& time) {
  // Times of the API have two parts; calculations want one number.
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

}  // namespace

Json LayoutToJson(const v1::Layout& layout) {
  // Jobs of older versions leave keys at 0 or empty; programs get what that means.
  return {
      {"tensor", layout.tensor()},
      {"pipeline", layout.pipeline()},
      {"virtual_pipeline", std::max(1, layout.virtual_pipeline())},
      {"stage_layers", StageLayersToJson(layout)},
      {"context_parallel", std::max(1, layout.context_parallel())},
      {"data", layout.data()},
      {"micro_batch", layout.micro_batch()},
      {"sequence_parallel", layout.sequence_parallel()},
      {"zero_stage", layout.zero_stage()},
      {"shard", layout.shard() > 0 ? Json(layout.shard()) : Json(nullptr)},
      {"reshard_after_forward", ReshardToJson(layout.reshard_after_forward())},
      {"prefetch", plan::PrefetchOf(layout)},
      {"offload_share", layout.has_offload_share() ? Json(layout.offload_share()) : Json(nullptr)},
      {"recompute",
       plan::TextOf(plan::IsNamed(layout.recompute()) ? layout.recompute() : v1::RECOMPUTE_NONE)}};
}

std::string SettingsText(const v1::Layout& layout) {
  std::vector<std::string> settings;
  if (layout.virtual_pipeline() > 1) {
    settings.push_back(absl::StrCat("virtual_pipeline ", layout.virtual_pipeline()));
  }
  if (layout.sequence_parallel()) settings.emplace_back("sequence_parallel");
  if (layout.zero_stage() > 0) {
    settings.push_back(absl::StrCat("zero_stage ", layout.zero_stage()));
  }
  if (layout.recompute() > v1::RECOMPUTE_NONE) {
    settings.push_back(absl::StrCat("recompute ", plan::TextOf(layout.recompute())));
  }
  return absl::StrJoin(settings, ", ");
}

std::string PipelineText(const v1::Layout& layout) {
  const std::string layers = plan::StageLayersText(layout);
  return absl::StrCat(layout.pipeline(), layers.empty() ? "" : absl::StrCat(" (", layers, ")"));
}

std::string StateName(v1::JobState state) {
  return absl::AsciiStrToLower(v1::JobState_Name(state).substr(10));  // after JOB_STATE_
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

int ExitCodeOfState(v1::JobState state) {
  // Scripts tell apart what happened by the exit code alone.
  if (state == v1::JOB_STATE_SUCCEEDED) return kExitOk;
  return state == v1::JOB_STATE_CANCELLED ? kExitCancelled : kExitJobFailed;
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  // A time that is not set has no text, which JSON shows as null.
  if (time.seconds() == 0) return "";
  const absl::Time at = absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

namespace {

Json TroubleToJson(const v1::JobStatus& job) {
  if (!job.has_checkpoint_trouble()) return nullptr;
  const v1::CheckpointTrouble& trouble = job.checkpoint_trouble();
  return {{"since", TextOrNull(TimeText(trouble.since()))},
          {"failures", trouble.failures()},
          {"error", trouble.error()}};
}

Json EvaluationsToJson(const v1::JobStatus& job) {
  const auto known = [&job](bool has, const v1::Evaluation& evaluation) {
    return has ? EvaluationToJson(evaluation, job.spec().model()) : Json(nullptr);
  };
  return {{"validation", known(job.has_validation(), job.validation())},
          {"test", known(job.has_test(), job.test())},
          {"best_step", job.best_step() > 0 ? Json(job.best_step()) : Json(nullptr)},
          // Why the test data was not evaluated with the weights of the best step.
          {"problem", TextOrNull(job.test().problem())}};
}

Json LoadingToJson(const v1::JobStatus& job) {
  if (!job.has_loading()) return nullptr;
  return {{"bytes", job.loading().bytes()}, {"total_bytes", job.loading().total_bytes()}};
}

}  // namespace

Json JobToJson(const v1::JobStatus& job) {
  // The order of keys is part of what people see, so that JSON keeps it.
  Json json = {{"id", job.id()},
               {"name", job.name()},
               {"owner", TextOrNull(job.owner())},
               {"state", StateName(job.state())},
               {"step", job.step()},
               {"steps", KnowsSteps(job) ? Json(job.steps()) : Json(nullptr)}};
  // A key is always there: programs need not ask whether it exists.
  json["loss"] = job.has_loss() ? NumberOrNull(job.loss()) : Json(nullptr);
  json["validation_loss"] =
      job.has_validation_loss() ? NumberOrNull(job.validation_loss()) : Json(nullptr);
  json["tokens"] = job.tokens();
  json["tokens_per_second"] =
      job.has_tokens_per_second() ? NumberOrNull(job.tokens_per_second()) : Json(nullptr);
  json["mfu"] = job.has_mfu() ? NumberOrNull(job.mfu()) : Json(nullptr);
  json["eta_seconds"] = job.has_eta_seconds() ? NumberOrNull(job.eta_seconds()) : Json(nullptr);
  json["restarts"] = job.restarts();
  json["attempt"] = job.attempt();
  json["plan"] = nullptr;
  if (job.has_plan()) {
    json["plan"] = LayoutToJson(job.plan().layout());
    json["plan"]["schedule"] = plan::TextOf(job.plan().layout().schedule());
    json["plan"]["micro_batches"] = job.plan().layout().micro_batches();
    json["plan"]["lanes"] = job.plan().lanes();
    json["plan"]["numerics"] = plan::RecordedNumerics(job.plan().numerics());
    json["plan"]["collectives"] = TextOrNull(plan::TextOf(job.plan().collectives()));
    // Placements of ranks are what schedulers and dashboards look for.
    Json ranks = Json::array();
    for (const v1::RankPlacement& rank : job.plan().ranks()) {
      ranks.push_back({{"rank", rank.rank()}, {"node", rank.node()}, {"device", rank.device()}});
    }
    json["plan"]["ranks"] = ranks;
  }
  json["predicted"] =
      job.plan().has_predicted() ? PredictionToJson(job.plan().predicted()) : Json(nullptr);
  json["ranks"] = nullptr;
  if (job.ranks_size() > 0) {
    // null means that ranks were not asked for, or that there are none yet.
    json["ranks"] = Json::array();
    for (const v1::RankView& rank : job.ranks()) json["ranks"].push_back(RankToJson(rank));
  }
  json["checkpoint"] = nullptr;
  if (job.has_checkpoint()) {
    json["checkpoint"] = {{"step", job.checkpoint().step()}, {"path", job.checkpoint().path()}};
  }
  json["evaluation"] = EvaluationsToJson(job);
  json["checkpoint_trouble"] = TroubleToJson(job);
  json["loading"] = LoadingToJson(job);
  json["checkpoint_unreadable"] = TextOrNull(job.checkpoint_unreadable());
  json["error"] = TextOrNull(job.error());
  json["last_lines"] = Json::array();
  for (const v1::LogLine& line : job.last_lines()) json["last_lines"].push_back(LogToJson(line));
  // Only a job that is queued has a place.
  json["queue_position"] = job.queue_position() > 0 ? Json(job.queue_position()) : Json(nullptr);
  const v1::Goodput& goodput = job.goodput();
  json["goodput"] = {{"total", goodput.total()},
                     {"productive", goodput.productive()},
                     {"queued", goodput.queued()},
                     {"starting", goodput.starting()},
                     {"checkpoint_stall", goodput.checkpoint_stall()},
                     {"lost_work", goodput.lost_work()},
                     {"restarting", goodput.restarting()},
                     {"degraded", goodput.degraded()},
                     {"stopped", goodput.stopped()}};
  json["submitted_at"] = TextOrNull(TimeText(job.submitted_at()));
  json["started_at"] = TextOrNull(TimeText(job.started_at()));
  json["finished_at"] = TextOrNull(TimeText(job.finished_at()));
  return json;
}

namespace {

// Other objectives than dpo, orpo and kto have none of these keys.
void AddFigures(const std::string& prefix, bool known, const v1::ObjectiveFigures& figures,
                Json* json) {
  if (!known) return;
  for (const plan::ObjectiveFigure& figure : plan::ObjectiveFigureList()) {
    const std::optional<double> value = figure.value(figures);
    if (value.has_value()) (*json)[prefix + std::string(figure.name)] = NumberOrNull(*value);
  }
}

}  // namespace

// These keys are a contract with scripts: new ones may be added, none is renamed.
Json StepToJson(const v1::StepRecord& step) {
  Json json = {{"step", step.step()},
               {"attempt", step.attempt()},
               {"loss", NumberOrNull(step.loss())},
               {"grad_norm", NumberOrNull(step.grad_norm())},
               {"learning_rate", NumberOrNull(step.learning_rate())},
               {"tokens", step.tokens()},
               {"step_seconds", NumberOrNull(step.step_seconds())}};
  // NaN is no JSON number, and a diverged run has many.
  json["validation_loss"] =
      step.has_validation_loss() ? NumberOrNull(step.validation_loss()) : Json(nullptr);
  // Scores of classifiers, as far as they were asked for.
  for (const v1::QualityMetric metric : {v1::QUALITY_METRIC_ACCURACY, v1::QUALITY_METRIC_PRECISION,
                                         v1::QUALITY_METRIC_RECALL, v1::QUALITY_METRIC_F1}) {
    const std::optional<double> value = plan::ValueOf(metric, step);
    json["validation_" + plan::TextOf(metric)] =
        value.has_value() ? NumberOrNull(*value) : Json(nullptr);
  }
  AddFigures("", step.has_figures(), step.figures(), &json);
  AddFigures("validation_", step.has_validation_figures(), step.validation_figures(), &json);
  // Figures of rank 0; earlier versions did not report them.
  json["resident_bytes"] = step.resident_bytes() > 0 ? Json(step.resident_bytes()) : Json(nullptr);
  json["used_bytes"] = step.used_bytes() > 0 ? Json(step.used_bytes()) : Json(nullptr);
  // These keys are rare; in each of a million lines they would only take room.
  if (step.skipped()) json["skipped"] = true;
  if (!step.spike().empty()) json["spike"] = step.spike();
  if (step.has_loss_scale()) json["loss_scale"] = step.loss_scale();
  if (step.has_state_digest()) json["state_digest"] = plan::StateDigestText(step.state_digest());
  return json;
}

namespace {

// JSON has no NaN, so that a diverged loss was written as null.
double NumberAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : std::nan("");
}

int64_t IntegerAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

}  // namespace

std::optional<v1::StepRecord> StepFromJson(const Json& json) {
  if (!json.is_object() || IntegerAt(json, "step") <= 0) return std::nullopt;
  v1::StepRecord step;
  step.set_step(IntegerAt(json, "step"));
  step.set_attempt(static_cast<int32_t>(IntegerAt(json, "attempt")));
  step.set_loss(NumberAt(json, "loss"));
  step.set_grad_norm(NumberAt(json, "grad_norm"));
  step.set_learning_rate(NumberAt(json, "learning_rate"));
  step.set_tokens(IntegerAt(json, "tokens"));
  step.set_step_seconds(NumberAt(json, "step_seconds"));
  step.set_resident_bytes(IntegerAt(json, "resident_bytes"));
  step.set_used_bytes(IntegerAt(json, "used_bytes"));
  // A missing value must not become a point at zero.
  if (std::isfinite(NumberAt(json, "validation_loss"))) {
    step.set_validation_loss(NumberAt(json, "validation_loss"));
  }
  if (const auto digest = json.find("state_digest"); digest != json.end() && digest->is_string()) {
    const auto known = plan::ParseStateDigest(digest->get_ref<const std::string&>());
    if (known.has_value()) step.set_state_digest(*known);
  }
  const std::pair<const char*, void (v1::StepRecord::*)(double)> scores[] = {
      {"validation_accuracy", &v1::StepRecord::set_validation_accuracy},
      {"validation_precision", &v1::StepRecord::set_validation_precision},
      {"validation_recall", &v1::StepRecord::set_validation_recall},
      {"validation_f1", &v1::StepRecord::set_validation_f1}};
  for (const auto& [key, set] : scores) {
    const double value = NumberAt(json, key);
    if (std::isfinite(value)) (step.*set)(value);
  }
  for (const plan::ObjectiveFigure& figure : plan::ObjectiveFigureList()) {
    const std::string name(figure.name);
    const double value = NumberAt(json, name.c_str());
    if (std::isfinite(value)) figure.set(value, step.mutable_figures());
    const double held_out = NumberAt(json, ("validation_" + name).c_str());
    if (std::isfinite(held_out)) figure.set(held_out, step.mutable_validation_figures());
  }
  return step;
}

Json EventToJson(const v1::JobEvent& event) {
  return {{"time", TextOrNull(TimeText(event.time()))},
          {"job", event.job_id()},
          {"attempt", event.attempt()},
          {"kind", event.kind()},
          {"message", event.message()},
          {"node", TextOrNull(event.node())},
          // Rank 0 is a rank, so that a missing one needs another value.
          {"rank", event.rank() < 0 ? Json(nullptr) : Json(event.rank())}};
}

Json LogToJson(const v1::LogLine& line) {
  return {{"time", TextOrNull(TimeText(line.time()))},
          {"attempt", line.attempt()},
          {"rank", line.rank()},
          {"node", line.node()},
          {"level", TextOrNull(line.level())},
          {"line", line.line()}};
}

Json FaultyDevicesToJson(const v1::Node& node) {
  Json devices = Json::array();
  // The list is empty rather than absent where all devices are well.
  for (const v1::FaultyDevice& faulty : node.faulty_devices()) {
    devices.push_back({{"device", faulty.device()}, {"fault", faulty.fault()}});
  }
  return devices;
}

Json NodeToJson(const v1::Node& node) {
  return {{"name", node.name()},
          {"address", TextOrNull(node.address())},
          {"state", node.state()},
          {"version", TextOrNull(node.version())},
          {"metrics_address", TextOrNull(node.metrics_address())},
          {"devices", node.devices()},
          {"free", node.free()},
          {"faulty_devices", FaultyDevicesToJson(node)},
          {"reason", TextOrNull(node.reason())},
          {"figures", node.has_figures() ? FiguresToJson(node.figures()) : Json(nullptr)}};
}

Json FiguresToJson(const v1::MachineFigures& figures) {
  Json products = Json::array();
  for (const v1::ProductRate& rate : figures.products()) {
    products.push_back({{"m", rate.m()},
                        {"n", rate.n()},
                        {"k", rate.k()},
                        {"format", rate.format()},
                        {"flops_per_second", rate.flops_per_second()}});
  }
  Json attention = Json::array();
  for (const v1::AttentionRate& rate : figures.attention()) {
    attention.push_back({{"tokens", rate.tokens()},
                         {"heads", rate.heads()},
                         {"head_dim", rate.head_dim()},
                         {"forward_flops_per_second", rate.forward_flops_per_second()},
                         {"backward_flops_per_second", rate.backward_flops_per_second()}});
  }
  return {{"device", figures.device()},
          {"devices", figures.devices()},
          {"threads", figures.threads()},
          {"products", products},
          {"attention", attention},
          {"memory_bytes_per_second", figures.memory_bytes_per_second()},
          {"norm_bytes_per_second", figures.norm_bytes_per_second()},
          {"activation_bytes_per_second", figures.activation_bytes_per_second()},
          {"loss_bytes_per_second", figures.loss_bytes_per_second()},
          {"update_bytes_per_second", figures.update_bytes_per_second()},
          {"operation_seconds", figures.operation_seconds()},
          {"thread_share", figures.thread_share()},
          {"link_bytes_per_second", figures.link_bytes_per_second()},
          {"link_seconds", figures.link_seconds()},
          {"step_seconds", figures.step_seconds()},
          {"reference_step_seconds", figures.reference_step_seconds()},
          {"recorded", TextOrNull(TimeText(figures.recorded()))}};
}

Json CheckpointToJson(const v1::CheckpointInfo& checkpoint) {
  return {{"job", checkpoint.job_id()},
          {"step", checkpoint.step()},
          {"path", checkpoint.path()},
          {"bytes", checkpoint.bytes()},
          // Checkpoints of early versions did not record their attempt.
          {"attempt", checkpoint.attempt() > 0 ? Json(checkpoint.attempt()) : Json(nullptr)},
          {"committed_at", TextOrNull(TimeText(checkpoint.committed_at()))},
          {"verified_at", TextOrNull(TimeText(checkpoint.verified_at()))},
          {"best", checkpoint.best()},
          {"problem", TextOrNull(checkpoint.problem())}};
}

Json PlanReportToJson(const v1::PlanReport& report) {
  Json layouts = Json::array();
  // Rejected layouts are listed with their reasons, so that nobody has to guess.
  for (const v1::LayoutCandidate& candidate : report.layouts()) {
    Json json = LayoutToJson(candidate.layout());
    json["rejected"] = TextOrNull(candidate.rejected());
    json["predicted"] = nullptr;
    json["time"] = nullptr;
    if (candidate.predicted_valid()) {
      json["predicted"] = PredictionToJson(candidate.predicted());
      json["time"] = StepPartsToJson(candidate.predicted().parts());
    }
    layouts.push_back(json);
  }
  Json divisions = Json::array();
  for (const v1::Division& division : report.divisions()) {
    divisions.push_back({{"zero_stage", division.zero_stage()},
                         {"rejected", TextOrNull(division.rejected())},
                         {"memory_bytes_peak", division.memory_bytes_peak()},
                         {"state_bytes", division.state_bytes()},
                         {"bytes_per_parameter", division.bytes_per_parameter()},
                         {"sent_bytes_per_step", division.sent_bytes_per_step()}});
  }
  // A rejected layout has a reason but no rank in the order.
  return {{"layouts", layouts},
          {"divisions", divisions},
          {"chosen", report.chosen() < 0 ? Json(nullptr) : Json(report.chosen())}};
}

std::string DurationText(double seconds) {
  // Clocks that were set may make a duration negative.
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrCat(whole / 60, "m", whole % 60, "s");
  return absl::StrCat(whole / 3600, "h", whole % 3600 / 60, "m");
}

std::string LoadingText(const v1::LoadProgress& loading) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  double scale = 1;
  size_t unit = 0;
  const auto total = static_cast<double>(loading.total_bytes());
  // The unit is that of the total, so that it does not change while the number grows.
  for (; total >= 1000 * scale && unit + 1 < std::size(units); ++unit) scale *= 1000;
  const int digits = unit == 0 ? 0 : 1;
  return absl::StrFormat("loading %.*f of %.*f %s", digits,
                         static_cast<double>(loading.bytes()) / scale, digits, total / scale,
                         units[unit]);
}

namespace {

// "  epoch 2/3"
std::string EpochText(const v1::JobStatus& job) {
  const v1::TrainingSpec& training = job.spec().training();
  if (training.epochs() <= 0) return "";
  if (job.train_samples() <= 0) return absl::StrFormat("  epoch 1/%d", training.epochs());
  const int64_t ended = plan::EpochsEndedBy(training, job.train_samples(), job.step());
  return absl::StrFormat("  epoch %d/%d", std::min(ended + 1, training.epochs()),
                         training.epochs());
}

// Scores of a classifier's last evaluation; those of the test data take their place at the end.
std::string ScoresText(const v1::JobStatus& job) {
  const v1::Evaluation& last = job.has_test() ? job.test() : job.validation();
  std::string text =
      job.has_test() ? absl::StrFormat("  test %.4f", job.test().loss()) : std::string();
  if (!plan::IsConfusion(last.confusion())) return text;
  const plan::Quality quality = plan::QualityOf(last.confusion());
  return absl::StrFormat("%s  accuracy %.4f  f1 %.4f", text, quality.accuracy, quality.overall.f1);
}

}  // namespace

std::string ProgressLine(const v1::JobStatus& job, double now) {
  std::string line = StateName(job.state());
  if (job.has_loading()) absl::StrAppend(&line, "  ", LoadingText(job.loading()));
  // A job that is only submitted has no steps to divide by.
  const double percent =
      job.steps() > 0 ? 100.0 * static_cast<double>(job.step()) / static_cast<double>(job.steps())
                      : 0;
  absl::StrAppendFormat(&line, "  step %d/%s  %.1f%%", job.step(),
                        KnowsSteps(job) ? absl::StrCat(job.steps()) : "?", percent);
  absl::StrAppend(&line, EpochText(job));
  if (job.has_loss()) absl::StrAppendFormat(&line, "  loss %.4f", job.loss());
  if (job.has_validation_loss()) {
    absl::StrAppendFormat(&line, "  validation %.4f", job.validation_loss());
  }
  absl::StrAppend(&line, ScoresText(job));
  if (job.has_tokens_per_second()) {
    absl::StrAppendFormat(&line, "  %.0f tok/s", job.tokens_per_second());
    if (job.has_mfu()) absl::StrAppendFormat(&line, "  MFU %.1f%%", 100 * job.mfu());
  }
  // The coordinator computes this: a rate between two calls would jump.
  if (job.has_eta_seconds()) absl::StrAppend(&line, "  ETA ", DurationText(job.eta_seconds()));
  if (job.restarts() > 0) absl::StrAppend(&line, "  restarts ", job.restarts());
  // Without a time of its commit nothing can be said about its age.
  if (job.has_checkpoint() && job.checkpoint().committed_at().seconds() > 0) {
    absl::StrAppend(&line, "  checkpoint ",
                    DurationText(now - Seconds(job.checkpoint().committed_at())), " ago");
  }
  // Failing saves are shown before the job fails: then it is too late.
  if (job.has_checkpoint_trouble()) {
    absl::StrAppend(&line, "  checkpoints failing for ",
                    DurationText(now - Seconds(job.checkpoint_trouble().since())));
  }
  return line;
}

namespace {

std::string Share(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f%%", 100 * part / whole) : "-";
}

}  // namespace

// The shares are of the time of the loop, as in the report.
std::string RankTable(const v1::JobStatus& job, size_t most) {
  std::vector<std::vector<std::string>> rows = {
      {"RANK", "STAGE", "TENSOR", "DATA", "NODE", "STEP", "FORWARD", "BACKWARD", "WAIT",
       "OPTIMIZER", "DATA IN", "CHECKPOINT", "EVALUATION", "OTHER", "CPU", "MEMORY"}};
  for (const v1::RankView& rank : job.ranks()) {
    // A table of thousands of ranks would scroll everything else away.
    if (rows.size() > most) break;
    std::vector<std::string> row = {absl::StrCat(rank.rank()), absl::StrCat(rank.pipeline()),
                                    absl::StrCat(rank.tensor()), absl::StrCat(rank.data()),
                                    rank.node()};
    // An absent message reads as zeros, whose shares are shown as a dash.
    const v1::RankFigures& figures = rank.figures();
    const v1::PhaseSeconds& phases = figures.phases();
    const double all = figures.elapsed_seconds();
    row.push_back(rank.has_figures() ? absl::StrCat(figures.step()) : "-");
    for (const double part :
         {phases.forward(), phases.backward(), phases.wait(), phases.optimizer(), phases.data(),
          phases.checkpoint(), phases.evaluation(), phases.other(), figures.cpu_seconds()}) {
      row.push_back(Share(part, all));
    }
    row.push_back(rank.has_figures() ? SizeText(figures.resident_bytes()) : "-");
    rows.push_back(std::move(row));
  }
  std::string text = Table(rows);
  const size_t all = static_cast<size_t>(job.ranks_size());
  if (all > most) absl::StrAppend(&text, "and ", all - most, " more ranks (-o json has all)\n");
  return text;
}

std::string SizeText(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes);
  size_t unit = 0;
  // Bytes of files and memory are counted in powers of two, as tools of the system do.
  while (size >= 1024 && unit + 1 < std::size(units)) {
    size /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, size, units[unit]);
}

}  // namespace tercio::cli
