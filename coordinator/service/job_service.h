// The service for people (job_service.proto). Errors carry the codes that the client turns into
// exit codes. Calls that follow a job are streams of the hub; the rest are short.
#pragma once

#include <string>

#include "coordinator/service/coordinator.h"
#include "coordinator/service/stream_hub.h"
#include "proto/tercio/v1/job_service.grpc.pb.h"

namespace tercio::coordinator {

using JobServiceBase =
    v1::JobService::WithCallbackMethod_Watch<v1::JobService::WithCallbackMethod_History<
        v1::JobService::WithCallbackMethod_Events<v1::JobService::WithCallbackMethod_Logs<
            v1::JobService::WithCallbackMethod_Trace<v1::JobService::Service>>>>>;

class JobServiceImpl : public JobServiceBase {
 public:
  // `admit` refuses a job that can never run: INVALID_ARGUMENT | RESOURCE_EXHAUSTED.
  using Admit = std::function<absl::Status(v1::JobSpec*)>;
  JobServiceImpl(Coordinator& coordinator, StreamHub& streams, Admit admit, std::string state_dir,
                 std::string metrics_address)
      : coordinator_(coordinator),
        streams_(streams),
        admit_(std::move(admit)),
        state_dir_(std::move(state_dir)),
        metrics_address_(std::move(metrics_address)) {}

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest*, v1::SubmitResponse*) override;
  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest*, v1::JobStatus*) override;
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse*) override;
  grpc::ServerWriteReactor<v1::JobStatus>* Watch(grpc::CallbackServerContext*,
                                                 const v1::WatchRequest*) override;
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest*, v1::CancelResponse*) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::JobStatus*) override;
  grpc::ServerWriteReactor<v1::StepRecord>* History(grpc::CallbackServerContext*,
                                                    const v1::HistoryRequest*) override;
  grpc::ServerWriteReactor<v1::JobEvent>* Events(grpc::CallbackServerContext*,
                                                 const v1::EventsRequest*) override;
  grpc::ServerWriteReactor<v1::LogLine>* Logs(grpc::CallbackServerContext*,
                                              const v1::LogsRequest*) override;
  grpc::ServerWriteReactor<v1::RankTrace>* Trace(grpc::CallbackServerContext*,
                                                 const v1::TraceRequest*) override;
  grpc::Status Nodes(grpc::ServerContext*, const v1::NodesRequest*, v1::NodesResponse*) override;
  grpc::Status ChangeNode(grpc::ServerContext*, const v1::ChangeNodeRequest*,
                          v1::ChangeNodeResponse*) override;
  grpc::Status RecordFigures(grpc::ServerContext*, const v1::RecordFiguresRequest*,
                             v1::RecordFiguresResponse*) override;
  grpc::Status Drill(grpc::ServerContext*, const v1::DrillRequest*, v1::DrillResponse*) override;
  grpc::Status Checkpoints(grpc::ServerContext*, const v1::CheckpointsRequest*,
                           v1::CheckpointsResponse*) override;
  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest*,
                                v1::VerifyCheckpointResponse*) override;
  grpc::Status PruneCheckpoints(grpc::ServerContext*, const v1::PruneCheckpointsRequest*,
                                v1::PruneCheckpointsResponse*) override;
  grpc::Status SaveCheckpoint(grpc::ServerContext*, const v1::SaveCheckpointRequest*,
                              v1::CheckpointInfo*) override;
  grpc::Status Delete(grpc::ServerContext*, const v1::DeleteRequest*, v1::DeleteResponse*) override;
  grpc::Status Version(grpc::ServerContext*, const v1::VersionRequest*,
                       v1::VersionResponse*) override;

 protected:
  // `owner` becomes the owner of the job; empty: it has none.
  grpc::Status SubmitFor(const std::string& owner, const v1::SubmitRequest& request,
                         v1::SubmitResponse* response);

  // The synchronous forms of these calls are never used: streams are the hub's.
  using JobServiceBase::Events;
  using JobServiceBase::History;
  using JobServiceBase::Logs;
  using JobServiceBase::Trace;
  using JobServiceBase::Watch;

 private:
  absl::Status VerifyNewest(int count, v1::JobRecord* job);
  bool WasRemoved(const std::string& job, int64_t step) const;
  class Watcher;
  // Adds ranks where they are wanted, and the last log lines of the one at fault. `plan` may be
  // null.
  absl::Status AddDetails(const Coordinator::JobView& job, const v1::Plan* plan, bool ranks,
                          v1::JobStatus* status);

  Coordinator& coordinator_;
  StreamHub& streams_;
  Admit admit_;
  std::string state_dir_;
  std::string metrics_address_;
};

}  // namespace tercio::coordinator
