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

// What the database's last failure means; `what` says what was tried.
absl::Status SqliteFault(sqlite3* database, const std::string& what);

// Makes the file of a database, or the one that is there, its owner's alone: tokens are in all of
// ours. SQLite gives those beside it the same mode.
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
  // To the end, ready to be bound again.
  absl::Status Execute();

  int64_t Integer(int column);
  std::string Bytes(int column);

 private:
  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace tercio
