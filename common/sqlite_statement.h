// A prepared statement of SQLite, finalised with the object. Parameters count from 1, columns from
// 0.
//
// Errors: RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (cannot be opened, damaged),
// INTERNAL. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tercio {

// The status of the database's last failure; `what` is the operation that failed.
absl::Status SqliteFault(sqlite3* database, const std::string& what);

// Creates the file of a database, or changes an existing one, so that only its owner can access it:
// all our databases contain tokens. SQLite gives the files beside it the same mode.
absl::Status MakeDatabasePrivate(const std::string& path);

class SqliteStatement {
 public:
  SqliteStatement(sqlite3* database, const char* sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  void Bind(int index, const std::string& text);
  void Bind(int index, int64_t value);
  void BindBlob(int index, const std::string& bytes);

  // True when there is a row.
  absl::StatusOr<bool> Next();
  // Runs to the end and resets the statement.
  absl::Status Execute();

  int64_t Integer(int column);
  std::string Bytes(int column);

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace tercio
