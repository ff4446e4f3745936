#include "coordinator/service/job_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checkpoint/reader.h"
#include "common/grpc_status.h"
#include "common/version.h"
#include "coordinator/service/drills.h"
#include "coordinator/service/views.h"

namespace tercio::coordinator {
namespace {

constexpr double kPollSeconds = 0.5;

}  // namespace

grpc::Status JobServiceImpl::Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                                    v1::SubmitResponse* response) {
  if (absl::Status status = admit_(request->spec()); !status.ok()) return ToGrpc(status);
  const absl::StatusOr<std::string> id =
      coordinator_.Submit(request->spec(), request->request_id());
  if (!id.ok()) return ToGrpc(id.status());
  response->set_job_id(*id);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Get(grpc::ServerContext*, const v1::GetRequest* request,
                                 v1::JobStatus* response) {
  const absl::StatusOr<Coordinator::JobView> job = coordinator_.View(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  *response = StatusOf(*job);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::List(grpc::ServerContext*, const v1::ListRequest*,
                                  v1::ListResponse* response) {
  for (const Coordinator::JobView& job : coordinator_.Views()) {
    *response->add_jobs() = BriefStatusOf(job);
  }
  return grpc::Status::OK;
}

template <typename Read>
grpc::Status JobServiceImpl::Follow(grpc::ServerContext* context, const std::string& job,
                                    bool follow, const Read& read) {
  while (!context->IsCancelled()) {
    // The version is taken before reading: what changes meanwhile is read in the next round.
    const uint64_t version = coordinator_.version();
    bool ended = false;
    if (!job.empty()) {
      const absl::StatusOr<v1::JobRecord> record = coordinator_.Find(job);
      if (!record.ok()) return ToGrpc(record.status());
      ended = IsTerminal(record->phase());
    }
    const absl::StatusOr<bool> listening = read();
    if (!listening.ok()) return ToGrpc(listening.status());
    if (!*listening || !follow || ended) return grpc::Status::OK;
    coordinator_.WaitForChange(version, kPollSeconds);
  }
  return grpc::Status::CANCELLED;
}

grpc::Status JobServiceImpl::Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                                   grpc::ServerWriter<v1::JobStatus>* writer) {
  std::string last;
  std::shared_ptr<const v1::Plan> told;
  return Follow(context, request->job(), true, [&]() -> absl::StatusOr<bool> {
    absl::StatusOr<Coordinator::JobView> job = coordinator_.View(request->job());
    if (!job.ok()) return job.status();
    std::string bytes = absl::StrCat(job->queue_position, " ", job->record.SerializeAsString());
    if (bytes == last) return true;
    last = std::move(bytes);
    // Plans are large: said again only when it is another one, and with the last word.
    if (job->plan == told && !IsTerminal(job->record.phase())) {
      job->plan = nullptr;
    } else {
      told = job->plan;
    }
    return writer->Write(StatusOf(*job));
  });
}

grpc::Status JobServiceImpl::Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                                    v1::CancelResponse*) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  return ToGrpc(
      coordinator_.Ask(CancelRequested{job->id(), request->save_checkpoint(), request->reason()}));
}

grpc::Status JobServiceImpl::Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                                    v1::JobStatus* response) {
  const absl::StatusOr<v1::JobRecord> job =
      request->job().empty() ? coordinator_.NewestUnfinished() : coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  const v1::JobSpec& spec = request->has_spec() ? request->spec() : job->spec();
  if (absl::Status status = admit_(spec); !status.ok()) return ToGrpc(status);
  const absl::Status status = coordinator_.Ask(ResumeRequested{job->id(), spec});
  if (!status.ok()) return ToGrpc(status);
  *response = StatusOf(*coordinator_.View(job->id()));
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::History(grpc::ServerContext* context,
                                     const v1::HistoryRequest* request,
                                     grpc::ServerWriter<v1::StepRecord>* writer) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  int64_t after = request->after_step();
  return Follow(context, job->id(), request->follow(), [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<v1::JobRecord> now = coordinator_.Find(job->id());
    if (!now.ok()) return now.status();
    const auto steps =
        coordinator_.store().Steps(job->id(), after, [&](const v1::StepRecord& step) {
          return request->all_attempts() || StepCounts(*now, step);
        });
    if (!steps.ok()) return steps.status();
    for (const v1::StepRecord& step : *steps) {
      if (!writer->Write(step)) return false;
      after = std::max(after, step.step());
    }
    return true;
  });
}

grpc::Status JobServiceImpl::Events(grpc::ServerContext* context, const v1::EventsRequest* request,
                                    grpc::ServerWriter<v1::JobEvent>* writer) {
  std::string id;
  if (!request->job().empty()) {
    const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
    if (!job.ok()) return ToGrpc(job.status());
    id = job->id();
  }
  int64_t after = 0;
  return Follow(context, id, request->follow(), [&]() -> absl::StatusOr<bool> {
    const auto events = coordinator_.store().Events(id, after);
    if (!events.ok()) return events.status();
    for (const v1::JobEvent& event : *events) {
      if (!writer->Write(event)) return false;
      after = event.sequence();
    }
    return true;
  });
}

