#include "coordinator/access/handshake_log.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/steady_time.h"
#include "coordinator/access/rate_limiter.h"
#include "grpc/support/log.h"

namespace tercio::coordinator {
namespace {

// The words are those of gRPC 1.51, which offers no other way to learn of a failure.
constexpr char kFailure[] = "Handshake failed with fatal error ";
// Any client that reaches the port can cause these lines.
constexpr RateLimiter::Limit kLines = {20, 1};

struct Sink {
  Mutex mutex;
  AuditLog* audit TERCIO_GUARDED_BY(mutex) = nullptr;  // null: the log is closed
  RateLimiter limiter TERCIO_GUARDED_BY(mutex){kLines};
  int64_t left_out TERCIO_GUARDED_BY(mutex) = 0;
};

// Outlives every thread of gRPC.
Sink& TheSink() {
  static auto* const sink = new Sink;
  return *sink;
}

void Take(gpr_log_func_args* line) {
  const std::string text = line->message;
  const size_t failure = text.find(kFailure);
  Sink& sink = TheSink();
  MutexLock lock(sink.mutex);
  // Lines that come before or after have nowhere to go.
  if (sink.audit == nullptr) return;
  // Each failure is counted, whether or not there is a line for it below.
  if (failure != std::string::npos) sink.audit->Count(Refusal::kHandshake);
  if (!sink.limiter.Take("", SteadyNow())) {
    ++sink.left_out;
    return;
  }
  const std::string more =
      sink.left_out == 0 ? "" : absl::StrCat(" (", sink.left_out, " lines left out before)");
  sink.left_out = 0;
  if (failure == std::string::npos) {
    LogWarning(absl::StrCat("gRPC: ", text, more));
    return;
  }
  AuditEntry entry;
  entry.call = "handshake";
  entry.outcome = "refused";
  entry.reason = text.substr(failure + sizeof(kFailure) - 1) + more;
  LogWarning(absl::StrCat("a TLS handshake was refused: ", entry.reason));
  sink.audit->Write(entry);
}

}  // namespace

HandshakeLog::HandshakeLog(AuditLog& audit) {
  Sink& sink = TheSink();
  MutexLock lock(sink.mutex);
  sink.audit = &audit;
  gpr_set_log_function(Take);
}

HandshakeLog::~HandshakeLog() {
  Sink& sink = TheSink();
  // The function stays installed, since gRPC's threads may be inside it; it now does nothing.
  MutexLock lock(sink.mutex);
  sink.audit = nullptr;
}

}  // namespace tercio::coordinator
