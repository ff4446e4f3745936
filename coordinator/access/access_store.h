// Tokens and issued certificates: access.sqlite, a file of its own, which an operator's commands
// change beside a running coordinator. Only the digest of a token is kept.
//
// Threads: all methods from any thread.
// Errors: as of common/sqlite_statement.h.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

struct sqlite3;

namespace tercio::coordinator {

struct TokenRecord {
  int64_t id = 0;
  std::string role;
  std::string name;  // empty: of an agent that may choose its own
  absl::Time created;
  absl::Time expires;
  int64_t uses_left = 1;
  std::string
      nodes;  // patterns of the names that an agent may choose (node_patterns.h); empty: any
};

struct CertificateRecord {
  std::string serial;
  std::string name;
  std::string role;
  absl::Time issued;
  absl::Time expires;
  std::string address;  // from which it was asked for
  bool revoked = false;
};

class AccessStore {
 public:
  static absl::StatusOr<std::unique_ptr<AccessStore>> Create(const std::string& path);
  // FAILED_PRECONDITION when it is missing: an empty one would know of no revocations.
  static absl::StatusOr<std::unique_ptr<AccessStore>> Open(const std::string& path);
  ~AccessStore();
  AccessStore(const AccessStore&) = delete;
  AccessStore& operator=(const AccessStore&) = delete;

  // Keeps the digest of the secret. Returns the token's number.
  absl::StatusOr<int64_t> AddToken(const TokenRecord& token, const std::string& secret);
  // UNAUTHENTICATED, with the same message, when it is unknown, used up or expired.
  absl::StatusOr<TokenRecord> FindToken(const std::string& secret, absl::Time now);
  // Takes one use and records the certificate that it was spent on, together. UNAUTHENTICATED when
  // another caller was first; PERMISSION_DENIED when the token has no name and the certificate's
  // name is taken: a token for any node is not valid for an existing node, nor for a person. A name
  // is taken by a usable certificate, except by those of agents from before `forsaken`, which are
  // revoked.
  absl::Status Spend(const TokenRecord& token, const CertificateRecord& certificate,
                     absl::Time forsaken = absl::InfinitePast());
  // A certificate that follows another. UNAUTHENTICATED when that was revoked.
  absl::Status AddSuccessor(const std::string& serial, const CertificateRecord& certificate);
  // Both: RESOURCE_EXHAUSTED when the name has kMostOfOneName that can be used.
  static constexpr int64_t kMostOfOneName = 256;

  // Revokes all certificates and tokens of a name, else the certificate of that serial number;
  // expired ones too, since a connection made with one may still be open. Returns how many were not
  // revoked before; NOT_FOUND when none has the name or number.
  absl::StatusOr<int64_t> Revoke(const std::string& name_or_serial, absl::Time now);
  // Makes the token unusable. NOT_FOUND: there is none with this number.
  absl::Status RevokeToken(int64_t id);

  // Those that can still be used, newest first.
  absl::StatusOr<std::vector<TokenRecord>> Tokens(absl::Time now);
  // Those that have not expired, newest first.
  absl::StatusOr<std::vector<CertificateRecord>> Certificates(absl::Time now);
  // Serial numbers of all that were revoked, until they are forgotten, a year after they expired.
  absl::StatusOr<std::set<std::string>> Revoked();
  // Revoked certificates of agents only, except those that expired before `since`: what agents have
  // to know.
  absl::StatusOr<std::set<std::string>> RevokedAgents(absl::Time since);
  // Changes when this or another process has changed the file, or replaced it, in which case the
  // new one is used from then on. FAILED_PRECONDITION while there is none.
  absl::StatusOr<std::string> Version();

 private:
  explicit AccessStore(std::string path) : path_(std::move(path)) {}
  absl::Status Connect() TERCIO_REQUIRES(mutex_);
  absl::Status Prepare() TERCIO_REQUIRES(mutex_);
  absl::Status BringUpToDate() TERCIO_REQUIRES(mutex_);
  absl::StatusOr<int64_t> Format() TERCIO_REQUIRES(mutex_);
  absl::Status Run(const char* sql) TERCIO_REQUIRES(mutex_);
  absl::Status FreeName(const CertificateRecord& certificate, absl::Time forsaken)
      TERCIO_REQUIRES(mutex_);
  absl::StatusOr<int64_t> CountUsable(const std::string& name, absl::Time now)
      TERCIO_REQUIRES(mutex_);
  absl::Status Forget(absl::Time now) TERCIO_REQUIRES(mutex_);
  absl::Status Insert(const CertificateRecord& certificate) TERCIO_REQUIRES(mutex_);
  absl::Status Transaction(absl::FunctionRef<absl::Status()> body) TERCIO_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;
  sqlite3* database_ TERCIO_GUARDED_BY(mutex_) = nullptr;
  int connections_ TERCIO_GUARDED_BY(mutex_) = 0;
};

}  // namespace tercio::coordinator
