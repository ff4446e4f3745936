#include <algorithm>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/log_text.h"
#include "cli/progress_bar.h"
#include "cli/request_id.h"
#include "cli/with_client.h"
#include "common/daemon.h"
#include "common/status_macros.h"
#include "config/job_file.h"

namespace tercio::cli {
namespace {

void PrintJson(const Json& json) { std::cout << json.dump(2) << std::endl; }
void PrintLine(const Json& json) { std::cout << json.dump() << "\n"; }

// A table of more is no help to people.
constexpr size_t kMostRanksShown = 64;

// What is left of a loss for people.
std::string Loss(const v1::JobStatus& job) {
  return job.has_loss() ? absl::StrFormat("%.4f", job.loss()) : "-";
}

absl::StatusOr<int> FollowAndReport(Client& client, const std::string& job, const Options& options,
                                    FollowOptions follow) {
  follow.ranks = options.format() != Output::kTable;
  TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus status, FollowJob(client, job, follow));
  if (options.format() != Output::kTable) PrintJson(JobToJson(status));
  return ExitCodeOfState(status.state());
}

// Reads a stream to its end; `each(message)` prints.
template <typename Message, typename Reader, typename Each>
absl::StatusOr<int> ReadStream(Client& client, Reader reader, const Each& each) {
  Message message;
  while (reader->Read(&message)) {
    each(message);
    std::cout.flush();
  }
  TERCIO_RETURN_IF_ERROR(CallStatus(reader->Finish(), client));
  return kExitOk;
}

}  // namespace

int Submit(const Options& options) {
  const auto spec = config::ParseJobFile(options.job_file, options.set);
  if (!spec.ok()) return Fail(spec.status());
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = *spec;
    request.set_request_id(NewRequestId());
    v1::SubmitResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Submit(&context, request, &response), client));
    if (options.format() == Output::kTable || !options.watch) {
      if (options.format() == Output::kTable) {
        std::cout << response.job_id() << std::endl;
      } else {
        PrintJson({{"id", response.job_id()}});
      }
    }
    if (!options.watch) {
      const auto status = client.Get(response.job_id());
      if (status.ok() && !status->error().empty()) std::cerr << status->error() << std::endl;
      return kExitOk;
    }
    return FollowAndReport(client, response.job_id(), options, {});
  });
}

int Get(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, client.Get(options.job, /*ranks=*/true));
    if (options.format() != Output::kTable) {
      PrintJson(JobToJson(job));
      return kExitOk;
    }
    const v1::Layout& layout = job.plan().layout();
    std::cout << Table(
        {{"id", job.id()},
         {"name", job.name()},
         {"owner", job.owner().empty() ? "-" : job.owner()},
         {"state", StateName(job.state())},
         {"step", absl::StrCat(job.step(), " of ", job.steps())},
         {"loss", Loss(job)},
         {"tokens/s",
          job.has_tokens_per_second() ? absl::StrFormat("%.0f", job.tokens_per_second()) : "-"},
         {"restarts", absl::StrCat(job.restarts())},
         {"layout", job.has_plan() ? absl::StrCat("tensor ", layout.tensor(), ", pipeline ",
                                                  layout.pipeline(), ", data ", layout.data())
                                   : "-"},
         {"checkpoint", job.has_checkpoint() ? job.checkpoint().path() : "-"},
         {"error", job.error().empty() ? "-" : job.error()}});
    if (job.last_lines_size() > 0) {
      std::cout << "\nlast words of rank " << job.last_lines(0).rank() << " (attempt "
                << job.last_lines(0).attempt() << ")\n";
      for (const v1::LogLine& line : job.last_lines()) std::cout << "  " << LogText(line) << "\n";
    }
    if (job.ranks_size() > 0) std::cout << "\n" << RankTable(job, kMostRanksShown);
    return kExitOk;
  });
}

int List(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::ListResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().List(&context, {}, &response), client));
    if (options.format() != Output::kTable) {
      Json jobs = Json::array();
      for (const v1::JobStatus& job : response.jobs()) jobs.push_back(JobToJson(job));
      PrintJson(jobs);
      return kExitOk;
    }
    std::vector<std::vector<std::string>> rows = {
        {"ID", "NAME", "STATE", "STEP", "LOSS", "RESTARTS"}};
    for (const v1::JobStatus& job : response.jobs()) {
      rows.push_back({job.id(), job.name(), StateName(job.state()),
                      absl::StrCat(job.step(), "/", job.steps()), Loss(job),
                      absl::StrCat(job.restarts())});
    }
    std::cout << Table(rows);
    return kExitOk;
  });
}

