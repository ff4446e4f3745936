// The gRPC server of the coordinator: its services, each behind the gate, with health and
// reflection.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/daemon/health_server.h"
#include "coordinator/access/access.h"
#include "coordinator/flags.h"
#include "coordinator/service/checkpoint_host.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/guarded_services.h"
#include "coordinator/service/node_service.h"
#include "coordinator/service/rpc_metrics.h"
#include "coordinator/service/stream_hub.h"
#include "grpcpp/server.h"

namespace tercio::coordinator {

class Server {
 public:
  // All but the flags must outlive it. `metrics_address` is where this coordinator's figures are.
  Server(Access& access, Coordinator& coordinator, StreamHub& streams, RpcMetrics& calls,
         const Flags& flags, std::string metrics_address);

  // Begins to serve; *address is the HOST:PORT that it listens on. FAILED_PRECONDITION when it
  // cannot be used. Called once, before the others.
  absl::Status Listen(const Flags& flags, std::string* address);
  void ShowHealth(const DaemonHealth& health);
  // Ends all calls; waits for those that hang in a file system.
  void Shutdown();
  // As CheckpointServiceImpl::Drain.
  bool Drain(absl::Duration patience) { return checkpoints_.Drain(patience); }

 private:
  Access& access_;
  RpcMetrics& calls_;
  GuardedJobService jobs_;
  NodeServiceImpl nodes_;
  std::unique_ptr<CheckpointHost> checkpoint_host_;
  GuardedCheckpointService checkpoints_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tercio::coordinator
