// Why a TLS connection does not come about. gRPC says "handshake failed" at best, and nothing where
// the other side refuses this one's certificate; this shakes hands once more, by itself, and looks
// at the certificates of both sides.
//
// Threads: any. Blocks for at most some seconds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/channel.h"

namespace tercio {

// To be asked after a call to `address` (HOST:PORT) has failed. UNAUTHENTICATED, with which
// certificate is refused by whom and why, when that is the reason; OK when TLS is none.
absl::Status DiagnoseTls(const std::string& address, const TlsFiles& tls);

}  // namespace tercio
