#include "coordinator/store/copy_database.h"

#include <sqlite3.h>

#include <cstdio>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/sqlite_statement.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::coordinator {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(20);

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

absl::StatusOr<Database> OpenDatabase(const std::string& path, int flags) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  Database database(opened);
  if (code == SQLITE_OK) return database;
  return SqliteFault(opened, absl::StrCat("backup: cannot open ", path));
}

// The source as it is now, until the connection is closed: SQLite restarts a backup whenever
// another connection has committed between two steps, and a coordinator commits all the time.
absl::Status HoldPresentState(sqlite3* source, absl::Duration patience) {
  // The read below may meet a lock that another connection holds for a moment.
  sqlite3_busy_timeout(source, static_cast<int>(absl::ToInt64Milliseconds(patience)));
  // BEGIN alone takes no lock: the first read does, and it holds the state as of then.
  for (const char* sql : {"BEGIN", "SELECT COUNT(*) FROM sqlite_master"}) {
    if (sqlite3_exec(source, sql, nullptr, nullptr, nullptr) == SQLITE_OK) continue;
    return SqliteFault(source, "backup: cannot read");
  }
  return absl::OkStatus();
}

// Step by step, up to the last page (SQLITE_DONE) or a failure, whose code it returns.
absl::StatusOr<int> CopyPages(sqlite3_backup* backup, const CopyOptions& options) {
  absl::Time progress = SteadyNow();
  while (true) {
    // The coordinator's shutdown waits for this thread.
    if (options.stop && options.stop()) return absl::CancelledError("backup: stopped");
    const int code = sqlite3_backup_step(backup, options.pages_per_step);
    if (code == SQLITE_OK) {
      progress = SteadyNow();
      continue;
    }
    // These two are locks of others and pass; any other code would be the same next time.
    if (code != SQLITE_BUSY && code != SQLITE_LOCKED) return code;
    if (SteadyNow() - progress > options.patience) {
      return absl::AbortedError(absl::StrCat("backup: another process has held a lock for ",
                                             absl::FormatDuration(options.patience),
                                             "; the previous backup is kept"));
    }
    absl::SleepFor(kBetweenTries);
  }
}

absl::Status CopyInto(const std::string& from, const std::string& partial,
                      const CopyOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const Database source, OpenDatabase(from, SQLITE_OPEN_READONLY));
  TERCIO_ASSIGN_OR_RETURN(const Database copy, OpenDatabase(partial, SQLITE_OPEN_READWRITE));
  TERCIO_RETURN_IF_ERROR(HoldPresentState(source.get(), options.patience));
  sqlite3_backup* backup = sqlite3_backup_init(copy.get(), "main", source.get(), "main");
  if (backup == nullptr) return SqliteFault(copy.get(), "backup");
  const absl::StatusOr<int> last_step = CopyPages(backup, options);
  // It is finished on failure as well: an open backup would keep the connections from closing.
  const int code = sqlite3_backup_finish(backup);  // leaves the reason of a failure with the copy
  TERCIO_RETURN_IF_ERROR(last_step.status());
  if (*last_step == SQLITE_DONE && code == SQLITE_OK) return absl::OkStatus();
  return SqliteFault(copy.get(), absl::StrCat("backup: cannot write ", partial));
}

}  // namespace

absl::Status CopyDatabase(const std::string& from, const std::string& to,
                          const CopyOptions& options) {
  const std::string partial = to + ".partial";
  const auto remove = [&partial] {
    for (const char* beside : {"", "-journal", "-wal", "-shm"}) {
      std::remove(absl::StrCat(partial, beside).c_str());
    }
  };
  remove();  // remains of a crash
  absl::Cleanup clean_up = remove;
  // SQLite creates files by the umask, and a copy holds the same secrets as the original.
  TERCIO_RETURN_IF_ERROR(MakeDatabasePrivate(partial));
  TERCIO_RETURN_IF_ERROR(CopyInto(from, partial, options));
  // The bytes are on the disk before the name is: a crash leaves the old copy or the new one.
  TERCIO_RETURN_IF_ERROR(SyncPath(partial));
  TERCIO_RETURN_IF_ERROR(RenamePath(partial, to));
  const size_t slash = to.rfind('/');
  return SyncPath(slash == std::string::npos ? "." : to.substr(0, slash + 1));
}

}  // namespace tercio::coordinator
