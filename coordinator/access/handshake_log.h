// What gRPC logs, in the log of this program; TLS handshakes that failed are also in the audit log.
// gRPC says why, and not with whom.
//
// Threads: gRPC's. One object at a time.
#pragma once

#include "coordinator/access/audit_log.h"

namespace tercio::coordinator {

class HandshakeLog {
 public:
  // The audit log must outlive it.
  explicit HandshakeLog(AuditLog& audit);
  ~HandshakeLog();
  HandshakeLog(const HandshakeLog&) = delete;
  HandshakeLog& operator=(const HandshakeLog&) = delete;
};

}  // namespace tercio::coordinator
