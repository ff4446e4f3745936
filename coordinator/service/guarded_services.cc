#include "coordinator/service/guarded_services.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace tercio::coordinator {
namespace {

// Calls that were refused. Each deletes itself when it is over.
template <typename Message>
class RefusedStream : public grpc::ServerWriteReactor<Message> {
 public:
  // gRPC wants a reactor even for a call that is refused.
  explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

class RefusedUpload : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedUpload(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// A job that is another's was refused; one that is not there was not.
grpc::Status NotChanged(GuardedCall& call, const std::string& job, absl::Status status) {
  // The audit log counts a refusal; a mistake in a name it only records.
  if (absl::IsPermissionDenied(status)) return call.Refuse(job, std::move(status));
  return call.Done(job, ToGrpc(status));
}

}  // namespace

absl::Status GuardedJobService::MayChange(const Caller& caller, std::string* job) const {
  // A name is resolved once: what follows changes the job that
  // was checked, not the one that has the name by then.
  TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord record, coordinator_.Find(*job));
  *job = record.id();
  // A caller without a name has no certificate: it must not match a job without an owner.
  if (caller.role == Role::kAdmin || (!caller.name.empty() && record.owner() == caller.name)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "job ", record.id(),
      record.owner().empty() ? " has no owner" : absl::StrCat(" is ", record.owner(), "'s"),
      "; only its owner and admins can change it, not ", caller.name));
}

grpc::Status GuardedJobService::Submit(grpc::ServerContext* context,
                                       const v1::SubmitRequest* request,
                                       v1::SubmitResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Submit");
  if (call.refused()) return call.refusal();
  // The owner is the name in the certificate, never one that the request gives.
  const grpc::Status status = SubmitFor(call.caller().name, *request, response);
  return call.Done(response->job_id(), status);
}

grpc::Status GuardedJobService::Get(grpc::ServerContext* context, const v1::GetRequest* request,
                                    v1::JobStatus* response) {
  GuardedCall call(gate_, *context, "JobService/Get");
  // Reading calls are admitted but not recorded: the audit log is about changes.
  if (call.refused()) return call.refusal();
  return JobServiceImpl::Get(context, request, response);
}

grpc::Status GuardedJobService::List(grpc::ServerContext* context, const v1::ListRequest* request,
                                     v1::ListResponse* response) {
  GuardedCall call(gate_, *context, "JobService/List");
  if (call.refused()) return call.refusal();
  return JobServiceImpl::List(context, request, response);
}

grpc::Status GuardedJobService::Cancel(grpc::ServerContext* context,
                                       const v1::CancelRequest* request,
                                       v1::CancelResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Cancel");
  if (call.refused()) return call.refusal();
  // The request is const; its copy gets the exact id.
  v1::CancelRequest exact = *request;
  if (absl::Status status = MayChange(call.caller(), exact.mutable_job()); !status.ok()) {
    return NotChanged(call, exact.job(), std::move(status));
  }
  return call.Done(exact.job(), JobServiceImpl::Cancel(context, &exact, response));
}

grpc::Status GuardedJobService::Resume(grpc::ServerContext* context,
                                       const v1::ResumeRequest* request, v1::JobStatus* response) {
  GuardedCall call(gate_, *context, "JobService/Resume");
  if (call.refused()) return call.refusal();
  v1::ResumeRequest exact = *request;
  // The same choice as in JobServiceImpl::Resume is made here,
  // since the job must be known before the permission is.
  if (exact.job().empty()) {
    const absl::StatusOr<v1::JobRecord> newest = coordinator_.NewestUnfinished();
    if (!newest.ok()) return call.Done("", ToGrpc(newest.status()));
    exact.set_job(newest->id());
  }
  if (absl::Status status = MayChange(call.caller(), exact.mutable_job()); !status.ok()) {
    return NotChanged(call, exact.job(), std::move(status));
  }
  return call.Done(exact.job(), JobServiceImpl::Resume(context, &exact, response));
}

grpc::Status GuardedJobService::Nodes(grpc::ServerContext* context, const v1::NodesRequest* request,
                                      v1::NodesResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Nodes");
  if (call.refused()) return call.refusal();
  return JobServiceImpl::Nodes(context, request, response);
}

grpc::Status GuardedJobService::ChangeNode(grpc::ServerContext* context,
                                           const v1::ChangeNodeRequest* request,
                                           v1::ChangeNodeResponse* response) {
  GuardedCall call(gate_, *context, "JobService/ChangeNode");
  if (call.refused()) return call.refusal();
  return call.Done(request->node(), JobServiceImpl::ChangeNode(context, request, response));
}

grpc::Status GuardedJobService::RecordFigures(grpc::ServerContext* context,
                                              const v1::RecordFiguresRequest* request,
                                              v1::RecordFiguresResponse* response) {
  GuardedCall call(gate_, *context, "JobService/RecordFigures");
  if (call.refused()) return call.refusal();
  return call.Done(request->node(), JobServiceImpl::RecordFigures(context, request, response));
}

grpc::Status GuardedJobService::Drill(grpc::ServerContext* context, const v1::DrillRequest* request,
                                      v1::DrillResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Drill");
  if (call.refused()) return call.refusal();
  // The log has to say which job was harmed, and how.
  return call.Done(absl::StrCat(request->job(), " ", request->fault()),
                   JobServiceImpl::Drill(context, request, response));
}

grpc::Status GuardedJobService::Checkpoints(grpc::ServerContext* context,
                                            const v1::CheckpointsRequest* request,
                                            v1::CheckpointsResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Checkpoints");
  if (call.refused()) return call.refusal();
  return JobServiceImpl::Checkpoints(context, request, response);
}

