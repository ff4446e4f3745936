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

// A peer that answers no ping for the timeout has gone: a cable, a machine, or what keeps state in
// between, since a process that ends closes its connections. Its calls end with UNAVAILABLE.
struct Pings {
  absl::Duration interval = absl::Seconds(20);
  absl::Duration timeout = absl::Seconds(20);
};

// `address` is HOST:PORT or unix:PATH. A name is resolved again for each new connection, every two
// seconds at most. Not over Unix sockets: pings, since a stopped process is alive. Files that
// change are read again for the next connection. Errors: INVALID_ARGUMENT (only some of the three
// files), NOT_FOUND, PERMISSION_DENIED.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const std::string& address, const TlsFiles& tls,
    const std::string& server_role = kCoordinatorRole, const Pings& pings = {});
// To a coordinator, with TLS but without a certificate of one's own; `authority` is PEM text.
std::shared_ptr<grpc::Channel> OpenAnonymousChannel(const std::string& address,
                                                    const std::string& authority);

// Each new connection gets what the identity holds then; null: no TLS. Who connects must have a
// certificate of the identity's authority, or need not have one (kNone).
enum class ClientCertificates { kRequired, kNone };
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<TlsIdentity> identity,
    ClientCertificates clients = ClientCertificates::kRequired);

// All TLS of this process is version 1.3 from now on, gRPC's too, which would take 1.2. Called by
// the functions above; by whoever else uses OpenSSL's.
void RequireTls13();

// What a server of ours takes in one message; a larger one is refused with RESOURCE_EXHAUSTED. The
// largest that are sent to one are tokenizers, with a checkpoint. What a server sends may be
// larger: plans grow with the ranks.
inline constexpr int kMostMessageBytes = 64 << 20;

// What all connections of a server may hold in memory. gRPC looks at the size of a message when it
// has all of it; beyond this limit it breaks off calls, whose clients try again.
inline constexpr size_t kMostBufferedBytes = size_t{1} << 30;

// A server of agents ends connections that are older, within a tenth of it: their clients make new
// ones, with certificates that are good then.
inline constexpr absl::Duration kLongestConnectionOfAgents = absl::Hours(24);

// What every server of ours has: bounded messages and buffers, a port that is not shared with
// another process, pings that find peers which vanished without closing, and little patience with
// connections that never begin to speak HTTP/2. Calls that hold a thread (of services that are not
// callbacks) have `most_threads` together: further ones are answered RESOURCE_EXHAUSTED.
void ConfigureServer(grpc::ServerBuilder& builder,
                     int most_threads = std::numeric_limits<int>::max(), const Pings& pings = {});

// 127.0.0.0/8, ::1, localhost, unix sockets.
bool IsLoopback(const std::string& address);

}  // namespace tercio
