#include "common/security/tls_diagnosis.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/host_port.h"
#include "common/security/certificate.h"
#include "common/security/openssl_pointers.h"

namespace tercio {
namespace {

// The diagnosis follows a call that has failed: a person is waiting for it.
constexpr int kTimeoutSeconds = 3;

using Context = std::unique_ptr<SSL_CTX, OpenSslFreer<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, OpenSslFreer<SSL_free>>;
using Address = std::unique_ptr<ASN1_OCTET_STRING, OpenSslFreer<ASN1_OCTET_STRING_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, OpenSslFreer<X509_STORE_CTX_free>>;

HostPort Split(const std::string& address) {
  return SplitHostPort(address).value_or(HostPort{address, ""});
}

class Socket {
 public:
  explicit Socket(const HostPort& endpoint) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found) != 0) return;
    // A name may have several addresses, of which only one may answer.
    for (const addrinfo* one = found; one != nullptr && handle_ < 0; one = one->ai_next) {
      handle_ = socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const timeval timeout = {kTimeoutSeconds, 0};
      setsockopt(handle_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
      setsockopt(handle_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
      if (connect(handle_, one->ai_addr, one->ai_addrlen) == 0) continue;
      close(handle_);
      handle_ = -1;
    }
    freeaddrinfo(found);
  }
  ~Socket() {
    if (handle_ >= 0) close(handle_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int handle() const { return handle_; }

 private:
  int handle_ = -1;
};

// Writing to a connection that the other side has closed must return an error instead of ending the
// process.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now = {};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

// The error stays in the queue, where later questions look for its reason.
std::string OpenSslError() {
  const unsigned long error = ERR_peek_last_error();  // NOLINT: OpenSSL's type
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "connection closed" : reason;
}

constexpr char kOurs[] = "the certificate of the coordinator is rejected: ";

absl::Status Refused(const std::string& what) { return absl::UnauthenticatedError(what); }

// Loads this side's own files. OpenSSL's messages name neither file nor reason well.
absl::Status LoadFiles(SSL_CTX* context, const TlsFiles& tls) {
  // Each file is loaded by itself, so that the message can name the one that is wrong.
  if (SSL_CTX_load_verify_locations(context, tls.authority.c_str(), nullptr) != 1) {
    return Refused(absl::StrCat("the --tls-ca file ", tls.authority,
                                " contains no certificate of an authority: ", OpenSslError()));
  }
  if (SSL_CTX_use_certificate_chain_file(context, tls.certificate.c_str()) != 1) {
    return Refused(absl::StrCat("the --tls-cert file ", tls.certificate,
                                " contains no certificate: ", OpenSslError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context, tls.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Refused(absl::StrCat("the --tls-key file ", tls.key,
                                " does not belong to the certificate of --tls-cert, ",
                                tls.certificate, ": ", OpenSslError()));
  }
  return absl::OkStatus();
}

// The names and addresses that a certificate is for. Escaped, since they come from a stranger and
// go to a terminal.
std::string NamesOf(X509* certificate) {
  const NamesPointer names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  const std::vector<std::string> hosts = ReadAlternativeNames(names.get()).hosts;
  return hosts.empty() ? "none" : absl::CHexEscape(absl::StrJoin(hosts, ", "));
}

// Why this side does not trust the other's certificate.
absl::Status OursRefuses(long result) {  // NOLINT: OpenSSL's type
  switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Refused(absl::StrCat(kOurs, "it has expired; give the coordinator a new one"));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Refused(absl::StrCat(kOurs, "it is not valid yet; compare the machines' clocks"));
    default:
      return Refused(absl::StrCat(kOurs, "it is not signed by the authority of --tls-ca (",
                                  X509_verify_cert_error_string(result),
                                  "); if the cluster has a new authority, log in or join again"));
  }
}

std::string NameOf(const X509_NAME* name) {
  char text[256] = "";
  X509_NAME_oneline(name, text, sizeof(text));
  return text;
}

// This side's verification of its own certificate.
int VerifyOwn(SSL* connection) {
  const StoreContext check(X509_STORE_CTX_new());
  X509* own = SSL_get_certificate(connection);
  X509_STORE* store = SSL_CTX_get_cert_store(SSL_get_SSL_CTX(connection));
  if (check == nullptr || X509_STORE_CTX_init(check.get(), store, own, nullptr) != 1) {
    return X509_V_OK;
  }
  X509_verify_cert(check.get());
  return X509_STORE_CTX_get_error(check.get());
}

// Why the other side does not trust this side's certificate: from its alert, or, as gRPC closes the
// connection without one, from what this side can check.
absl::Status TheirsRefuses(SSL* connection, const TlsFiles& tls) {
  // The alert is the other side's own word, and counts more than any guess.
  const int alert = ERR_GET_REASON(ERR_peek_last_error());
  if (alert == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED) {
    return Refused("the coordinator requires a certificate: give --tls-cert, --tls-key, --tls-ca");
  }
  const std::string what =
      absl::StrCat("the coordinator rejects the --tls-cert certificate ", tls.certificate, ": ");
  const int own = VerifyOwn(connection);
  if (alert == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED || own == X509_V_ERR_CERT_HAS_EXPIRED ||
      own == X509_V_ERR_CERT_NOT_YET_VALID) {
    return Refused(what + "it has expired, or is not valid yet");
  }
  return Refused(absl::StrCat(what,
                              "it is signed by an authority that the coordinator does not know, ",
                              NameOf(X509_get_issuer_name(SSL_get_certificate(connection))),
                              own == X509_V_OK ? " (is it that of the coordinator's --tls-ca?)"
                                               : " (which is not that of --tls-ca here either)"));
}

// Checks the name here rather than in OpenSSL, which does not keep the certificate that it refuses.
absl::Status CheckName(SSL* connection, const std::string& host) {
  const CertificatePointer certificate(SSL_get1_peer_certificate(connection));
  // A name and an address are checked by different functions; either may fit.
  if (certificate == nullptr || X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1 ||
      X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) == 1) {
    return absl::OkStatus();
  }
  return Refused(absl::StrCat(kOurs, "it is not for ", host, " (it is for ",
                              NamesOf(certificate.get()),
                              "); use one of these names to reach the coordinator"));
}

// Whether the other side closed the connection, as opposed to not answering in time.
bool IsClosed(SSL* connection, int result) {
  const int error = SSL_get_error(connection, result);
  if (result > 0 || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
  return error != SSL_ERROR_SYSCALL || (errno != EAGAIN && errno != EWOULDBLOCK);
}

// The handshake, and the first bytes after it: in TLS 1.3 a certificate is refused only then.
absl::Status ShakeHands(SSL* connection, const std::string& host, const TlsFiles& tls) {
  ERR_clear_error();
  if (const int done = SSL_connect(connection); done != 1) {
    const long result = SSL_get_verify_result(connection);  // NOLINT: OpenSSL's type
    if (result != X509_V_OK) return OursRefuses(result);
    if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER) {
      return Refused(
          "the coordinator does not speak TLS; leave out --tls-cert, --tls-key, --tls-ca");
    }
    return IsClosed(connection, done) ? TheirsRefuses(connection, tls) : absl::OkStatus();
  }
  if (absl::Status name = CheckName(connection, host); !name.ok()) return name;
  // The other side sends first. Writing now could lose its alert, if it closes the connection.
  char byte = 0;
  const int read = SSL_read(connection, &byte, 1);
  return IsClosed(connection, read) ? TheirsRefuses(connection, tls) : absl::OkStatus();
}

// SHA-256 of a certificate as it is sent.
std::string FingerprintOf(X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_digest(certificate, EVP_sha256(), digest, &size) != 1) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

// Adds a certificate, given as text, to the trusted ones.
void Trust(SSL_CTX* context, const std::string& pem) {
  const CertificatePointer certificate(
      PEM_read_bio_X509(ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return;
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate.get());
}

// The objects of one handshake with a server.
struct Handshake {
  explicit Handshake(const std::string& address) : endpoint(Split(address)), socket(endpoint) {
    // The enrolment port and the coordinator accept nothing older.
    RequireTls13();
    context.reset(SSL_CTX_new(TLS_client_method()));
    const unsigned char protocols[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context.get(), protocols, sizeof(protocols));
  }
  // Created last: it copies the settings of the context.
  bool Prepare() {
    connection.reset(SSL_new(context.get()));
    if (connection == nullptr || SSL_set_fd(connection.get(), socket.handle()) != 1) return false;
    const Address ip(a2i_IPADDRESS(endpoint.host.c_str()));
    // Addresses are not sent as server names (RFC 6066).
    if (ip == nullptr) SSL_set_tlsext_host_name(connection.get(), endpoint.host.c_str());
    ERR_clear_error();
    return true;
  }

  const NoPipeSignal no_signal;
  const HostPort endpoint;
  const Socket socket;
  Context context;
  Connection connection;
};

}  // namespace

absl::StatusOr<std::string> FetchAuthority(const std::string& address,
                                           const std::string& fingerprint) {
  Handshake handshake(address);
  if (handshake.socket.handle() < 0) {
    return absl::UnavailableError(
        absl::StrCat("no answer at ", address, ": is the coordinator's enrolment port there?"));
  }
  if (!handshake.Prepare()) return absl::InternalError("cannot start a TLS handshake");
  if (SSL_connect(handshake.connection.get()) != 1) {
    // This answer means that the other side speaks plain HTTP.
    const bool plain = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_WRONG_VERSION_NUMBER;
    return Refused(absl::StrCat(
        "the server at ", address, plain ? " does not speak TLS" : " aborts the TLS 1.3 handshake",
        ": it is not the enrolment port of a coordinator; nothing was sent"));
  }
  STACK_OF(X509)* chain = SSL_get_peer_cert_chain(handshake.connection.get());
  // The authority is in the chain that the server shows, behind its own certificate.
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    X509* certificate = sk_X509_value(chain, i);
    if (FingerprintOf(certificate) == fingerprint) return PemOf(certificate);
  }
  return Refused(absl::StrCat("the server at ", address,
                              " presents no authority with the token's fingerprint ",
                              fingerprint.substr(0, 16),
                              "...: the token is for another cluster, or the connection is "
                              "intercepted; the token was not sent"));
}

absl::Status DiagnoseServer(const std::string& address, const std::string& authority) {
  Handshake handshake(address);
  if (handshake.socket.handle() < 0) return absl::OkStatus();
  Trust(handshake.context.get(), authority);
  SSL_CTX_set_verify(handshake.context.get(), SSL_VERIFY_PEER, nullptr);
  if (!handshake.Prepare()) return absl::OkStatus();
  if (SSL_connect(handshake.connection.get()) != 1) {
    const long result = SSL_get_verify_result(handshake.connection.get());  // NOLINT: as above
    return result == X509_V_OK ? absl::OkStatus() : OursRefuses(result);
  }
  return CheckName(handshake.connection.get(), handshake.endpoint.host);
}

absl::Status DiagnoseTls(const std::string& address, const TlsFiles& tls) {
  // Sockets of this machine have no TLS.
  if (absl::StartsWith(address, "unix:")) return absl::OkStatus();
  RequireTls13();
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::OkStatus();
  if (tls.given()) {
    if (absl::Status files = LoadFiles(context.get(), tls); !files.ok()) return files;
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  }
  const unsigned char protocols[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), protocols, sizeof(protocols));
  const NoPipeSignal no_signal;
  const HostPort endpoint = Split(address);
  const Socket socket(endpoint);
  if (socket.handle() < 0) return absl::OkStatus();
  const Connection connection(SSL_new(context.get()));
  if (connection == nullptr || SSL_set_fd(connection.get(), socket.handle()) != 1) {
    return absl::OkStatus();
  }
  if (tls.given()) {
    const Address ip(a2i_IPADDRESS(endpoint.host.c_str()));
    if (ip == nullptr) SSL_set_tlsext_host_name(connection.get(), endpoint.host.c_str());
    return ShakeHands(connection.get(), endpoint.host, tls);
  }
  // Without files it is enough to know that the other side would start a handshake.
  SSL_connect(connection.get());
  if (SSL_get_peer_cert_chain(connection.get()) == nullptr) return absl::OkStatus();
  return Refused(
      "the coordinator speaks TLS: log in with `tercio login` (an agent joins with "
      "--join-token-file), or give --tls-cert, --tls-key and --tls-ca");
}

}  // namespace tercio
