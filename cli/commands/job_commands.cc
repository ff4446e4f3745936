#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands/commands.h"
#include "cli/commands/with_client.h"
#include "cli/evaluation_text.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/log_text.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "config/job_file.h"
#include "config/notices.h"
#include "plan/names.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

// A longer table would not be readable.
constexpr size_t kMostRanksShown = 64;

// Width of a name in a list.
constexpr size_t kNameColumns = 40;

// The loss as shown to people, rounded.
std::string Loss(const v1::JobStatus& job) {
  return job.has_loss() ? absl::StrFormat("%.4f", job.loss()) : "-";
}

// Since when saves have failed, how many, and why the last one did.
std::string TroubleText(const v1::JobStatus& job) {
  // A dash means that all is well; an empty cell would look like a fault of the table.
  if (!job.has_checkpoint_trouble()) return "-";
  const v1::CheckpointTrouble& trouble = job.checkpoint_trouble();
  return absl::StrCat("since ", TimeText(trouble.since()), ", ", trouble.failures(),
                      trouble.failures() == 1 ? " save, " : " saves, the last: ", trouble.error());
}

// The step whose checkpoint is kept, or why the test data was evaluated with another one.
std::string BestText(const v1::JobStatus& job) {
  if (!job.test().problem().empty()) return job.test().problem();
  return job.best_step() > 0
             ? absl::StrCat("step ", job.best_step(), ", by ",
                            plan::TextOf(job.spec().training().evaluate().keep_best()))
             : "-";
}

void PrintJobs(const v1::ListResponse& list, Output format) {
  // Programs get all fields, tables only what fits.
  if (format != Output::kTable) {
    Json jobs = Json::array();
    for (const v1::JobStatus& job : list.jobs()) jobs.push_back(JobToJson(job));
    PrintJson(jobs, format);
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "STATE", "STEP", "LOSS", "RESTARTS"}};
  for (const v1::JobStatus& job : list.jobs()) {
    // A name has up to 256 bytes, which would push all other columns away.
    rows.push_back(
        {job.id(), Shortened(job.name(), kNameColumns), StateName(job.state()),
         absl::StrCat(job.step(), "/", KnowsSteps(job) ? absl::StrCat(job.steps()) : "?"),
         Loss(job), absl::StrCat(job.restarts())});
  }
  std::cout << Table(rows);
}

// Follows the job to its end, and prints its last status in the formats for programs.
absl::StatusOr<v1::JobStatus> Follow(Client& client, const std::string& job, Output format,
                                     FollowOptions follow) {
  // Programs get ranks in the last status; a person who follows sees one line.
  follow.ranks = format != Output::kTable;
  TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus status, FollowJob(client, job, follow));
  if (format != Output::kTable) PrintJson(JobToJson(status), format);
  return status;
}

// Reads a stream to its end: `to_json(message)` for programs, `print(message)` for people. Stops if
// the output cannot be written; the program reports that error when it exits.
template <typename Message, typename Reader, typename ToJson, typename Print>
absl::StatusOr<int> ReadStream(Client& client, grpc::ClientContext& context, Reader reader,
                               Output format, const ToJson& to_json, const Print& print) {
  Message message;
  // JSON needs brackets around the list, JSON lines do not.
  JsonStream json(format);
  while (reader->Read(&message)) {
    if (format != Output::kTable) {
      json.Add(to_json(message));
    } else {
      print(message);
    }
    // Each message is flushed, so that a pipe gets it at once and a closed one is noticed.
    if (std::cout.flush()) continue;
    context.TryCancel();
    reader->Finish();  // cancelled here
    return kExitOk;
  }
  TERCIO_RETURN_IF_ERROR(CallStatus(reader->Finish(), client));
  json.Finish();
  return kExitOk;
}

}  // namespace

