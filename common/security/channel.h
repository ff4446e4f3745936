// Channels and server credentials, with or without mutual TLS; TLS is always version 1.3.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/tls_identity.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace tercio {

// The roles that servers must have, in certificates that name roles.
inline constexpr char kCoordinatorRole[] = "coordinator";
inline constexpr char kAgentRole[] = "agent";

// A peer that answers no ping within the timeout counts as gone: its cable, its machine, or a
// device in between that keeps state failed, since a process that ends closes its connections. Its
// calls end with UNAVAILABLE.
struct Pings {
  absl::Duration interval = absl::Seconds(20);
  absl::Duration timeout = absl::Seconds(20);
};

// `address` is HOST:PORT or unix:PATH. A name is resolved again for each new connection, at most
// every two seconds. No pings over Unix sockets, since a stopped process is alive. Changed files
// are read again for the next connection. Errors: INVALID_ARGUMENT (only some of the three files),
// NOT_FOUND, PERMISSION_DENIED.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const std::string& address, const TlsFiles& tls,
    const std::string& server_role = kCoordinatorRole, const Pings& pings = {});
// Opens a channel to a coordinator with TLS, but without a client certificate; `authority` is PEM
// text.
std::shared_ptr<grpc::Channel> OpenAnonymousChannel(const std::string& address,
                                                    const std::string& authority);

// Each new connection gets the identity's current certificate; null: no TLS. Clients must have a
// certificate of the identity's authority, or need not have one (kNone).
enum class ClientCertificates { kRequired, kNone };
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<TlsIdentity> identity,
    ClientCertificates clients = ClientCertificates::kRequired);

// Restricts all TLS of this process to version 1.3, including gRPC's, which would accept 1.2.
// Called by the functions above, and by other users of OpenSSL.
void RequireTls13();

// The largest message that our servers accept; a larger one is refused with RESOURCE_EXHAUSTED. The
// largest ones sent to a server are tokenizers, with a checkpoint. Messages sent by a server may be
// larger: plans grow with the ranks.
inline constexpr int kMostMessageBytes = 64 << 20;

// The memory limit of all connections of a server. gRPC checks the size of a message when it has
// received all of it; beyond this limit it aborts calls, whose clients retry.
inline constexpr size_t kMostBufferedBytes = size_t{1} << 30;

// Servers of agents close connections that are older than this (within a tenth): their clients
// reconnect, with certificates that are valid then.
inline constexpr absl::Duration kLongestConnectionOfAgents = absl::Hours(24);

// The common settings of our servers: bounded messages and buffers, a port that is not shared with
// another process, pings that detect peers which vanished without closing, and a short limit for
// connections that never start to speak HTTP/2. Calls that occupy a thread (of services without
// callbacks) share `most_threads`: further ones are answered with RESOURCE_EXHAUSTED.
void ConfigureServer(grpc::ServerBuilder& builder,
                     int most_threads = std::numeric_limits<int>::max(), const Pings& pings = {});

// 127.0.0.0/8, ::1, localhost, unix sockets.
bool IsLoopback(const std::string& address);

}  // namespace tercio