grpc::Status JobServiceImpl::Logs(grpc::ServerContext* context, const v1::LogsRequest* request,
                                  grpc::ServerWriter<v1::LogLine>* writer) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  int64_t after = 0;
  bool first = true;
  return Follow(context, job->id(), request->follow(), [&]() -> absl::StatusOr<bool> {
    const auto stored = coordinator_.store().Logs(job->id(), after);
    if (!stored.ok()) return stored.status();
    std::vector<v1::LogLine> lines;
    for (const Store::StoredLine& line : *stored) {
      after = line.sequence;
      if (request->has_rank() && line.line.rank() != request->rank()) continue;
      if (request->has_attempt() && line.line.attempt() != request->attempt()) continue;
      lines.push_back(line.line);
    }
    const size_t tail = static_cast<size_t>(std::max(0, request->tail()));
    const size_t skip = first && tail > 0 && lines.size() > tail ? lines.size() - tail : 0;
    first = false;
    for (size_t i = skip; i < lines.size(); ++i) {
      if (!writer->Write(lines[i])) return false;
    }
    return true;
  });
}

grpc::Status JobServiceImpl::Trace(grpc::ServerContext*, const v1::TraceRequest* request,
                                   grpc::ServerWriter<v1::RankTrace>* writer) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  const auto traces = coordinator_.store().Traces(job->id());
  if (!traces.ok()) return ToGrpc(traces.status());
  for (const v1::RankTrace& trace : *traces) {
    if (!writer->Write(trace)) break;
  }
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Nodes(grpc::ServerContext*, const v1::NodesRequest*,
                                   v1::NodesResponse* response) {
  for (const Coordinator::NodeView& view : coordinator_.Nodes()) {
    const v1::AgentHello& hello = view.state.hello;
    v1::Node* node = response->add_nodes();
    node->set_name(hello.node());
    node->set_address(hello.data_address());
    node->set_state(view.name);
    node->set_reason(view.state.record.reason());
    node->set_version(hello.version());
    node->set_metrics_address(hello.metrics_address());
    node->set_device_kind(hello.device_kind());
    node->set_devices(hello.devices());
    node->set_free(view.free);
    node->mutable_last_heartbeat()->set_seconds(static_cast<int64_t>(view.state.last_heard));
  }
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::ChangeNode(grpc::ServerContext*, const v1::ChangeNodeRequest* request,
                                        v1::ChangeNodeResponse*) {
  NodeChangeRequested change{request->node(), NodeChange::kDrain};
  switch (request->change()) {
    case v1::ChangeNodeRequest::CHANGE_DRAIN:
      break;
    case v1::ChangeNodeRequest::CHANGE_UNDRAIN:
      change.change = NodeChange::kUndrain;
      break;
    case v1::ChangeNodeRequest::CHANGE_RELEASE:
      change.change = NodeChange::kRelease;
      break;
    default:
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no such change of a node");
  }
  return ToGrpc(coordinator_.Ask(change));
}

grpc::Status JobServiceImpl::Drill(grpc::ServerContext* context, const v1::DrillRequest* request,
                                   v1::DrillResponse* response) {
  const absl::StatusOr<v1::DrillResponse> done =
      RunDrill(coordinator_, *request, [context] { return context->IsCancelled(); });
  if (!done.ok()) return ToGrpc(done.status());
  *response = *done;
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Checkpoints(grpc::ServerContext*,
                                         const v1::CheckpointsRequest* request,
                                         v1::CheckpointsResponse* response) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  for (const checkpoint::Committed& committed : coordinator_.checkpoints().List(job->id())) {
    v1::CheckpointInfo* info = response->add_checkpoints();
    info->set_job_id(job->id());
    info->set_step(committed.step);
    info->set_path(committed.path);
    info->set_bytes(committed.bytes);
  }
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::VerifyCheckpoint(grpc::ServerContext*,
                                              const v1::VerifyCheckpointRequest* request,
                                              v1::VerifyCheckpointResponse* response) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  for (const checkpoint::Committed& committed : coordinator_.checkpoints().List(job->id())) {
    if (request->step() > 0 && committed.step != request->step()) continue;
    for (const checkpoint::Finding& found : checkpoint::VerifyCheckpoint(committed.path)) {
      v1::CheckpointFinding* finding = response->add_findings();
      finding->set_path(found.path);
      finding->set_ok(found.problem.empty());
      finding->set_problem(found.problem);
      finding->set_step(committed.step);
    }
  }
  if (response->findings_size() == 0) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "the job has no such checkpoint");
  }
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Version(grpc::ServerContext*, const v1::VersionRequest*,
                                     v1::VersionResponse* response) {
  response->set_version(kVersion);
  response->set_state_dir(state_dir_);
  response->set_metrics_address(metrics_address_);
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