grpc::Status GuardedJobService::VerifyCheckpoint(grpc::ServerContext* context,
                                                 const v1::VerifyCheckpointRequest* request,
                                                 v1::VerifyCheckpointResponse* response) {
  // Verifying reads only, so that everybody who may see a job may verify it.
  GuardedCall call(gate_, *context, "JobService/VerifyCheckpoint");
  if (call.refused()) return call.refusal();
  return JobServiceImpl::VerifyCheckpoint(context, request, response);
}

grpc::Status GuardedJobService::PruneCheckpoints(grpc::ServerContext* context,
                                                 const v1::PruneCheckpointsRequest* request,
                                                 v1::PruneCheckpointsResponse* response) {
  GuardedCall call(gate_, *context, "JobService/PruneCheckpoints");
  if (call.refused()) return call.refusal();
  // Removing checkpoints cannot be undone: it is reserved for those who may change the job.
  v1::PruneCheckpointsRequest exact = *request;
  if (absl::Status status = MayChange(call.caller(), exact.mutable_job()); !status.ok()) {
    return NotChanged(call, exact.job(), std::move(status));
  }
  return call.Done(exact.job(), JobServiceImpl::PruneCheckpoints(context, &exact, response));
}

grpc::Status GuardedJobService::SaveCheckpoint(grpc::ServerContext* context,
                                               const v1::SaveCheckpointRequest* request,
                                               v1::CheckpointInfo* response) {
  GuardedCall call(gate_, *context, "JobService/SaveCheckpoint");
  if (call.refused()) return call.refusal();
  // A save costs the job time, so it counts as a change.
  v1::SaveCheckpointRequest exact = *request;
  if (absl::Status status = MayChange(call.caller(), exact.mutable_job()); !status.ok()) {
    return NotChanged(call, exact.job(), std::move(status));
  }
  return call.Done(exact.job(), JobServiceImpl::SaveCheckpoint(context, &exact, response));
}

grpc::Status GuardedJobService::Delete(grpc::ServerContext* context,
                                       const v1::DeleteRequest* request,
                                       v1::DeleteResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Delete");
  if (call.refused()) return call.refusal();
  // The check comes before the record is gone, and with it the owner.
  v1::DeleteRequest exact = *request;
  if (absl::Status status = MayChange(call.caller(), exact.mutable_job()); !status.ok()) {
    return NotChanged(call, exact.job(), std::move(status));
  }
  return call.Done(exact.job(), JobServiceImpl::Delete(context, &exact, response));
}

grpc::Status GuardedJobService::Version(grpc::ServerContext* context,
                                        const v1::VersionRequest* request,
                                        v1::VersionResponse* response) {
  GuardedCall call(gate_, *context, "JobService/Version");
  if (call.refused()) return call.refusal();
  return JobServiceImpl::Version(context, request, response);
}

grpc::ServerWriteReactor<v1::JobStatus>* GuardedJobService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  // A stream is judged when it begins; the gate's watches end it when its certificate is revoked.
  const GuardedCall call(gate_, *context, "JobService/Watch");
  if (call.refused()) return new RefusedStream<v1::JobStatus>(call.refusal());
  return JobServiceImpl::Watch(context, request);
}

grpc::ServerWriteReactor<v1::StepRecord>* GuardedJobService::History(
    grpc::CallbackServerContext* context, const v1::HistoryRequest* request) {
  const GuardedCall call(gate_, *context, "JobService/History");
  if (call.refused()) return new RefusedStream<v1::StepRecord>(call.refusal());
  return JobServiceImpl::History(context, request);
}

grpc::ServerWriteReactor<v1::JobEvent>* GuardedJobService::Events(
    grpc::CallbackServerContext* context, const v1::EventsRequest* request) {
  const GuardedCall call(gate_, *context, "JobService/Events");
  if (call.refused()) return new RefusedStream<v1::JobEvent>(call.refusal());
  return JobServiceImpl::Events(context, request);
}

grpc::ServerWriteReactor<v1::LogLine>* GuardedJobService::Logs(grpc::CallbackServerContext* context,
                                                               const v1::LogsRequest* request) {
  const GuardedCall call(gate_, *context, "JobService/Logs");
  if (call.refused()) return new RefusedStream<v1::LogLine>(call.refusal());
  return JobServiceImpl::Logs(context, request);
}

grpc::ServerWriteReactor<v1::RankTrace>* GuardedJobService::Trace(
    grpc::CallbackServerContext* context, const v1::TraceRequest* request) {
  const GuardedCall call(gate_, *context, "JobService/Trace");
  if (call.refused()) return new RefusedStream<v1::RankTrace>(call.refusal());
  return JobServiceImpl::Trace(context, request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* GuardedCheckpointService::Upload(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  // What an upload may write depends on its attempt's token; the gate looks at the role only.
  const GuardedCall call(gate_, *context, "CheckpointService/Upload");
  if (call.refused()) return new RefusedUpload(call.refusal());
  return CheckpointServiceImpl::Upload(context, response);
}

grpc::ServerWriteReactor<v1::TensorChunk>* GuardedCheckpointService::ReadTensor(
    grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) {
  // Weights are what a stranger would be after: the gate comes first, then the token.
  const GuardedCall call(gate_, *context, "CheckpointService/ReadTensor");
  if (call.refused()) return new RefusedStream<v1::TensorChunk>(call.refusal());
  return CheckpointServiceImpl::ReadTensor(context, request);
}

}  // namespace tercio::coordinator
