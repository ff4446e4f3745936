// Routes gRPC's log into the log of this program; failed TLS handshakes also go to the audit log.
// gRPC reports the reason but not the peer.
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
