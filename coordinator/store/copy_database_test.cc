// `stop` is asked before every step: tests use it as the place where something happens meanwhile.
#include "coordinator/store/copy_database.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

// A connection of the test's own.
class Connection {
 public:
  explicit Connection(const std::string& path) { sqlite3_open(path.c_str(), &database_); }
  ~Connection() { sqlite3_close(database_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int Run(const std::string& sql) {
    return sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr);
  }
  int64_t Number(const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement, nullptr);
    const int64_t number =
        sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : -1;
    sqlite3_finalize(statement);
    return number;
  }

 private:
  sqlite3* database_ = nullptr;
};

class CopyDatabaseTest : public ::testing::Test {
 protected:
  // Some 2 MiB in 4 KiB pages, as the coordinator keeps its own.
  void SetUp() override {
    ASSERT_EQ(source_.Run("PRAGMA journal_mode=WAL; CREATE TABLE rows(x BLOB)"), SQLITE_OK);
    ASSERT_EQ(source_.Run("BEGIN"), SQLITE_OK);
    for (int i = 0; i < kRows; ++i) Insert();
    ASSERT_EQ(source_.Run("COMMIT"), SQLITE_OK);
  }
  void Insert() { ASSERT_EQ(source_.Run("INSERT INTO rows VALUES(randomblob(4000))"), SQLITE_OK); }

  int64_t RowsOf(const std::string& path) {
    if (!PathExists(path)) return -1;
    Connection opened(path);
    EXPECT_EQ(opened.Number("SELECT COUNT(*) FROM pragma_integrity_check WHERE "
                            "integrity_check='ok'"),
              1);
    return opened.Number("SELECT COUNT(*) FROM rows");
  }

  static constexpr int kRows = 500;
  TempDir directory_;
  const std::string from_ = directory_.path() + "/state.sqlite";
  const std::string to_ = directory_.path() + "/state.sqlite.backup";
  Connection source_{from_};
};

TEST_F(CopyDatabaseTest, CopiesAllForTheOwnerAlone) {
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  EXPECT_EQ(RowsOf(to_), kRows);
  struct stat info = {};
  ASSERT_EQ(stat(to_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(PathExists(to_ + ".partial"));
}

// One that restarted after each commit would never end.
TEST_F(CopyDatabaseTest, CommitsBetweenItsStepsAreOfTheNextCopy) {
  int steps = 0;
  CopyOptions options;
  options.pages_per_step = 16;
  options.stop = [&] {
    Insert();
    return ++steps > 1000;
  };
  ASSERT_EQ(CopyDatabase(from_, to_, options), absl::OkStatus());
  EXPECT_GT(steps, kRows / 16);
  EXPECT_LT(steps, 100);
  EXPECT_EQ(RowsOf(to_), kRows);
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  EXPECT_EQ(RowsOf(to_), kRows + steps);
}

TEST_F(CopyDatabaseTest, OneThatIsStoppedLeavesTheOneBefore) {
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  Insert();
  int steps = 0;
  CopyOptions options;
  options.pages_per_step = 16;
  options.stop = [&steps] { return ++steps > 3; };
  EXPECT_TRUE(absl::IsCancelled(CopyDatabase(from_, to_, options)));
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(RowsOf(to_), kRows);
  EXPECT_FALSE(PathExists(to_ + ".partial"));
}

TEST_F(CopyDatabaseTest, WaitsForALockThatIsGivenBack) {
  std::unique_ptr<Connection> other;
  int asked = 0;
  CopyOptions options;
  options.stop = [&] {
    if (asked == 0) {
      other = std::make_unique<Connection>(to_ + ".partial");
      EXPECT_EQ(other->Run("BEGIN EXCLUSIVE"), SQLITE_OK);
    }
    if (++asked == 4) other.reset();
    return false;
  };
  ASSERT_EQ(CopyDatabase(from_, to_, options), absl::OkStatus());
  EXPECT_GE(asked, 4);
  EXPECT_EQ(RowsOf(to_), kRows);
}

TEST_F(CopyDatabaseTest, ALockThatStaysIsAnErrorAndTheOneBeforeStaysToo) {
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  Insert();
  std::unique_ptr<Connection> other;
  CopyOptions options;
  options.patience = absl::Milliseconds(100);
  options.stop = [&] {
    if (other == nullptr) {
      other = std::make_unique<Connection>(to_ + ".partial");
      EXPECT_EQ(other->Run("BEGIN EXCLUSIVE"), SQLITE_OK);
    }
    return false;
  };
  const absl::Status status = CopyDatabase(from_, to_, options);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lock"));
  EXPECT_EQ(RowsOf(to_), kRows);
}

TEST_F(CopyDatabaseTest, WhatACrashHasLeftIsInNobodysWay) {
  for (const char* beside : {"", "-journal", "-wal"}) {
    ASSERT_TRUE(WriteFileDurably(absl::StrCat(to_, ".partial", beside), "half a page").ok());
  }
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  EXPECT_EQ(RowsOf(to_), kRows);
}

TEST_F(CopyDatabaseTest, ASourceThatIsNoDatabaseReplacesNothing) {
  ASSERT_EQ(CopyDatabase(from_, to_, {}), absl::OkStatus());
  const std::string other = directory_.path() + "/other";
  ASSERT_TRUE(WriteFileDurably(other, std::string(10'000, 'x')).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(CopyDatabase(other, to_, {})));
  EXPECT_FALSE(CopyDatabase(directory_.path() + "/missing", to_, {}).ok());
  EXPECT_EQ(RowsOf(to_), kRows);
}

}  // namespace
}  // namespace tercio::coordinator
