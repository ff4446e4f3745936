// The service for people (job_service.proto). Errors carry the codes that the client turns into
// exit codes.
#pragma once

#include <string>

#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/job_service.grpc.pb.h"

namespace tercio::coordinator {

class JobServiceImpl : public v1::JobService::Service {
 public:
  // `admit` refuses a job that can never run: INVALID_ARGUMENT | RESOURCE_EXHAUSTED.
  using Admit = std::function<absl::Status(const v1::JobSpec&)>;
  JobServiceImpl(Coordinator& coordinator, Admit admit, std::string state_dir,
                 std::string metrics_address)
      : coordinator_(coordinator),
        admit_(std::move(admit)),
        state_dir_(std::move(state_dir)),
        metrics_address_(std::move(metrics_address)) {}

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest*, v1::SubmitResponse*) override;
  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest*, v1::JobStatus*) override;
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse*) override;
  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::JobStatus>*) override;
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest*, v1::CancelResponse*) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::JobStatus*) override;
  grpc::Status History(grpc::ServerContext*, const v1::HistoryRequest*,
                       grpc::ServerWriter<v1::StepRecord>*) override;
  grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest*,
                      grpc::ServerWriter<v1::JobEvent>*) override;
  grpc::Status Logs(grpc::ServerContext*, const v1::LogsRequest*,
                    grpc::ServerWriter<v1::LogLine>*) override;
  grpc::Status Trace(grpc::ServerContext*, const v1::TraceRequest*,
                     grpc::ServerWriter<v1::RankTrace>*) override;
  grpc::Status Nodes(grpc::ServerContext*, const v1::NodesRequest*, v1::NodesResponse*) override;
  grpc::Status ChangeNode(grpc::ServerContext*, const v1::ChangeNodeRequest*,
                          v1::ChangeNodeResponse*) override;
  grpc::Status Drill(grpc::ServerContext*, const v1::DrillRequest*, v1::DrillResponse*) override;
  grpc::Status Checkpoints(grpc::ServerContext*, const v1::CheckpointsRequest*,
                           v1::CheckpointsResponse*) override;
  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest*,
                                v1::VerifyCheckpointResponse*) override;
  grpc::Status Version(grpc::ServerContext*, const v1::VersionRequest*,
                       v1::VersionResponse*) override;

 private:
  // Calls `read` (which returns whether the client still listens) now and after each change, until
  // the job has ended or, without `follow`, once.
  template <typename Read>
  grpc::Status Follow(grpc::ServerContext* context, const std::string& job, bool follow,
                      const Read& read);

  Coordinator& coordinator_;
  Admit admit_;
  std::string state_dir_;
  std::string metrics_address_;
};

}  // namespace tercio::coordinator
