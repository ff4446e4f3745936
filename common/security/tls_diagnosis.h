// Why a TLS connection does not come about. gRPC says "handshake failed" at best, and nothing where
// the other side refuses this one's certificate; this shakes hands once more, by itself, and looks
// at the certificates of both sides.
//
// Threads: any. Blocks for at most some seconds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/channel.h"

namespace tercio {

// To be asked after a call to `address` (HOST:PORT) has failed. UNAUTHENTICATED, with which
// certificate is refused by whom and why, when that is the reason; OK when TLS is none.
absl::Status DiagnoseTls(const std::string& address, const TlsFiles& tls);

// The same of a server that is not asked who this side is; `authority` is PEM text.
absl::Status DiagnoseServer(const std::string& address, const std::string& authority);

// The certificate (PEM) of this fingerprint (SHA-256 of its DER form, hexadecimal), which the
// server at `address` shows among its own: nothing is sent to the server but a handshake.
// UNAUTHENTICATED: it shows none of that fingerprint, or speaks no TLS; UNAVAILABLE: nobody
// answers.
absl::StatusOr<std::string> FetchAuthority(const std::string& address,
                                           const std::string& fingerprint);

}  // namespace tercio
