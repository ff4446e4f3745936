#include "common/sqlite_statement.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tercio {
namespace {

constexpr int kPrivate = 0600;

}  // namespace

absl::Status SqliteFault(sqlite3* database, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", sqlite3_errmsg(database));
  // The low byte is the code; the rest says more than we distinguish.
  switch (sqlite3_errcode(database) & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CANTOPEN:
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
    case SQLITE_READONLY:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status MakeDatabasePrivate(const std::string& path) {
  // The file is created private, so that it never is anything else.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kPrivate);
  if (file < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  // A writable file of another owner keeps its mode.
  const bool changed = fchmod(file, kPrivate) == 0 || errno == EPERM;
  // close may change errno.
  const int error = errno;
  close(file);
  if (changed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cannot change the mode of ", path, ": ", std::strerror(error)));
}

SqliteStatement::SqliteStatement(sqlite3* database, const char* sql) : database_(database) {
  // A statement that cannot be prepared stays null, and fails when it is used.
  sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

void SqliteStatement::Bind(int index, const std::string& text) {
  sqlite3_bind_text(statement_, index, text.data(), static_cast<int>(text.size()),
                    // SQLite copies the text, so that callers need not keep it.
                    SQLITE_TRANSIENT);
}

void SqliteStatement::Bind(int index, int64_t value) {
  sqlite3_bind_int64(statement_, index, value);
}

void SqliteStatement::BindBlob(int index, const std::string& bytes) {
  sqlite3_bind_blob(statement_, index, bytes.data(), static_cast<int>(bytes.size()),
                    SQLITE_TRANSIENT);
}

absl::StatusOr<bool> SqliteStatement::Next() {
  if (statement_ == nullptr) return SqliteFault(database_, "SQL statement");
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqliteFault(database_, "SQL step");
}

absl::Status SqliteStatement::Execute() {
  const absl::StatusOr<bool> row = Next();
  // The statement can be bound again, whether it has failed or not.
  sqlite3_reset(statement_);
  return row.status();
}

int64_t SqliteStatement::Integer(int column) { return sqlite3_column_int64(statement_, column); }

std::string SqliteStatement::Bytes(int column) {
  // Null has no bytes: a string of length zero does not look at the pointer.
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

}  // namespace tercio
