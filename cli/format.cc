#include "cli/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/daemon.h"

namespace tercio::cli {
namespace {

// Numbers that JSON cannot hold become null.
Json NumberOrNull(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json TextOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json LayoutToJson(const v1::Layout& layout) {
  return {{"tensor", layout.tensor()},
          {"pipeline", layout.pipeline()},
          {"virtual_pipeline", std::max(1, layout.virtual_pipeline())},
          {"context_parallel", std::max(1, layout.context_parallel())},
          {"data", layout.data()},
          {"micro_batch", layout.micro_batch()},
          {"sequence_parallel", layout.sequence_parallel()},
          {"zero_stage", layout.zero_stage()},
          {"recompute", layout.recompute().empty() ? "none" : layout.recompute()}};
}

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

}  // namespace

std::string StateName(v1::JobState state) {
  return absl::AsciiStrToLower(v1::JobState_Name(state).substr(10));  // after JOB_STATE_
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

int ExitCodeOfState(v1::JobState state) {
  if (state == v1::JOB_STATE_SUCCEEDED) return kExitOk;
  return state == v1::JOB_STATE_CANCELLED ? kExitCancelled : kExitJobFailed;
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "";
  const absl::Time at = absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

Json JobToJson(const v1::JobStatus& job) {
  Json json = {{"id", job.id()},
               {"name", job.name()},
               {"owner", TextOrNull(job.owner())},
               {"state", StateName(job.state())},
               {"step", job.step()},
               {"steps", job.steps()}};
  json["loss"] = job.has_loss() ? NumberOrNull(job.loss()) : Json(nullptr);
  json["validation_loss"] =
      job.has_validation_loss() ? NumberOrNull(job.validation_loss()) : Json(nullptr);
  json["tokens"] = job.tokens();
  json["tokens_per_second"] =
      job.has_tokens_per_second() ? NumberOrNull(job.tokens_per_second()) : Json(nullptr);
  json["mfu"] = job.has_mfu() ? NumberOrNull(job.mfu()) : Json(nullptr);
  json["restarts"] = job.restarts();
  json["attempt"] = job.attempt();
  json["plan"] = nullptr;
  if (job.has_plan()) {
    json["plan"] = LayoutToJson(job.plan().layout());
    json["plan"]["schedule"] = job.plan().layout().schedule();
    json["plan"]["micro_batches"] = job.plan().layout().micro_batches();
    json["plan"]["lanes"] = job.plan().lanes();
    json["plan"]["collectives"] = TextOrNull(job.plan().collectives());
    Json ranks = Json::array();
    for (const v1::RankPlacement& rank : job.plan().ranks()) {
      ranks.push_back({{"rank", rank.rank()}, {"node", rank.node()}, {"device", rank.device()}});
    }
    json["plan"]["ranks"] = ranks;
  }
  json["checkpoint"] = nullptr;
  if (job.has_checkpoint()) {
    json["checkpoint"] = {{"step", job.checkpoint().step()}, {"path", job.checkpoint().path()}};
  }
  json["error"] = TextOrNull(job.error());
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

Json StepToJson(const v1::StepRecord& step) {
  Json json = {{"step", step.step()},
               {"attempt", step.attempt()},
               {"loss", NumberOrNull(step.loss())},
               {"grad_norm", NumberOrNull(step.grad_norm())},
               {"learning_rate", NumberOrNull(step.learning_rate())},
               {"tokens", step.tokens()},
               {"step_seconds", NumberOrNull(step.step_seconds())}};
  json["validation_loss"] =
      step.has_validation_loss() ? NumberOrNull(step.validation_loss()) : Json(nullptr);
  if (step.skipped()) json["skipped"] = true;
  if (!step.spike().empty()) json["spike"] = step.spike();
  if (step.has_loss_scale()) json["loss_scale"] = step.loss_scale();
  return json;
}

Json EventToJson(const v1::JobEvent& event) {
  return {{"time", TextOrNull(TimeText(event.time()))},
          {"job", event.job_id()},
          {"attempt", event.attempt()},
          {"kind", event.kind()},
          {"message", event.message()},
          {"node", TextOrNull(event.node())},
          {"rank", event.rank() < 0 ? Json(nullptr) : Json(event.rank())}};
}

Json LogToJson(const v1::LogLine& line) {
  return {{"time", TextOrNull(TimeText(line.time()))},
          {"attempt", line.attempt()},
          {"rank", line.rank()},
          {"node", line.node()},
          {"line", line.line()}};
}

Json FaultyDevicesToJson(const v1::Node& node) {
  Json devices = Json::array();
  for (const v1::FaultyDevice& faulty : node.faulty_devices()) {
    devices.push_back({{"device", faulty.device()}, {"fault", faulty.fault()}});
  }
  return devices;
}

Json NodeToJson(const v1::Node& node) {
  return {{"name", node.name()},
          {"address", node.address()},
          {"state", node.state()},
          {"version", node.version()},
          {"metrics_address", node.metrics_address()},
          {"devices", node.devices()},
          {"free", node.free()},
          {"faulty_devices", FaultyDevicesToJson(node)},
          {"reason", TextOrNull(node.reason())}};
}

Json CheckpointToJson(const v1::CheckpointInfo& checkpoint) {
  return {{"job", checkpoint.job_id()},
          {"step", checkpoint.step()},
          {"path", checkpoint.path()},
          {"bytes", checkpoint.bytes()}};
}

Json PlanReportToJson(const v1::PlanReport& report) {
  Json layouts = Json::array();
  for (const v1::LayoutCandidate& candidate : report.layouts()) {
    Json json = LayoutToJson(candidate.layout());
    json["rejected"] = TextOrNull(candidate.rejected());
    json["predicted"] = nullptr;
    if (candidate.predicted_valid()) {
      const v1::Prediction& predicted = candidate.predicted();
      json["predicted"] = {{"step_seconds", NumberOrNull(predicted.step_seconds())},
                           {"tflops_per_gpu", NumberOrNull(predicted.tflops_per_gpu())},
                           {"mfu", NumberOrNull(predicted.mfu())},
                           {"tokens_per_second", NumberOrNull(predicted.tokens_per_second())},
                           {"memory_bytes_peak", predicted.memory_bytes_peak()},
                           {"bubble_ratio", NumberOrNull(predicted.bubble_ratio())}};
    }
    layouts.push_back(json);
  }
  return {{"layouts", layouts},
          {"chosen", report.chosen() < 0 ? Json(nullptr) : Json(report.chosen())}};
}

std::string DurationText(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  if (whole < 60) return absl::StrCat(whole, "s");
  if (whole < 3600) return absl::StrCat(whole / 60, "m", whole % 60, "s");
  return absl::StrCat(whole / 3600, "h", whole % 3600 / 60, "m");
}

std::string ProgressLine(const v1::JobStatus& job, double now) {
  std::string line = StateName(job.state());
  const double percent =
      job.steps() > 0 ? 100.0 * static_cast<double>(job.step()) / static_cast<double>(job.steps())
                      : 0;
  absl::StrAppendFormat(&line, "  step %d/%d  %.1f%%", job.step(), job.steps(), percent);
  if (job.has_loss()) absl::StrAppendFormat(&line, "  loss %.4f", job.loss());
  if (job.has_validation_loss()) {
    absl::StrAppendFormat(&line, "  validation %.4f", job.validation_loss());
  }
  if (job.has_tokens_per_second()) {
    absl::StrAppendFormat(&line, "  %.0f tok/s", job.tokens_per_second());
    if (job.has_mfu()) absl::StrAppendFormat(&line, "  MFU %.1f%%", 100 * job.mfu());
    const double tokens_left =
        static_cast<double>((job.steps() - job.step()) * job.spec().training().global_batch()) *
        job.spec().model().context();
    if (!IsTerminal(job.state()) && job.tokens_per_second() > 0) {
      absl::StrAppend(&line, "  ETA ", DurationText(tokens_left / job.tokens_per_second()));
    }
  }
  if (job.restarts() > 0) absl::StrAppend(&line, "  restarts ", job.restarts());
  if (job.has_checkpoint() && job.checkpoint().committed_at().seconds() > 0) {
    absl::StrAppend(&line, "  checkpoint ",
                    DurationText(now - Seconds(job.checkpoint().committed_at())), " ago");
  }
  return line;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string Printable(const std::string& text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80       ? 1
                          : first >> 5 == 6  ? 2
                          : first >> 4 == 14 ? 3
                          : first >> 3 == 30 ? 4
                                             : 0;
    bool good = length > 0 && i + length <= text.size();
    for (size_t k = 1; good && k < length; ++k) {
      good = static_cast<unsigned char>(text[i + k]) >> 6 == 2;
    }
    shown += good ? text.substr(i, length) : "?";
    i += good ? length : 1;
  }
  return shown;
}

}  // namespace tercio::cli
