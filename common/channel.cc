#include "common/channel.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"

namespace tercio {
namespace {

// A peer that answers no ping for kPingTimeoutMs has gone: a cable or a machine, since a process
// that ends closes its connections. Not over Unix sockets, where a stopped process is alive.
constexpr int kPingIntervalMs = 20'000;
constexpr int kPingTimeoutMs = 20'000;
// Until a new connection has made itself known, with TLS.
constexpr int kHandshakeTimeoutMs = 20'000;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::Status CheckComplete(const TlsFiles& tls) {
  if (!tls.certificate.empty() && !tls.key.empty() && !tls.authority.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("TLS needs all of --tls-cert, --tls-key and --tls-ca");
}

}  // namespace

TlsFiles TlsFromEnvironment() {
  return {Environment("TERCIO_TLS_CERT"), Environment("TERCIO_TLS_KEY"),
          Environment("TERCIO_TLS_CA")};
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  if (!absl::StartsWith(address, "unix:")) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  if (!tls.given() || absl::StartsWith(address, "unix:")) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  TERCIO_RETURN_IF_ERROR(CheckComplete(tls));
  grpc::SslCredentialsOptions options;
  TERCIO_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(tls.certificate));
  TERCIO_ASSIGN_OR_RETURN(options.pem_private_key, ReadFile(tls.key));
  TERCIO_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(tls.authority));
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& tls) {
  if (!tls.given()) return grpc::InsecureServerCredentials();
  TERCIO_RETURN_IF_ERROR(CheckComplete(tls));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  TERCIO_ASSIGN_OR_RETURN(pair.cert_chain, ReadFile(tls.certificate));
  TERCIO_ASSIGN_OR_RETURN(pair.private_key, ReadFile(tls.key));
  TERCIO_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(tls.authority));
  options.pem_key_cert_pairs.push_back(pair);
  return grpc::SslServerCredentials(options);
}

void ConfigureServer(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("server").Resize(kMostBufferedBytes));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients ping while they only listen.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMs / 2);
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:") || absl::StartsWith(address, "unix:");
}

}  // namespace tercio
