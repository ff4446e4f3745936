#include "coordinator/access/access_store.h"

#include <openssl/crypto.h>
#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/security/roles.h"
#include "common/sha256.h"
#include "common/sqlite_statement.h"
#include "common/status_macros.h"

namespace tercio::coordinator {
namespace {

constexpr int kPatienceMs = 5000;  // for the other process
// Version 2 has added the patterns of node names (BringUpToDate).
constexpr int64_t kVersion = 2;
// Expired entries are kept this long: a connection that was made before stays open.
constexpr absl::Duration kMemory = absl::Hours(24 * 366);

// The serial is the key of a certificate, since revocation is asked by it; the digest
// of a token is no key, so that no index tells apart how much of it matched.
constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS tokens(id INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT, role TEXT,
  name TEXT, created INTEGER, expires INTEGER, uses_left INTEGER,
  nodes TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS certificates(serial TEXT PRIMARY KEY, name TEXT, role TEXT,
  issued INTEGER, expires INTEGER, address TEXT, revoked INTEGER DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS certificates_by_name ON certificates(name);
)";

absl::Status NotGood() {
  // One message for all three: a caller that guesses must not learn which it was.
  return absl::UnauthenticatedError(
      "the token is unknown, used up or expired; create a new one with `tercio-coordinator token`");
}

absl::Status IsThere(const std::string& name) {
  return absl::PermissionDeniedError(
      absl::StrCat(name, " already has a certificate: revoke it with `tercio-coordinator revoke ",
                   name, "`, or create the token with --name ", name));
}

// Whole seconds are enough for lives of hours and days, and compare in SQL.
absl::Time TimeOf(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

TokenRecord ReadToken(SqliteStatement& query) {
  TokenRecord token;
  token.id = query.Integer(0);
  token.role = query.Bytes(1);
  token.name = query.Bytes(2);
  token.created = TimeOf(query.Integer(3));
  token.expires = TimeOf(query.Integer(4));
  token.uses_left = query.Integer(5);
  token.nodes = query.Bytes(6);
  return token;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccessStore>> AccessStore::Create(const std::string& path) {
  TERCIO_RETURN_IF_ERROR(MakeDatabasePrivate(path));
  return Open(path);
}

absl::StatusOr<std::unique_ptr<AccessStore>> AccessStore::Open(const std::string& path) {
  // The lock is for the analysis of guarded members: nobody else has the object yet.
  std::unique_ptr<AccessStore> store(new AccessStore(path));
  MutexLock lock(store->mutex_);
  TERCIO_RETURN_IF_ERROR(store->Connect());
  return store;
}

// A file that cannot be opened leaves the present connection in use.
absl::Status AccessStore::Connect() {
  if (!PathExists(path_)) {
    // MakeDatabasePrivate would create an empty file, which forgets every revocation.
    return absl::FailedPreconditionError(
        absl::StrCat(path_,
                     " is missing, and with it the list of revoked certificates: restore it from a "
                     "backup, or create an empty file of that name to forget all revocations"));
  }
  // Digests of tokens are in it, and names of all who have access.
  TERCIO_RETURN_IF_ERROR(MakeDatabasePrivate(path_));
  sqlite3* before = database_;
  // The lock of this class already keeps threads apart.
  const int code = sqlite3_open_v2(path_.c_str(), &database_,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  absl::Status status =
      code == SQLITE_OK ? Prepare() : SqliteFault(database_, absl::StrCat("cannot open ", path_));
  if (status.ok()) {
    // The number makes a new file another version, even where it counts alike (Version).
    ++connections_;
  } else {
    std::swap(database_, before);
  }
  // This closes the connection that is not used: the old one, or the one that failed.
  sqlite3_close(before);
  return status;
}

absl::Status AccessStore::Transaction(absl::FunctionRef<absl::Status()> body) {
  // Operators' commands write to the same file: the lock is taken before anything is read.
  TERCIO_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = Run("COMMIT");
  if (!status.ok()) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status AccessStore::Prepare() {
  sqlite3_busy_timeout(database_, kPatienceMs);
  // Readers and the one writer do not wait for each other in this mode.
  TERCIO_RETURN_IF_ERROR(Run("PRAGMA journal_mode=WAL"));
  // A revocation that was confirmed has to survive a power failure.
  TERCIO_RETURN_IF_ERROR(Run("PRAGMA synchronous=FULL"));
  TERCIO_ASSIGN_OR_RETURN(const int64_t version, Format());
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " was written by a newer version of Tercio (format ", version, ")"));
  }
  // The transaction is only needed where there is something to do, and locks out others.
  if (version == kVersion) return absl::OkStatus();
  return Transaction([this]() TERCIO_REQUIRES(mutex_) { return BringUpToDate(); });
}

absl::StatusOr<int64_t> AccessStore::Format() {
  SqliteStatement query(database_, "PRAGMA user_version");
  TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
  return row ? query.Integer(0) : 0;
}

// Another process may have done it in the meantime.
absl::Status AccessStore::BringUpToDate() {
  TERCIO_ASSIGN_OR_RETURN(const int64_t version, Format());
  if (version == 1) {
    TERCIO_RETURN_IF_ERROR(Run("ALTER TABLE tokens ADD COLUMN nodes TEXT NOT NULL DEFAULT ''"));
  }
  TERCIO_RETURN_IF_ERROR(Run(kSchema));
  return Run(absl::StrCat("PRAGMA user_version=", kVersion).c_str());
}

AccessStore::~AccessStore() { sqlite3_close(database_); }

absl::Status AccessStore::Run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return SqliteFault(database_, "cannot change access.sqlite");
}

absl::StatusOr<int64_t> AccessStore::AddToken(const TokenRecord& token, const std::string& secret) {
  MutexLock lock(mutex_);
  SqliteStatement insert(
      database_,
      "INSERT INTO tokens(digest, role, name, created, expires, uses_left, nodes) "
      "VALUES(?, ?, ?, ?, ?, ?, ?)");
  // A copy of the file gives nobody a token.
  insert.Bind(1, Sha256Hex(secret));
  insert.Bind(2, token.role);
  insert.Bind(3, token.name);
  insert.Bind(4, absl::ToUnixSeconds(token.created));
  insert.Bind(5, absl::ToUnixSeconds(token.expires));
  insert.Bind(6, token.uses_left);
  insert.Bind(7, token.nodes);
  TERCIO_RETURN_IF_ERROR(insert.Execute());
  return sqlite3_last_insert_rowid(database_);
}

// Compares with every usable one, each in constant time: the duration reveals nothing.
absl::StatusOr<TokenRecord> AccessStore::FindToken(const std::string& secret, absl::Time now) {
  const std::string digest = Sha256Hex(secret);
  MutexLock lock(mutex_);
  // The condition is not on the digest: the time of a search by it could be measured.
  SqliteStatement query(database_,
                        "SELECT id, role, name, created, expires, uses_left, nodes, digest "
                        "FROM tokens WHERE expires > ? AND uses_left > 0");
  query.Bind(1, absl::ToUnixSeconds(now));
  absl::StatusOr<TokenRecord> found = NotGood();
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return found;
    const std::string kept = query.Bytes(7);
    if (kept.size() == digest.size() &&
        CRYPTO_memcmp(kept.data(), digest.data(), digest.size()) == 0) {
      // The search continues after a match, so that every answer takes as long.
      found = ReadToken(query);
    }
  }
}

absl::StatusOr<int64_t> AccessStore::CountUsable(const std::string& name, absl::Time now) {
  SqliteStatement count(
      database_,
      "SELECT COUNT(*) FROM certificates WHERE name = ? AND revoked = 0 AND expires > ?");
  count.Bind(1, name);
  count.Bind(2, absl::ToUnixSeconds(now));
  TERCIO_RETURN_IF_ERROR(count.Next().status());
  return count.Integer(0);
}

absl::Status AccessStore::Forget(absl::Time now) {
  for (const char* sql :
       {"DELETE FROM certificates WHERE expires < ?", "DELETE FROM tokens WHERE expires < ?"}) {
    SqliteStatement remove(database_, sql);
    remove.Bind(1, absl::ToUnixSeconds(now - kMemory));
    TERCIO_RETURN_IF_ERROR(remove.Execute());
  }
  return absl::OkStatus();
}

absl::Status AccessStore::Insert(const CertificateRecord& certificate) {
  // What expired is removed when something is added: the file does not grow without end.
  TERCIO_RETURN_IF_ERROR(Forget(certificate.issued));
  TERCIO_ASSIGN_OR_RETURN(const int64_t others, CountUsable(certificate.name, certificate.issued));
  // A token that leaks must not fill the store, nor hide a certificate among thousands.
  if (others >= kMostOfOneName) {
    return absl::ResourceExhaustedError(
        absl::StrCat(certificate.name, " has ", others,
                     " certificates: revoke them with `tercio-coordinator revoke ",
                     certificate.name, "`, then enrol it again with a new token"));
  }
  SqliteStatement insert(database_,
                         "INSERT INTO certificates(serial, name, role, issued, expires, address) "
                         "VALUES(?, ?, ?, ?, ?, ?)");
  insert.Bind(1, certificate.serial);
  insert.Bind(2, certificate.name);
  insert.Bind(3, certificate.role);
  insert.Bind(4, absl::ToUnixSeconds(certificate.issued));
  insert.Bind(5, absl::ToUnixSeconds(certificate.expires));
  insert.Bind(6, certificate.address);
  return insert.Execute();
}

// PERMISSION_DENIED where the name is taken (Spend).
absl::Status AccessStore::FreeName(const CertificateRecord& certificate, absl::Time forsaken) {
  SqliteStatement update(database_,
                         "UPDATE certificates SET revoked = ? WHERE name = ? AND role = ? AND "
                         "revoked = 0 AND issued < ?");
  // What is freed is revoked as of now: the old machine may still run.
  update.Bind(1, absl::ToUnixSeconds(certificate.issued));
  update.Bind(2, certificate.name);
  update.Bind(3, std::string(NameOf(Role::kAgent)));
  update.Bind(4, absl::ToUnixSeconds(forsaken));
  TERCIO_RETURN_IF_ERROR(update.Execute());
  TERCIO_ASSIGN_OR_RETURN(const int64_t there, CountUsable(certificate.name, certificate.issued));
  // A usable certificate that is not forsaken belongs to a node that is there.
  return there > 0 ? IsThere(certificate.name) : absl::OkStatus();
}

absl::Status AccessStore::Spend(const TokenRecord& token, const CertificateRecord& certificate,
                                absl::Time forsaken) {
  MutexLock lock(mutex_);
  return Transaction([&]() TERCIO_REQUIRES(mutex_) -> absl::Status {
    // The condition is in the update itself, so that two callers cannot spend the last use.
    SqliteStatement spend(database_,
                          "UPDATE tokens SET uses_left = uses_left - 1 WHERE id = ? AND "
                          "uses_left > 0");
    spend.Bind(1, token.id);
    TERCIO_RETURN_IF_ERROR(spend.Execute());
    if (sqlite3_changes(database_) != 1) return NotGood();
    // A token with a name is meant for that name, whichever certificates it already has.
    if (token.name.empty()) TERCIO_RETURN_IF_ERROR(FreeName(certificate, forsaken));
    return Insert(certificate);
  });
}

absl::Status AccessStore::AddSuccessor(const std::string& serial,
                                       const CertificateRecord& certificate) {
  MutexLock lock(mutex_);
  return Transaction([&]() TERCIO_REQUIRES(mutex_) -> absl::Status {
    // The caller proves that it has the certificate; that it may be followed is decided here.
    SqliteStatement query(database_, "SELECT revoked FROM certificates WHERE serial = ?");
    query.Bind(1, serial);
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row || query.Integer(0) != 0) {
      return absl::UnauthenticatedError(absl::StrCat(
          "certificate ", serial, " was revoked, or was not issued by this coordinator"));
    }
    return Insert(certificate);
  });
}

absl::StatusOr<int64_t> AccessStore::Revoke(const std::string& name_or_serial, absl::Time now) {
  MutexLock lock(mutex_);
  // Known and changed differ: revoking twice is no error, a misspelt name is.
  int64_t known = 0;
  int64_t changed = 0;
  const absl::Status done = Transaction([&]() TERCIO_REQUIRES(mutex_) -> absl::Status {
    for (const char* sql : {"SELECT COUNT(*) FROM certificates WHERE name = ?1 OR serial = ?1",
                            "SELECT COUNT(*) FROM tokens WHERE name = ?1"}) {
      SqliteStatement count(database_, sql);
      count.Bind(1, name_or_serial);
      TERCIO_RETURN_IF_ERROR(count.Next().status());
      known += count.Integer(0);
    }
    for (const char* sql : {"UPDATE certificates SET revoked = ?2 WHERE revoked = 0 AND "
                            "(name = ?1 OR serial = ?1)",
                            // A token has no mark of revocation; one
                            // without uses left cannot be used either.
                            "UPDATE tokens SET uses_left = 0 WHERE name = ?1 AND uses_left > 0 "
                            "AND expires > ?2"}) {
      SqliteStatement update(database_, sql);
      update.Bind(1, name_or_serial);
      update.Bind(2, absl::ToUnixSeconds(now));
      TERCIO_RETURN_IF_ERROR(update.Execute());
      changed += sqlite3_changes(database_);
    }
    return absl::OkStatus();
  });
  TERCIO_RETURN_IF_ERROR(done);
  if (known > 0) return changed;
  return absl::NotFoundError(
      absl::StrCat("no certificate or token has the name or serial number ", name_or_serial));
}

absl::Status AccessStore::RevokeToken(int64_t id) {
  MutexLock lock(mutex_);
  SqliteStatement update(database_, "UPDATE tokens SET uses_left = 0 WHERE id = ?");
  update.Bind(1, id);
  TERCIO_RETURN_IF_ERROR(update.Execute());
  if (sqlite3_changes(database_) > 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no token with number ", id));
}

absl::StatusOr<std::vector<TokenRecord>> AccessStore::Tokens(absl::Time now) {
  MutexLock lock(mutex_);
  // What cannot be used is left out, so that the list says what could still be misused.
  SqliteStatement query(database_,
                        "SELECT id, role, name, created, expires, uses_left, nodes "
                        "FROM tokens WHERE expires > ? AND uses_left > 0 ORDER BY id DESC");
  query.Bind(1, absl::ToUnixSeconds(now));
  std::vector<TokenRecord> tokens;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return tokens;
    tokens.push_back(ReadToken(query));
  }
}

absl::StatusOr<std::vector<CertificateRecord>> AccessStore::Certificates(absl::Time now) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_,
                        "SELECT serial, name, role, issued, expires, address, revoked FROM "
                        "certificates WHERE expires > ? ORDER BY issued DESC, serial");
  query.Bind(1, absl::ToUnixSeconds(now));
  std::vector<CertificateRecord> found;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return found;
    found.push_back({query.Bytes(0), query.Bytes(1), query.Bytes(2), TimeOf(query.Integer(3)),
                     TimeOf(query.Integer(4)), query.Bytes(5), query.Integer(6) != 0});
  }
}

