#include "coordinator/server.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/daemon/health_server.h"
#include "common/security/channel.h"
#include "coordinator/service/admission.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"

namespace tercio::coordinator {
namespace {

// Queries and requests of people hold a thread each; agents, ranks and streams that follow a job
// have other threads. A file system that hangs may keep this many.
constexpr int kMostCallThreads = 64;

// Without TLS the only clients are on this machine, where the file system's permissions apply.
CheckpointPlaces PlacesOf(const Flags& flags, const Access& access) {
  return {flags.state_dir, flags.checkpoint_roots,
          flags.checkpoint_roots.empty() && access.identity() == nullptr};
}

}  // namespace

Server::Server(Access& access, Coordinator& coordinator, StreamHub& streams, RpcMetrics& calls,
               const Flags& flags, std::string metrics_address)
    : access_(access),
      calls_(calls),
      jobs_(
          access.gate(), coordinator, streams,
          [&coordinator, places = PlacesOf(flags, access)](v1::JobSpec* spec) {
            return Admit(spec, coordinator.Nodes(), coordinator.Views(), places);
          },
          flags.state_dir, std::move(metrics_address)),
      nodes_(access.gate(), coordinator, flags.heartbeat_interval),
      checkpoint_host_(HostOf(coordinator)),
      checkpoints_(access.gate(), *checkpoint_host_) {}

absl::Status Server::Listen(const Flags& flags, std::string* address) {
  // Certificates are read at each handshake, so that a renewed one needs no restart.
  const auto credentials = MakeServerCredentials(access_.identity());
  grpc::EnableDefaultHealthCheckService(true);
  // Reflection lets standard tools such as grpcurl call the services.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  ConfigureServer(builder, kMostCallThreads);
  GuardedCheckpointService::Configure(builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  // Interceptors see every call, so that refused ones are measured, too.
  creators.push_back(calls_.MakeInterceptors());
  creators.push_back(access_.gate().MakeStreamWatches());
  builder.experimental().SetInterceptorCreators(std::move(creators));
  int port = 0;
  builder.AddListeningPort(flags.listen, credentials, &port);
  builder.RegisterService(&jobs_);
  builder.RegisterService(&access_.service());
  // A reader of a state directory must not let agents in: nothing here decides.
  if (!flags.read_only) {
    builder.RegisterService(&nodes_);
    builder.RegisterService(&checkpoints_);
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", flags.listen,
                     "; is the port in use? --listen HOST:0 picks a free one"));
  }
  *address = absl::StartsWith(flags.listen, "unix:")
                 ? flags.listen
                 : absl::StrCat(flags.listen.substr(0, flags.listen.rfind(':')), ":", port);
  return absl::OkStatus();
}

void Server::ShowHealth(const DaemonHealth& health) { SetHealth(*server_, health); }

void Server::Shutdown() {
  // Streams to agents never end by themselves, so a shutdown must not wait for them.
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
}

}  // namespace tercio::coordinator