int Wait(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    FollowOptions follow;
    follow.show_progress = false;
    if (options.timeout_seconds > 0) follow.timeout = absl::Seconds(options.timeout_seconds);
    return FollowAndReport(client, options.job, options, follow);
  });
}

int History(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::HistoryRequest request;
    request.set_job(options.job);
    request.set_all_attempts(options.all_attempts);
    request.set_follow(options.follow);
    bool first = true;
    return ReadStream<v1::StepRecord>(
        client, client.stub().History(&context, request), [&](const v1::StepRecord& step) {
          if (options.format() != Output::kTable) return PrintLine(StepToJson(step));
          if (first)
            std::cout << "  STEP  ATTEMPT       LOSS  GRAD NORM  LEARNING RATE  VALIDATION\n";
          first = false;
          std::cout << absl::StrFormat("%6d  %7d  %9.5f  %9.4f  %13.3e  ", step.step(),
                                       step.attempt(), step.loss(), step.grad_norm(),
                                       step.learning_rate())
                    << (step.has_validation_loss()
                            ? absl::StrFormat("%10.5f", step.validation_loss())
                            : "         -")
                    << (step.skipped() ? "  skipped" : "")
                    << (step.spike().empty() ? "" : "  spike: ") << step.spike() << "\n";
        });
  });
}

int Events(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::EventsRequest request;
    request.set_job(options.job);
    request.set_follow(options.follow);
    return ReadStream<v1::JobEvent>(
        client, client.stub().Events(&context, request), [&](const v1::JobEvent& event) {
          if (options.format() != Output::kTable) return PrintLine(EventToJson(event));
          std::cout << TimeText(event.time()) << "  " << event.job_id() << "  attempt "
                    << event.attempt() << "  " << event.kind() << "  " << event.message() << "\n";
        });
  });
}

int Cancel(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::CancelRequest request;
    request.set_job(options.job);
    request.set_save_checkpoint(!options.no_save);
    v1::CancelResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Cancel(&context, request, &response), client));
    return kExitOk;
  });
}

int Drill(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::DrillRequest request;
    request.set_job(options.job);
    request.set_fault(options.fault);
    request.set_rank(std::max(0, options.rank));
    request.set_seconds(options.fault_seconds);
    request.set_timeout_seconds(options.timeout_seconds);
    v1::DrillResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Drill(&context, request, &response), client));
    const bool seen = !response.detected_by().empty();
    if (options.format() != Output::kTable) {
      PrintJson({{"fault", response.fault()},
                 {"rank", response.rank()},
                 {"node", response.node()},
                 {"detected_seconds", seen ? Json(response.detected_seconds()) : Json(nullptr)},
                 {"detected_by", seen ? Json(response.detected_by()) : Json(nullptr)},
                 {"recovered_seconds", response.recovered_seconds()},
                 {"steps_lost", response.steps_lost()}});
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

// Why it takes no ranks, or which of its GPUs take none.
std::string ReasonOf(const v1::Node& node) {
  std::string reason = node.reason();
  for (const v1::FaultyDevice& faulty : node.faulty_devices()) {
    absl::StrAppend(&reason, reason.empty() ? "" : "; ", "GPU ", faulty.device(), ": ",
                    faulty.fault());
  }
  return reason;
}

}  // namespace

int Nodes(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::NodesResponse response;
    TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Nodes(&context, {}, &response), client));
    if (options.format() != Output::kTable) {
      Json nodes = Json::array();
      for (const v1::Node& node : response.nodes()) nodes.push_back(NodeToJson(node));
      PrintJson(nodes);
      return kExitOk;
    }
    std::vector<std::vector<std::string>> rows = {
        {"NAME", "STATE", "DEVICES", "FREE", "FAULTY", "METRICS", "REASON"}};
    for (const v1::Node& node : response.nodes()) {
      rows.push_back({node.name(), node.state(),
                      absl::StrCat(node.devices(), " ", node.device_kind()),
                      absl::StrCat(node.free()), absl::StrCat(node.faulty_devices_size()),
                      node.metrics_address(), ReasonOf(node)});
    }
    std::cout << Table(rows);
    return kExitOk;
  });
}

