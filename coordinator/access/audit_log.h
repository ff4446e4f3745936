// Who has changed what, and who was refused: one line of JSON for each call, appended to a file
// that only its owner reads.
//   {"time", "who", "role", "serial", "address", "call", "subject", "outcome", "reason"}
// Rotated at `most_bytes` to audit.log.1 ... .N; the oldest is removed. Lines that cannot be
// written (a full disk) are counted, and that is logged at most once a minute: the calls are
// answered all the same, since a cluster that nobody can stop would be worse.
//
// Threads: any. Each line is one write to the file, so that lines are whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/time/time.h"

namespace tercio::coordinator {

struct AuditEntry {
  std::string who;  // name of the certificate or token; empty: not known
  std::string role;
  std::string serial;
  std::string address;
  std::string call;     // "JobService/Cancel", or "handshake"
  std::string subject;  // job, node or name that it was about
  std::string outcome;  // "ok", "refused" or "failed"
  std::string reason;   // of what is not ok
};

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

 private:
  bool Append(const std::string& line);
  void Rotate();

  const std::string path_;
  const Options options_;
  std::mutex mutex_;
  int file_ = -1;
  int64_t bytes_ = 0;
  std::atomic<int64_t> lost_{0};
  absl::Time warned_ = absl::InfinitePast();  // of the steady clock
};

}  // namespace tercio::coordinator