int Submit(const SubmitOptions& options) {
  const auto spec = config::ParseJobFile(options.job_file, options.set);
  if (!spec.ok()) return Fail(spec.status());
  // Notices come before the job exists: a person may still stop.
  PrintNotices(config::KeysWithoutEffect(*spec));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const std::string id, client.Submit(*spec));
    // With --watch, programs get the last status as their only document.
    if (options.format() == Output::kTable || !options.watch) {
      if (options.format() == Output::kTable) {
        std::cout << id << std::endl;
      } else {
        PrintJson({{"id", id}}, options.format());
      }
    }
    if (!options.watch) {
      // A job that waits for devices says so immediately, or it looks as if it hung.
      const auto status = client.Get(id);
      if (status.ok() && !status->error().empty()) {
        std::cerr << ForTerminal(status->error()) << std::endl;
      }
      return kExitOk;
    }
    // The job does not end with this program; an interrupt has to say how to find it again.
    const LastWords words(StillRunsNotice(id));
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, Follow(client, id, options.format(), {}));
    return ExitCodeOfState(job.state());
  });
}

int Get(const GetOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job,
                            client.Get(options.job, Client::Ranks::kInclude));
    if (options.format() != Output::kTable) {
      PrintJson(JobToJson(job), options.format());
      return kExitOk;
    }
    const v1::Layout& layout = job.plan().layout();
    std::cout << Table(
        // Every row is always there, so that people find a value at the same place.
        {{"id", job.id()},
         {"name", job.name()},
         {"owner", job.owner().empty() ? "-" : job.owner()},
         {"state", job.queue_position() > 0 ? absl::StrCat(StateName(job.state()), ", position ",
                                                           job.queue_position(), " in the queue")
                                            : StateName(job.state())},
         {"step", StepsText(job)},
         {"loss", Loss(job)},
         {"validation", job.has_validation() ? EvaluationText(job.validation()) : "-"},
         {"test", job.has_test() ? EvaluationText(job.test()) : "-"},
         {"tokens/s",
          job.has_tokens_per_second() ? absl::StrFormat("%.0f", job.tokens_per_second()) : "-"},
         {"time left", job.has_eta_seconds() ? DurationText(job.eta_seconds()) : "-"},
         {"restarts", absl::StrCat(job.restarts())},
         {"layout", job.has_plan() ? absl::StrCat("tensor ", layout.tensor(), ", pipeline ",
                                                  PipelineText(layout), ", data ", layout.data())
                                   : "-"},
         {"checkpoint", job.has_checkpoint() ? job.checkpoint().path() : "-"},
         {"best checkpoint", BestText(job)},
         {"checkpoint failures", TroubleText(job)},
         {"error", job.error().empty() ? "-" : job.error()}});
    const v1::Evaluation& last = job.has_test() ? job.test() : job.validation();
    if (const std::string classes = ClassTable(last, job.spec().model()); !classes.empty()) {
      std::cout << "\n"
                << (job.has_test() ? "classes of the test data" : "classes") << "\n"
                << classes;
    }
    // These lines are of the rank whose fault ended an attempt.
    if (job.last_lines_size() > 0) {
      std::cout << "\nlast output of rank " << job.last_lines(0).rank() << " (attempt "
                << job.last_lines(0).attempt() << ")\n";
      for (const v1::LogLine& line : job.last_lines()) std::cout << "  " << LogText(line) << "\n";
    }
    // Ranks come last, since there may be many.
    if (job.ranks_size() > 0) std::cout << "\n" << RankTable(job, kMostRanksShown);
    return kExitOk;
  });
}

int List(const ListOptions& options) {
  // A directory without a database holds no jobs, which is an empty list and no error.
  if (!options.state_dir.empty() && HoldsNoJobs(options.state_dir)) {
    PrintJobs({}, options.format());
    return kExitOk;
  }
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::ListResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().List(&context, {}, &response), client));
    PrintJobs(response, options.format());
    return kExitOk;
  });
}

