// The coordinator's services as they are served: each call is first judged by the gate
// (access/gate.h), and what changes state is recorded with its outcome. Jobs are changed by their
// owners and by admins.
//
// Threads: gRPC's.
#pragma once

#include "coordinator/access/gate.h"
#include "coordinator/service/checkpoint_service.h"
#include "coordinator/service/job_service.h"

namespace tercio::coordinator {

class GuardedJobService : public JobServiceImpl {
 public:
  // The gate must outlive it.
  GuardedJobService(Gate& gate, Coordinator& coordinator, StreamHub& streams, Admit admit,
                    std::string state_dir, std::string metrics_address)
      : JobServiceImpl(coordinator, streams, std::move(admit), std::move(state_dir),
                       std::move(metrics_address)),
        gate_(gate),
        coordinator_(coordinator) {}

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest*, v1::SubmitResponse*) override;
  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest*, v1::JobStatus*) override;
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest*, v1::ListResponse*) override;
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest*, v1::CancelResponse*) override;
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::JobStatus*) override;
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
  grpc::ServerWriteReactor<v1::JobStatus>* Watch(grpc::CallbackServerContext*,
                                                 const v1::WatchRequest*) override;
  grpc::ServerWriteReactor<v1::StepRecord>* History(grpc::CallbackServerContext*,
                                                    const v1::HistoryRequest*) override;
  grpc::ServerWriteReactor<v1::JobEvent>* Events(grpc::CallbackServerContext*,
                                                 const v1::EventsRequest*) override;
  grpc::ServerWriteReactor<v1::LogLine>* Logs(grpc::CallbackServerContext*,
                                              const v1::LogsRequest*) override;
  grpc::ServerWriteReactor<v1::RankTrace>* Trace(grpc::CallbackServerContext*,
                                                 const v1::TraceRequest*) override;

 private:
  using JobServiceImpl::Events;
  using JobServiceImpl::History;
  using JobServiceImpl::Logs;
  using JobServiceImpl::Trace;
  using JobServiceImpl::Watch;

  // Whether the caller may change the job: an admin, or its owner. PERMISSION_DENIED | NOT_FOUND |
  // FAILED_PRECONDITION (several jobs have the name). *job, a name or number, becomes its number:
  // the job that is changed then is the one checked here, whatever names other jobs have got
  // meanwhile.
  absl::Status MayChange(const Caller& caller, std::string* job) const;

  Gate& gate_;
  Coordinator& coordinator_;
};

class GuardedCheckpointService : public CheckpointServiceImpl {
 public:
  GuardedCheckpointService(Gate& gate, CheckpointHost& host)
      : CheckpointServiceImpl(host), gate_(gate) {}

  using WithRawCallbackMethod_Upload::Upload;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext*,
                                                    grpc::ByteBuffer* response) override;
  using WithCallbackMethod_ReadTensor::ReadTensor;
  grpc::ServerWriteReactor<v1::TensorChunk>* ReadTensor(grpc::CallbackServerContext*,
                                                        const v1::ReadTensorRequest*) override;

 private:
  Gate& gate_;
};

}  // namespace tercio::coordinator
