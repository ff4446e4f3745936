#include "common/security/tls_identity.h"

#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

// Nobody but the owner may have any right to a key.
constexpr mode_t kOfOthers = S_IRWXG | S_IRWXO;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// All messages name the file, since three are in use.
absl::Status Wrong(const char* flag, const std::string& path, const absl::Status& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the ", flag, " ", path, ": ", std::string(why.message())));
}

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ", flag, ": ", std::string(text.status().message())));
  }
  return text;
}

std::string Utc(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// The messages have both times: a wrong clock looks like a wrong certificate.
absl::Status CheckTimes(const CertificateFacts& facts, absl::Time now) {
  if (now < facts.not_before) {
    // Both times are in the message, as the clock is the more frequent reason.
    return absl::FailedPreconditionError(absl::StrCat("it is valid from ", Utc(facts.not_before),
                                                      ", but this machine's clock says ", Utc(now),
                                                      "; is the clock right?"));
  }
  if (now >= facts.not_after) {
    return absl::FailedPreconditionError(absl::StrCat("it expired at ", Utc(facts.not_after),
                                                      " and this machine's clock says ", Utc(now),
                                                      "; get a new one"));
  }
  return absl::OkStatus();
}

absl::Status CheckMode(const std::string& path, TlsIdentity::KeyFile kind) {
  struct stat info = {};
  // A file that cannot be looked at is reported when it is read.
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & kOfOthers) == 0) return absl::OkStatus();
  const std::string text = absl::StrCat("other users can read it; run chmod 600 ", path);
  // A key of our own was created private: somebody has changed that.
  if (kind == TlsIdentity::KeyFile::kOwn) return absl::FailedPreconditionError(text);
  LogWarning(absl::StrCat("the key ", path, ": ", text));
  return absl::OkStatus();
}

}  // namespace

TlsFiles TlsFromEnvironment() {
  return {Environment("TERCIO_TLS_CERT"), Environment("TERCIO_TLS_KEY"),
          Environment("TERCIO_TLS_CA")};
}

absl::Status CheckComplete(const TlsFiles& files) {
  // Two of three files are most likely a mistake.
  if (!files.certificate.empty() && !files.key.empty() && !files.authority.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("TLS needs all of --tls-cert, --tls-key and --tls-ca");
}

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Load(const TlsFiles& files, KeyFile kind,
                                                               absl::Duration between_tries) {
  TERCIO_RETURN_IF_ERROR(CheckComplete(files));
  std::shared_ptr<TlsIdentity> identity(new TlsIdentity(files, kind, between_tries));
  // No other thread knows the object yet; the lock satisfies the analysis of guarded members.
  MutexLock lock(identity->mutex_);
  TERCIO_ASSIGN_OR_RETURN(identity->current_, identity->Read());
  return identity;
}

std::shared_ptr<const TlsMaterial> TlsIdentity::Current() {
  MutexLock lock(mutex_);
  const absl::Time now = SteadyNow();
  const FileWatch::Due due = watch_.Look(now);
  // Files that have not changed are not read again, but a failure is retried after a pause.
  if (due == FileWatch::Due::kNo) return current_;
  absl::StatusOr<std::shared_ptr<TlsMaterial>> changed = Read();
  watch_.Tried(changed.ok(), now);
  if (!changed.ok()) {
    // The old pair works; the new one may be half written.
    if (due == FileWatch::Due::kChanged) {
      LogWarning(absl::StrCat("the previous certificate stays in use: ",
                              std::string(changed.status().message())));
    }
    return current_;
  }
  // gRPC asks for the version to know whether it has this one already.
  (*changed)->version = current_->version + 1;
  LogInfo(absl::StrCat("certificate ", files_.certificate, " reloaded, valid until ",
                       Utc((*changed)->facts.not_after)));
  current_ = *std::move(changed);
  return current_;
}

absl::StatusOr<std::shared_ptr<TlsMaterial>> TlsIdentity::Read() const {
  // The mode is checked before the key is in memory.
  TERCIO_RETURN_IF_ERROR(CheckMode(files_.key, kind_));
  auto material = std::make_shared<TlsMaterial>();
  TERCIO_ASSIGN_OR_RETURN(material->certificate, ReadPem("certificate", files_.certificate));
  TERCIO_ASSIGN_OR_RETURN(material->key, ReadPem("key", files_.key));
  TERCIO_ASSIGN_OR_RETURN(material->authority, ReadPem("authority", files_.authority));
  const auto facts = ReadCertificate(material->certificate);
  if (!facts.ok()) return Wrong("certificate", files_.certificate, facts.status());
  material->facts = *facts;
  const auto authority = ReadCertificate(material->authority);
  if (!authority.ok()) return Wrong("authority", files_.authority, authority.status());
  // A certificate with another key would fail at the first handshake.
  const absl::Status key = CheckKeyBelongs(material->certificate, material->key);
  if (!key.ok()) return Wrong("key", files_.key, key);
  const absl::Status times = CheckTimes(material->facts, absl::Now());
  if (!times.ok()) return Wrong("certificate", files_.certificate, times);
  return material;
}

}  // namespace tercio