int Wait(const WaitOptions& options) {
  const absl::Time begun = SteadyNow();  // the time before the wait counts, too
  const LastWords words(StillRunsNotice(options.job));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    FollowOptions follow;
    follow.show_progress = false;
    // Scripts wait in silence; the exit code is their answer.
    if (options.timeout_seconds > 0) {
      // The connection may have taken a part of the time already.
      const absl::Duration left = absl::Seconds(options.timeout_seconds) - (SteadyNow() - begun);
      follow.timeout = std::max(left, absl::ZeroDuration());
    } else if (options.timeout_seconds == 0) {  // checks once
      TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus now, client.Get(options.job));
      if (!IsTerminal(now.state())) return NotInTime(options.job);
    }
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job,
                            Follow(client, options.job, options.format(), follow));
    // The reason belongs to stderr, as output is for what was asked for.
    if (job.state() != v1::JOB_STATE_SUCCEEDED && options.format() == Output::kTable) {
      std::cerr << "job " << job.id() << " " << StateName(job.state()) << ": "
                << ForTerminal(job.error()) << std::endl;
    }
    return ExitCodeOfState(job.state());
  });
}

namespace {

// A classifier's scores that the job reports, which have columns of their own.
std::vector<v1::QualityMetric> ScoresAskedFor(const v1::EvaluateSpec& evaluate) {
  std::vector<v1::QualityMetric> scores;
  for (const int number : evaluate.metrics()) {
    const auto metric = static_cast<v1::QualityMetric>(number);
    if (plan::IsNamed(metric) && metric != v1::QUALITY_METRIC_LOSS) scores.push_back(metric);
  }
  return scores;
}

// Fixed widths instead of a table: steps are printed as they come.
std::string HistoryHeading(const std::vector<v1::QualityMetric>& scores) {
  std::string line = "  STEP  ATTEMPT       LOSS  GRAD NORM  LEARNING RATE  VALIDATION";
  for (const v1::QualityMetric score : scores) {
    absl::StrAppendFormat(&line, "  %9s", absl::AsciiStrToUpper(plan::TextOf(score)));
  }
  return line + "\n";
}

std::string HistoryLine(const v1::StepRecord& step, const std::vector<v1::QualityMetric>& scores) {
  std::string line =
      absl::StrFormat("%6d  %7d  %9.5f  %9.4f  %13.3e  ", step.step(), step.attempt(), step.loss(),
                      step.grad_norm(), step.learning_rate());
  absl::StrAppend(&line, step.has_validation_loss()
                             ? absl::StrFormat("%10.5f", step.validation_loss())
                             : "         -");
  for (const v1::QualityMetric score : scores) {
    const std::optional<double> value = plan::ValueOf(score, step);
    absl::StrAppend(&line, value.has_value() ? absl::StrFormat("  %9.5f", *value) : "          -");
  }
  absl::StrAppend(&line, step.skipped() ? "  skipped" : "",
                  step.spike().empty() ? "" : "  spike: ", step.spike(), "\n");
  return line;
}

}  // namespace

int History(const HistoryOptions& options) {
  std::optional<LastWords> words;
  if (options.follow) words.emplace(StillRunsNotice(options.job));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::HistoryRequest request;
    request.set_job(options.job);
    request.set_all_attempts(options.all_attempts);
    request.set_follow(options.follow);
    std::vector<v1::QualityMetric> scores;
    if (options.format() == Output::kTable) {
      TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, client.Get(options.job));
      scores = ScoresAskedFor(job.spec().training().evaluate());
    }
    // The heading appears with the first step, so that an empty history prints nothing.
    bool first = true;
    return ReadStream<v1::StepRecord>(client, context, client.stub().History(&context, request),
                                      options.format(), StepToJson,
                                      [&](const v1::StepRecord& step) {
                                        if (first) std::cout << HistoryHeading(scores);
                                        first = false;
                                        std::cout << HistoryLine(step, scores);
                                      });
  });
}

int Events(const EventsOptions& options) {
  std::optional<LastWords> words;
  // All events of the cluster have no one job that an interrupt could leave running.
  if (options.follow && !options.job.empty()) words.emplace(StillRunsNotice(options.job));
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::EventsRequest request;
    request.set_job(options.job);
    request.set_follow(options.follow);
    return ReadStream<v1::JobEvent>(client, context, client.stub().Events(&context, request),
                                    options.format(), EventToJson, [&](const v1::JobEvent& event) {
                                      std::cout << TimeText(event.time()) << "  " << event.job_id()
                                                << "  attempt " << event.attempt() << "  "
                                                << event.kind() << "  "
                                                << ForTerminal(event.message()) << "\n";
                                    });
  });
}