namespace {

absl::StatusOr<std::set<std::string>> FirstColumn(SqliteStatement& query) {
  std::set<std::string> texts;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return texts;
    texts.insert(query.Bytes(0));
  }
}

}  // namespace

absl::StatusOr<std::set<std::string>> AccessStore::Revoked() {
  MutexLock lock(mutex_);
  // Expired ones are included: a connection outlives the certificate that opened it.
  SqliteStatement query(database_, "SELECT serial FROM certificates WHERE revoked > 0");
  return FirstColumn(query);
}

absl::StatusOr<std::set<std::string>> AccessStore::RevokedAgents(absl::Time since) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_,
                        "SELECT serial FROM certificates WHERE revoked > 0 AND role = ? AND "
                        "expires >= ?");
  query.Bind(1, std::string(NameOf(Role::kAgent)));
  query.Bind(2, absl::ToUnixSeconds(since));
  return FirstColumn(query);
}

absl::StatusOr<std::string> AccessStore::Version() {
  MutexLock lock(mutex_);
  int moved = 0;
  // An operator may have restored a backup: the open file is then no longer the one of the path.
  if (sqlite3_file_control(database_, nullptr, SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
      moved != 0) {
    TERCIO_RETURN_IF_ERROR(Connect());
  }
  SqliteStatement query(database_, "PRAGMA data_version");
  TERCIO_RETURN_IF_ERROR(query.Next().status());
  // The pragma counts only the changes of other connections.
  return absl::StrCat(connections_, " ", query.Integer(0), " ", sqlite3_total_changes(database_));
}

}  // namespace tercio::coordinator
