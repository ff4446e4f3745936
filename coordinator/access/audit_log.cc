#include "coordinator/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/steady_time.h"
#include "nlohmann/json.hpp"

namespace tercio::coordinator {
namespace {

constexpr absl::Duration kBetweenWarnings = absl::Minutes(1);
// Names and addresses are shorter; a reason holds a whole message.
constexpr size_t kLongestText = 200;
constexpr size_t kLongestReason = 500;
constexpr mode_t kPrivate = 0600;

// Callers choose some of the text, and must not fill the file with it.
std::string Cut(const std::string& text, size_t longest) {
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

std::string LineOf(const AuditEntry& entry) {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["who"] = Cut(entry.who, kLongestText);
  line["role"] = entry.role;
  line["serial"] = Cut(entry.serial, kLongestText);
  line["address"] = entry.address;
  line["call"] = entry.call;
  line["subject"] = Cut(entry.subject, kLongestText);
  line["outcome"] = entry.outcome;
  line["reason"] = Cut(entry.reason, kLongestReason);
  // Text from clients may not be UTF-8, and may be aimed at the reader's terminal: all
  // but ASCII is escaped.
  std::string text = line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  // DEL is ASCII and left alone by the library, but terminals act on it.
  return absl::StrReplaceAll(text, {{"\x7f", "\\u007f"}}) + "\n";
}

}  // namespace

AuditLog::~AuditLog() {
  if (file_ >= 0) close(file_);
}

void AuditLog::Write(const AuditEntry& entry) {
  const std::string line = LineOf(entry);
  MutexLock lock(mutex_);
  if (Append(line)) return;
  // LogError below may change errno.
  const int error = errno;
  ++lost_;
  const absl::Time now = SteadyNow();
  if (now - warned_ < kBetweenWarnings) return;
  warned_ = now;
  LogError(absl::StrCat("cannot write ", path_, ": ", std::strerror(error),
                        "; lines lost so far: ", lost_.load()));
}

// Without this, removing the file to make room would lose all later lines.
void AuditLog::CloseWhereRemoved() {
  struct stat info = {};
  if (file_ < 0 || fstat(file_, &info) != 0 || info.st_nlink > 0) return;
  close(file_);
  file_ = -1;
}

bool AuditLog::Append(const std::string& line) {
  CloseWhereRemoved();
  // The file is rotated before the line is added, so that it stays within its size.
  if (file_ >= 0 && bytes_ + static_cast<int64_t>(line.size()) > options_.most_bytes) Rotate();
  if (file_ < 0) {
    file_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kPrivate);
    if (file_ < 0) return false;
    struct stat info = {};
    const bool known = fstat(file_, &info) == 0;
    bytes_ = known ? info.st_size : 0;
    // The mode of a device is left alone.
    if (known && S_ISREG(info.st_mode)) (void)fchmod(file_, kPrivate);
  }
  const ssize_t written = write(file_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    bytes_ += written;
    return true;
  }
  // A partial line would also spoil the next one.
  const int error = written >= 0 ? ENOSPC : errno;
  if (written > 0 && ftruncate(file_, bytes_) != 0) bytes_ += written;
  errno = error;
  return false;
}

void AuditLog::Rotate() {
  close(file_);
  file_ = -1;
  for (int i = options_.files; i > 0; --i) {
    const std::string from = i == 1 ? path_ : absl::StrCat(path_, ".", i - 1);
    std::rename(from.c_str(), absl::StrCat(path_, ".", i).c_str());
  }
}

}  // namespace tercio::coordinator
