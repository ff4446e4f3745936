// The agent's SnapshotService: takes copies of snapshots into its store and gives them out. For the
// node's own trainers it is on the agent's socket (trainer_server.h), for those of other nodes on a
// port of its own.
//
// Threads: gRPC's.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/security/channel.h"
#include "grpcpp/server.h"
#include "proto/tercio/v1/snapshot_service.grpc.pb.h"
#include "worker/agent/snapshots/snapshot_store.h"

namespace tercio::agent {

class SnapshotServiceImpl : public v1::SnapshotService::Service {
 public:
  // Whether the agent takes part in this attempt, and the token is that of the attempt.
  using TakesPart = std::function<bool(const v1::RunId& run, const std::string& token)>;

  // The store must outlive it.
  SnapshotServiceImpl(SnapshotStore& store, TakesPart takes_part)
      : store_(store), takes_part_(std::move(takes_part)) {}

  // Refuses certificates with these serial numbers from now on.
  void Revoke(const v1::RevokedCertificates& certificates);

  grpc::Status Put(grpc::ServerContext*, grpc::ServerReader<v1::PutSnapshotMessage>* reader,
                   v1::PutSnapshotResponse*) override;
  grpc::Status Get(grpc::ServerContext*, const v1::GetSnapshotRequest* request,
                   grpc::ServerWriter<v1::GetSnapshotMessage>* writer) override;

 private:
  absl::Status CheckCaller(const grpc::ServerContext& context, std::string_view call);
  absl::Status Receive(grpc::ServerReader<v1::PutSnapshotMessage>& reader);

  SnapshotStore& store_;
  const TakesPart takes_part_;
  Mutex mutex_;
  std::set<std::string> revoked_ TERCIO_GUARDED_BY(mutex_);
};

// The port for trainers of other nodes.
class SnapshotServer {
 public:
  // `address` is HOST:PORT; port 0 picks one; `identity` null: without TLS. The service must
  // outlive the server. FAILED_PRECONDITION when the address cannot be used.
  static absl::StatusOr<std::unique_ptr<SnapshotServer>> Listen(
      const std::string& address, std::shared_ptr<TlsIdentity> identity,
      SnapshotServiceImpl& service);
  ~SnapshotServer();

  // HOST:PORT that really listens.
  const std::string& address() const { return address_; }

 private:
  SnapshotServer() = default;

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace tercio::agent
