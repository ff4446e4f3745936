// The certificate and key of this process, and the authority whose certificates it trusts: read,
// checked, and read again when the files change, so that certificates are renewed without a
// restart. An unusable file is refused with its name and the reason. If it replaces a usable one,
// that one stays in use, this is logged once, and the new one is retried: it may become valid
// later.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/security/certificate.h"
#include "common/security/file_watch.h"

namespace tercio {

// PEM files; all empty: no TLS.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
  bool given() const { return !certificate.empty() || !key.empty() || !authority.empty(); }
};

// The files in TERCIO_TLS_CERT, TERCIO_TLS_KEY and TERCIO_TLS_CA.
TlsFiles TlsFromEnvironment();

// INVALID_ARGUMENT if only some of the three are given.
absl::Status CheckComplete(const TlsFiles& files);

struct TlsMaterial {
  std::string certificate;  // PEM texts
  std::string key;
  std::string authority;
  CertificateFacts facts;  // facts of the certificate
  int64_t version = 0;     // incremented with each change
};

class TlsIdentity {
 public:
  // FAILED_PRECONDITION: a file is missing, unreadable or wrong, the key is not the certificate's,
  // the key is readable by others (an error for a key that Tercio has created: kOwn; a warning for
  // any other key), the certificate has expired or is not valid yet.
  enum class KeyFile { kOwn, kForeign };
  // Files that become unusable are retried after `between_tries`.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Load(
      const TlsFiles& files, KeyFile kind, absl::Duration between_tries = absl::Seconds(10));

  // The current content of the files, or the last usable one.
  std::shared_ptr<const TlsMaterial> Current();
  const TlsFiles& files() const { return files_; }

 private:
  TlsIdentity(TlsFiles files, KeyFile kind, absl::Duration between_tries)
      : files_(std::move(files)),
        kind_(kind),
        watch_({files_.certificate, files_.key, files_.authority}, between_tries) {}
  absl::StatusOr<std::shared_ptr<TlsMaterial>> Read() const;

  const TlsFiles files_;
  const KeyFile kind_;
  Mutex mutex_;
  FileWatch watch_ TERCIO_GUARDED_BY(mutex_);  // on the steady clock
  std::shared_ptr<const TlsMaterial> current_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio
