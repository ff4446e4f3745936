// A connected, non-blocking socket, with or without TLS 1.3.
//
// Threads: one at a time. SIGPIPE must be ignored by the process: OpenSSL writes without
// MSG_NOSIGNAL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/security/tls_identity.h"

typedef struct ssl_st SSL;          // NOLINT: OpenSSL's names
typedef struct ssl_ctx_st SSL_CTX;  // NOLINT

namespace tercio::serve {

// The certificate of a server, as its files were when they were read. Clients need a certificate of
// the authority where one is given.
class TlsContext {
 public:
  // INVALID_ARGUMENT: certificate without key, or key without certificate; FAILED_PRECONDITION: a
  // file that OpenSSL cannot use, by name.
  static absl::StatusOr<std::shared_ptr<TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const { return context_; }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context) {}
  SSL_CTX* const context_;
};

class TlsSocket {
 public:
  // Owns the socket. `context` may be null: no TLS.
  TlsSocket(int socket, const std::shared_ptr<TlsContext>& context);
  ~TlsSocket();
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;

  enum class Result { kDone, kWouldBlock, kGone };
  // Ends the handshake; kDone at once without TLS.
  Result Handshake();
  // kDone: `count` bytes, at least one, have been moved.
  Result Read(char* buffer, size_t size, size_t* count);
  Result Write(std::string_view bytes, size_t* count);
  // No more is written.
  void ShutDownWriting();

  int descriptor() const { return socket_; }
  // What the last call that would block waits for.
  bool wants_write() const { return wants_write_; }
  // Bytes that have been read from the socket, which poll does not see.
  bool has_pending() const;

 private:
  Result Outcome(int result);

  const int socket_;
  SSL* ssl_ = nullptr;
  bool wants_write_ = false;
};

}  // namespace tercio::serve
