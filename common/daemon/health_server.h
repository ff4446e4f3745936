// gRPC's health service (grpc.health.v1.Health) alone, in plain text, on a port of its own: for the
// probes of Kubernetes, which know neither TLS nor certificates. It says of the services "liveness"
// and "readiness" and of "" (the same as "readiness") whether they serve. Nothing of Tercio's can
// be asked or done there (gRPC's library adds reflection, which lists these two services).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace tercio {

class HealthServer {
 public:
  // HOST:PORT; port 0 picks one; null where `address` is empty. Nothing serves until Set says so.
  // FAILED_PRECONDITION when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const std::string& address);
  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  void Set(bool alive, bool ready);
  const std::string& address() const { return address_; }

 private:
  HealthServer() = default;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// The same for the health service of a server that has others, too (it was built after
// grpc::EnableDefaultHealthCheckService).
void SetHealth(grpc::Server& server, bool alive, bool ready);

}  // namespace tercio
