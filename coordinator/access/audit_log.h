// The audit log: each change and each refusal is one line of JSON with the caller, appended to a
// file that only its owner reads.
//   {"time", "who", "role", "serial", "address", "call", "subject", "outcome", "reason"}
// Rotated at `most_bytes` to audit.log.1 ... .N; the oldest is removed. Lines that cannot be
// written (a full disk) are counted, and that is logged at most once a minute: the calls are
// answered all the same, since a cluster that cannot be stopped would be worse. Lines are ASCII,
// and texts that callers choose are cut. A file that was removed is created again.
//
// Refusals are counted, too, whether they get a line or not.
//
// Threads: any. Each line is one write to the file, so that lines are whole.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::coordinator {

struct AuditEntry {
  std::string who;  // name of the certificate or token; empty: not known
  std::string role;
  std::string serial;  // the caller's certificate; for an enrolment, the one that it got
  std::string address;
  std::string call;     // "JobService/Cancel", or "handshake"
  std::string subject;  // job, node or name that it was about
  std::string outcome;  // "ok", "refused" or "failed"
  std::string reason;   // why it was not ok; for an enrolment, the number of its token
};

// Why a caller was refused.
enum class Refusal {
  kHandshake,  // no TLS, or no certificate of ours
  kEnrolment,  // no good token, or a request that goes beyond it
  kRevoked,    // the certificate
  kRole,       // the role does not allow the call
  kNotTheirs,  // the job is another's, the node not its own
  kTooOften,
};
inline constexpr std::array<const char*, 6> kRefusalNames = {
    "handshake", "enrolment", "revoked", "role", "not_theirs", "too_often"};

class AuditLog {
 public:
  struct Options {
    int64_t most_bytes = 16 << 20;
    int files = 4;  // beside the present one
  };
  AuditLog(std::string path, Options options) : path_(std::move(path)), options_(options) {}
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void Write(const AuditEntry& entry);

  // Lines that could not be written.
  int64_t lost() const { return lost_; }

  void Count(Refusal refusal) { ++refused_[static_cast<size_t>(refusal)]; }
  // In the order of kRefusalNames.
  int64_t refused(size_t refusal) const { return refused_[refusal]; }

 private:
  void CloseWhereRemoved() TERCIO_REQUIRES(mutex_);
  bool Append(const std::string& line) TERCIO_REQUIRES(mutex_);
  void Rotate() TERCIO_REQUIRES(mutex_);

  const std::string path_;
  const Options options_;
  Mutex mutex_;
  int file_ TERCIO_GUARDED_BY(mutex_) = -1;
  int64_t bytes_ TERCIO_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> lost_{0};
  std::array<std::atomic<int64_t>, kRefusalNames.size()> refused_{};
  absl::Time warned_ TERCIO_GUARDED_BY(mutex_) = absl::InfinitePast();  // by the steady clock
};

}  // namespace tercio::coordinator
