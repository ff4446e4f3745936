// Channels and server credentials, with or without mutual TLS.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace tercio {

// PEM files; all empty: no TLS.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
  bool given() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

// What TERCIO_TLS_CERT, TERCIO_TLS_KEY and TERCIO_TLS_CA say.
TlsFiles TlsFromEnvironment();

// `address` is HOST:PORT or unix:PATH. Errors: INVALID_ARGUMENT (only some of the three files),
// NOT_FOUND.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const TlsFiles& tls);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsFiles& tls);

// What a server of ours takes in one message; a larger one is refused with RESOURCE_EXHAUSTED. The
// largest that are sent to one are tokenizers, with a checkpoint. What a server sends may be
// larger: plans grow with the ranks.
inline constexpr int kMostMessageBytes = 64 << 20;

// What all connections of a server may hold in memory. gRPC looks at the size of a message when it
// has all of it; beyond this limit it breaks off calls, whose clients try again.
inline constexpr size_t kMostBufferedBytes = size_t{1} << 30;

// What every server of ours has: bounded messages and buffers, a port that is not shared with
// another process, pings that find peers which vanished without closing, and little patience with
// connections that never begin to speak HTTP/2.
void ConfigureServer(grpc::ServerBuilder& builder);

// 127.0.0.0/8, ::1, localhost, unix sockets.
bool IsLoopback(const std::string& address);

}  // namespace tercio