int Cancel(const CancelOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::CancelRequest request;
    request.set_job(options.job);
    // The default is to save, since nothing brings lost steps back.
    request.set_save_checkpoint(!options.no_save);
    v1::CancelResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Cancel(&context, request, &response), client));
    return kExitOk;
  });
}

int Drill(const DrillOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::DrillRequest request;
    request.set_job(options.job);
    request.set_fault(options.fault);
    // Negative means not given; the coordinator has the defaults.
    request.set_rank(std::max(0, options.rank));
    request.set_seconds(options.seconds);
    request.set_timeout_seconds(std::max(0.0, options.timeout_seconds));
    v1::DrillResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Drill(&context, request, &response), client));
    // A fault that nobody noticed has no time.
    const bool seen = !response.detected_by().empty();
    if (options.format() != Output::kTable) {
      PrintJson({{"fault", response.fault()},
                 {"rank", response.rank()},
                 {"node", response.node()},
                 {"detected_seconds", seen ? Json(response.detected_seconds()) : Json(nullptr)},
                 {"detected_by", seen ? Json(response.detected_by()) : Json(nullptr)},
                 {"recovered_seconds", response.recovered_seconds()},
                 {"steps_lost", response.steps_lost()}},
                options.format());
      return kExitOk;
    }
    std::cout << Table(
        {{"FAULT", "RANK", "NODE", "DETECTED", "RECOVERED", "STEPS LOST", "DETECTED BY"},
         {response.fault(), absl::StrCat(response.rank()), response.node(),
          seen ? absl::StrFormat("%.2f s", response.detected_seconds()) : "-",
          absl::StrFormat("%.2f s", response.recovered_seconds()),
          absl::StrCat(response.steps_lost()), seen ? response.detected_by() : "-"}});
    return kExitOk;
  });
}

namespace {

// Why no ranks are scheduled on the node, or which of its GPUs are faulty.
std::string ReasonOf(const v1::Node& node) {
  std::string reason = node.reason();
  // A node may have both: each explains another part of what is missing.
  for (const v1::FaultyDevice& faulty : node.faulty_devices()) {
    absl::StrAppend(&reason, reason.empty() ? "" : "; ", "GPU ", faulty.device(), ": ",
                    faulty.fault());
  }
  return reason;
}

}  // namespace

int Nodes(const NodesOptions& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::NodesResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Nodes(&context, {}, &response), client));
    if (options.format() != Output::kTable) {
      Json nodes = Json::array();
      for (const v1::Node& node : response.nodes()) nodes.push_back(NodeToJson(node));
      PrintJson(nodes, options.format());
      return kExitOk;
    }
    std::vector<std::vector<std::string>> rows = {
        {"NAME", "STATE", "DEVICES", "FREE", "FAULTY", "METRICS", "REASON"}};
    for (const v1::Node& node : response.nodes()) {
      rows.push_back({node.name(), node.state(),
                      absl::StrCat(node.devices(), " ", plan::TextOf(node.device_kind())),
                      absl::StrCat(node.free()), absl::StrCat(node.faulty_devices_size()),
                      node.metrics_address(), ReasonOf(node)});
    }
    std::cout << Table(rows);
    return kExitOk;
  });
}

namespace {

int ChangeNode(const NodeOptions& options, v1::ChangeNodeRequest::Change change) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::ChangeNodeRequest request;
    request.set_node(options.node);
    request.set_change(change);
    v1::ChangeNodeResponse response;
    TERCIO_RETURN_IF_ERROR(
        CallStatus(client.stub().ChangeNode(&context, request, &response), client));
    return kExitOk;
  });
}

}  // namespace

int NodesDrain(const NodeOptions& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_DRAIN);
}

int NodesUndrain(const NodeOptions& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_UNDRAIN);
}

int NodesRelease(const NodeOptions& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_RELEASE);
}

}  // namespace tercio::cli
