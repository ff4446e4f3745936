#include "common/security/channel.h"

#include <arpa/inet.h>
#include <openssl/conf.h>
#include <openssl/ssl.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "common/check.h"
#include "common/file.h"
#include "common/host_port.h"
#include "common/security/client_credentials.h"
#include "common/status_macros.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"

namespace tercio {
namespace {

// The pause between two connections, and between two resolutions of a name: gRPC's own 30 s are
// longer than the lease of a node whose coordinator has moved.
constexpr int kLongestReconnectPauseMs = 2000;
// The limit for the handshake of a new connection, including TLS.
constexpr int kHandshakeTimeoutMs = 20'000;

// OpenSSL applies it to every context that is created afterwards. gRPC requests at least 1.2 for
// its contexts, which leaves the disabled versions disabled.
constexpr char kTlsConfiguration[] = R"(
tercio = modules
[modules]
ssl_conf = ssl
[ssl]
system_default = all
[all]
Protocol = -TLSv1, -TLSv1.1, -TLSv1.2
CipherString = DEFAULT:@SECLEVEL=2
)";

// The source of a server's certificates. gRPC calls it at each handshake as long as there are
// connections, which outlive the credentials, and does not report when the last one has ended, so
// it is never freed. A process has a handful of servers.
class CertificateSource {
 public:
  explicit CertificateSource(std::shared_ptr<TlsIdentity> identity)
      : identity_(std::move(identity)) {}

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<CertificateSource*>(self)->FetchNew(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsMaterial> now = identity_->Current();
    if (given_.exchange(now->version) == now->version) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->certificate.c_str()};
    *config = grpc_ssl_server_certificate_config_create(now->authority.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<TlsIdentity> identity_;
  std::atomic<int64_t> given_{-1};  // version that gRPC has
};

// Credentials whose certificate is fetched at each handshake. gRPC has these in its C interface
// only.
class ReloadedCredentials : public grpc::ServerCredentials {
 public:
  ReloadedCredentials(std::shared_ptr<TlsIdentity> identity, ClientCertificates clients) {
    const auto request = clients == ClientCertificates::kRequired
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    auto* source = new CertificateSource(std::move(identity));
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            request, CertificateSource::Fetch, source));
  }
  ~ReloadedCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    TERCIO_CHECK(false);  // never called
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* credentials_ = nullptr;
};

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

grpc::ChannelArguments ArgumentsFor(const std::string& address, const Pings& pings) {
  grpc::ChannelArguments arguments;
  // A plan of thousands of ranks is larger than gRPC's default of 4 MiB; the sender is trusted.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectPauseMs);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kLongestReconnectPauseMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A socket of this machine reports its end at once, so that no pings are needed.
  if (!absl::StartsWith(address, "unix:")) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(pings.interval));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(pings.timeout));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const TlsFiles& tls,
                                                           const std::string& server_role,
                                                           const Pings& pings) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls.given() && !absl::StartsWith(address, "unix:")) {
    TERCIO_RETURN_IF_ERROR(CheckComplete(tls));
    // gRPC would only log a file that is missing, and try again for ever.
    for (const std::string& path : {tls.certificate, tls.key, tls.authority}) {
      TERCIO_RETURN_IF_ERROR(ReadFile(path).status());
    }
    RequireTls13();
    credentials = MakeClientCredentials(tls, server_role);
  }
  return grpc::CreateCustomChannel(address, credentials, ArgumentsFor(address, pings));
}

std::shared_ptr<grpc::Channel> OpenAnonymousChannel(const std::string& address,
                                                    const std::string& authority) {
  RequireTls13();
  return grpc::CreateCustomChannel(address, MakeAnonymousCredentials(authority, kCoordinatorRole),
                                   ArgumentsFor(address, Pings()));
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<TlsIdentity> identity, ClientCertificates clients) {
  if (identity == nullptr) return grpc::InsecureServerCredentials();
  RequireTls13();
  return std::make_shared<ReloadedCredentials>(std::move(identity), clients);
}

// OpenSSL has one configuration for the process, so that this is done once.
void RequireTls13() {
  static const bool done = [] {
    // Loads the machine's configuration first, which would otherwise override this setting later.
    OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, nullptr);
    BIO* text = BIO_new_mem_buf(kTlsConfiguration, -1);
    CONF* configuration = NCONF_new(nullptr);
    long line = 0;  // NOLINT: OpenSSL's type
    TERCIO_CHECK_EQ(NCONF_load_bio(configuration, text, &line), 1);
    TERCIO_CHECK_EQ(CONF_modules_load(configuration, "tercio", 0), 1);
    NCONF_free(configuration);
    BIO_free(text);
    return true;
  }();
  TERCIO_CHECK(done);
}

void ConfigureServer(grpc::ServerBuilder& builder, int most_threads, const Pings& pings) {
  builder.SetMaxReceiveMessageSize(kMostMessageBytes);
  builder.SetResourceQuota(
      grpc::ResourceQuota("server").Resize(kMostBufferedBytes).SetMaxThreads(most_threads));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(pings.interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(pings.timeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Allows pings of clients that only listen.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(pings.interval) / 2);
}

bool IsLoopback(const std::string& address) {
  if (absl::StartsWith(address, "unix:") || absl::StartsWith(address, "[::1]:")) return true;
  const std::optional<HostPort> parts = SplitHostPort(address);
  if (!parts.has_value()) return false;
  if (parts->host == "localhost") return true;
  // A host name may start with 127., too.
  in_addr ip = {};
  return inet_pton(AF_INET, parts->host.c_str(), &ip) == 1 && (ntohl(ip.s_addr) >> 24) == 127;
}

}  // namespace tercio
