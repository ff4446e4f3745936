// Finds out why a TLS connection fails. gRPC reports "handshake failed" at best, and nothing if the
// other side refuses this one's certificate; this code performs a handshake of its own, and
// inspects the certificates of both sides.
//
// Threads: any. Blocks for at most a few seconds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/channel.h"

namespace tercio {

// Called after a call to `address` (HOST:PORT) has failed. UNAUTHENTICATED, with which certificate
// is refused by whom and why, if that is the reason; OK if TLS is not the reason.
absl::Status DiagnoseTls(const std::string& address, const TlsFiles& tls);

// The same for a connection without a client certificate; `authority` is PEM text.
absl::Status DiagnoseServer(const std::string& address, const std::string& authority);

// The certificate (PEM) with this fingerprint (SHA-256 of its DER form, hexadecimal) among those
// that the server at `address` presents: nothing but a handshake is sent to the server.
// UNAUTHENTICATED: it presents none with that fingerprint, or speaks no TLS; UNAVAILABLE: no
// answer.
absl::StatusOr<std::string> FetchAuthority(const std::string& address,
                                           const std::string& fingerprint);

}  // namespace tercio
