#include "serve/tls_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::serve {
namespace {

absl::Status Unusable(const std::string& flag, const std::string& path) {
  char reason[256] = "";
  ERR_error_string_n(ERR_get_error(), reason, sizeof(reason));
  ERR_clear_error();
  return absl::FailedPreconditionError(absl::StrCat(flag, " ", path, " cannot be used: ", reason));
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        "TLS needs --tls-cert and --tls-key; --tls-ca alone changes nothing");
  }
  std::shared_ptr<TlsContext> made(new TlsContext(SSL_CTX_new(TLS_server_method())));
  SSL_CTX* const context = made->get();
  TERCIO_CHECK(context != nullptr);
  TERCIO_CHECK_EQ(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), 1);
  // Output that could not be written is retried from a buffer that may have moved.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return Unusable("--tls-cert", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return Unusable("--tls-key", files.key);
  }
  if (!files.authority.empty()) {
    if (SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1) {
      return Unusable("--tls-ca", files.authority);
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    const unsigned char session[] = "tercio serve";
    SSL_CTX_set_session_id_context(context, session, sizeof(session) - 1);
  }
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

TlsSocket::TlsSocket(int socket, const std::shared_ptr<TlsContext>& context) : socket_(socket) {
  if (context == nullptr) return;
  ssl_ = SSL_new(context->get());
  TERCIO_CHECK(ssl_ != nullptr);
  TERCIO_CHECK_EQ(SSL_set_fd(ssl_, socket_), 1);
  SSL_set_accept_state(ssl_);
}

TlsSocket::~TlsSocket() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  close(socket_);
}

TlsSocket::Result TlsSocket::Outcome(int result) {
  const int error = SSL_get_error(ssl_, result);
  // Errors of one connection are no errors of the next call.
  ERR_clear_error();
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  return error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ ? Result::kWouldBlock
                                                                       : Result::kGone;
}

TlsSocket::Result TlsSocket::Handshake() {
  if (ssl_ == nullptr) return Result::kDone;
  const int result = SSL_do_handshake(ssl_);
  return result == 1 ? Result::kDone : Outcome(result);
}

TlsSocket::Result TlsSocket::Read(char* buffer, size_t size, size_t* count) {
  if (ssl_ != nullptr) {
    const int result = SSL_read_ex(ssl_, buffer, size, count);
    return result == 1 ? Result::kDone : Outcome(result);
  }
  ssize_t result = 0;
  do {
    result = recv(socket_, buffer, size, 0);
  } while (result < 0 && errno == EINTR);
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Result::kWouldBlock;
  if (result <= 0) return Result::kGone;
  *count = static_cast<size_t>(result);
  return Result::kDone;
}

TlsSocket::Result TlsSocket::Write(std::string_view bytes, size_t* count) {
  if (ssl_ != nullptr) {
    const int result = SSL_write_ex(ssl_, bytes.data(), bytes.size(), count);
    return result == 1 ? Result::kDone : Outcome(result);
  }
  ssize_t result = 0;
  do {
    result = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } while (result < 0 && errno == EINTR);
  wants_write_ = result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (wants_write_) return Result::kWouldBlock;
  if (result < 0) return Result::kGone;
  *count = static_cast<size_t>(result);
  return Result::kDone;
}

void TlsSocket::ShutDownWriting() {
  if (ssl_ != nullptr) SSL_shutdown(ssl_);
  ERR_clear_error();
  shutdown(socket_, SHUT_WR);
}

bool TlsSocket::has_pending() const { return ssl_ != nullptr && SSL_pending(ssl_) > 0; }

}  // namespace tercio::serve