namespace {

int ChangeNode(const Options& options, v1::ChangeNodeRequest::Change change) {
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

int NodesDrain(const Options& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_DRAIN);
}

int NodesUndrain(const Options& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_UNDRAIN);
}

int NodesRelease(const Options& options) {
  return ChangeNode(options, v1::ChangeNodeRequest::CHANGE_RELEASE);
}

int CheckpointList(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    grpc::ClientContext context;
    v1::CheckpointsRequest request;
    request.set_job(options.job);
    v1::CheckpointsResponse response;
    TERCIO_RETURN_IF_ERROR(
        CallStatus(client.stub().Checkpoints(&context, request, &response), client));
    if (options.format() != Output::kTable) {
      Json checkpoints = Json::array();
      for (const auto& checkpoint : response.checkpoints()) {
        checkpoints.push_back(CheckpointToJson(checkpoint));
      }
      PrintJson(checkpoints);
      return kExitOk;
    }
    std::vector<std::vector<std::string>> rows = {{"STEP", "BYTES", "PATH"}};
    for (const auto& checkpoint : response.checkpoints()) {
      rows.push_back(
          {absl::StrCat(checkpoint.step()), absl::StrCat(checkpoint.bytes()), checkpoint.path()});
    }
    std::cout << Table(rows);
    return kExitOk;
  });
}

namespace {

// One checkpoint after the other, so that it is known how far that is.
absl::StatusOr<std::vector<v1::CheckpointFinding>> Verify(Client& client, const Options& options) {
  std::vector<v1::CheckpointInfo> checkpoints;
  int64_t total = 0;
  {
    grpc::ClientContext context;
    v1::CheckpointsRequest request;
    request.set_job(options.job);
    v1::CheckpointsResponse response;
    TERCIO_RETURN_IF_ERROR(
        CallStatus(client.stub().Checkpoints(&context, request, &response), client));
    for (const v1::CheckpointInfo& checkpoint : response.checkpoints()) {
      if (options.step > 0 && checkpoint.step() != options.step) continue;
      checkpoints.push_back(checkpoint);
      total += checkpoint.bytes();
    }
  }
  if (checkpoints.empty()) return absl::NotFoundError("the job has no such checkpoint");
  ProgressBar bar("checkpoint verify");
  std::vector<v1::CheckpointFinding> findings;
  int64_t done = 0;
  for (const v1::CheckpointInfo& checkpoint : checkpoints) {
    bar.Show(done, total, absl::StrCat("step ", checkpoint.step()));
    grpc::ClientContext context;
    v1::VerifyCheckpointRequest request;
    request.set_job(options.job);
    request.set_step(checkpoint.step());
    v1::VerifyCheckpointResponse response;
    const grpc::Status status = client.stub().VerifyCheckpoint(&context, request, &response);
    done += checkpoint.bytes();
    // A job that runs removes old ones meanwhile.
    const bool gone = status.error_code() == grpc::StatusCode::NOT_FOUND;
    if (gone && checkpoints.size() > 1) continue;
    TERCIO_RETURN_IF_ERROR(CallStatus(status, client));
    findings.insert(findings.end(), response.findings().begin(), response.findings().end());
  }
  return findings;
}

}  // namespace

int CheckpointVerify(const Options& options) {
  return WithClient(options, [&](Client& client) -> absl::StatusOr<int> {
    TERCIO_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointFinding> all, Verify(client, options));
    Json findings = Json::array();
    bool good = true;
    for (const v1::CheckpointFinding& finding : all) {
      good = good && finding.ok();
      findings.push_back({{"step", finding.step()},
                          {"path", finding.path()},
                          {"ok", finding.ok()},
                          {"problem", finding.ok() ? Json(nullptr) : Json(finding.problem())}});
      if (options.format() == Output::kTable) {
        std::cout << (finding.ok() ? "ok      " : "DAMAGED ") << finding.path()
                  << (finding.ok() ? "" : ": " + finding.problem()) << "\n";
      }
    }
    if (options.format() != Output::kTable) PrintJson(findings);
    return good ? kExitOk : kExitConflict;
  });
}

}  // namespace tercio::cli
