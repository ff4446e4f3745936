#include "coordinator/store/store.h"

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/sqlite_statement.h"
#include "common/status_macros.h"
#include "coordinator/store/copy_database.h"
#include "plan/old_words.h"

namespace tercio::coordinator {
namespace {

// Version of the layout of the tables; stored as SQLite's user_version. 0: before versions were
// stored.
constexpr int64_t kVersion = 5;
// The first one whose jobs and plans hold enumerators where those before held words.
constexpr int64_t kEnumerators = 5;
// Log lines kept per job, and how many more there may be for a while: lines are counted, since
// finding the oldest that stays costs as much as all that stay.
constexpr int64_t kLogLines = 20'000;
constexpr int64_t kUntrimmedLines = 1000;
// The number of attempts per job whose ranks' exits are kept.
constexpr int64_t kExitAttempts = 4;

// Small values and keys are columns; everything else is a protobuf message, so that a new
// field needs no new layout. Tables without row ids save an index where the key is a text.
constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS jobs(id TEXT PRIMARY KEY, number INTEGER, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plans(job TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS placements(job TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes(name TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests(request TEXT PRIMARY KEY, job TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps(job TEXT, step INTEGER, attempt INTEGER, record BLOB,
  PRIMARY KEY(job, step, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, record BLOB);
CREATE TABLE IF NOT EXISTS logs(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, record BLOB);
CREATE TABLE IF NOT EXISTS traces(job TEXT, attempt INTEGER, rank INTEGER, record BLOB,
  PRIMARY KEY(job, attempt, rank)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS exits(job TEXT, attempt INTEGER, rank INTEGER, record BLOB,
  PRIMARY KEY(job, attempt, rank)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_of_job ON events(job, sequence);
CREATE INDEX IF NOT EXISTS logs_of_job ON logs(job, sequence);
)";

absl::Status Fault(sqlite3* database, const std::string& what) {
  return SqliteFault(database, absl::StrCat("state store: ", what));
}

template <typename Message>
absl::StatusOr<Message> Parse(const std::string& bytes) {
  Message message;
  // A damaged record stops the start: people restore a backup rather than continue with half a job.
  if (!message.ParseFromString(bytes)) {
    return absl::FailedPreconditionError("state store: a damaged record");
  }
  return message;
}

// Interrupts what the database does once the time is over, again and again, since an interrupt
// before a statement has begun has no effect on it.
class TimeLimit {
 public:
  TimeLimit(sqlite3* database, absl::Duration limit)
      : database_(database), thread_([this, limit] { Watch(limit); }) {}
  ~TimeLimit() { Over(); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  // Whether the time was over before this was called first. Nothing is interrupted after it.
  bool Over() {
    {
      MutexLock lock(mutex_);
      done_ = true;
      changed_.NotifyAll();
    }
    // The thread is joined, so that no interrupt hits a statement that comes later.
    if (thread_.joinable()) thread_.join();
    return over_;
  }

 private:
  void Watch(absl::Duration limit) {
    constexpr std::chrono::milliseconds kAgain{10};
    MutexLock lock(mutex_);
    const auto done = [this]() TERCIO_REQUIRES(mutex_) { return done_; };
    if (limit > absl::ZeroDuration() &&
        changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(limit), done)) {
      return;
    }
    over_ = true;
    do {
      sqlite3_interrupt(database_);
    } while (!changed_.WaitFor(mutex_, kAgain, done));
  }

  sqlite3* const database_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool done_ TERCIO_GUARDED_BY(mutex_) = false;
  bool over_ = false;  // the thread's until it has ended
  std::thread thread_;
};

// The backup lies beside the store, where the message about damage tells people to look.
std::string BackUpPath(const std::string& path) { return path + ".backup"; }

// The records of all rows of a query.
template <typename Message>
absl::StatusOr<std::vector<Message>> ParseAll(sqlite3* database, const char* sql) {
  SqliteStatement query(database, sql);
  std::vector<Message> messages;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return messages;
    TERCIO_ASSIGN_OR_RETURN(Message message, Parse<Message>(query.Bytes(0)));
    messages.push_back(std::move(message));
  }
}

// Parses the rows of a query for jobs and records.
template <typename Message>
absl::StatusOr<std::map<std::string, Message>> ParseByJob(sqlite3* database, const char* sql) {
  SqliteStatement query(database, sql);
  std::map<std::string, Message> messages;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return messages;
    TERCIO_ASSIGN_OR_RETURN(messages[query.Bytes(0)], Parse<Message>(query.Bytes(1)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path, OpenFor use,
                                                   absl::Duration check_limit) {
  const bool read_only = use == OpenFor::kReading;
  // Tokens of attempts are in the file: it is made private before SQLite writes to it.
  if (!read_only) TERCIO_RETURN_IF_ERROR(MakeDatabasePrivate(path));
  sqlite3* database = nullptr;
  const int flags = read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  // All functions share one connection, and the time limit interrupts it from another thread.
  const int code = sqlite3_open_v2(path.c_str(), &database, flags | SQLITE_OPEN_FULLMUTEX, nullptr);
  // The store owns the handle even when opening has failed, as SQLite demands.
  std::unique_ptr<Store> store(new Store(path, database));
  if (code != SQLITE_OK) return Fault(database, absl::StrCat("cannot open ", path));
  // `--read-only` readers and backups hold locks for a moment.
  sqlite3_busy_timeout(database, 5000);
  // The check comes before any write: a damaged file must
  // stay as it is for the person who repairs it.
  if (!read_only) TERCIO_RETURN_IF_ERROR(store->CheckIntegrity(check_limit));
  TERCIO_RETURN_IF_ERROR(store->CheckVersion());
  if (read_only) return store;
  // WAL lets backups and readers work while the coordinator commits.
  TERCIO_RETURN_IF_ERROR(store->Run("PRAGMA journal_mode=WAL"));
  // An acknowledged report is forgotten by its agent, so a commit has to survive a power failure.
  TERCIO_RETURN_IF_ERROR(store->Run("PRAGMA synchronous=FULL"));
  TERCIO_ASSIGN_OR_RETURN(const bool is_new, store->IsNew());
  if (store->version_ < kVersion && !is_new) {
    // An older version cannot read the store after this: the copy is the way back.
    TERCIO_RETURN_IF_ERROR(CopyDatabase(path, absl::StrCat(path, ".before-v", kVersion), {}));
  }
  TERCIO_RETURN_IF_ERROR(store->BringUpToDate());
  return store;
}

absl::StatusOr<bool> Store::IsNew() {
  SqliteStatement query(database_, "SELECT 1 FROM sqlite_master WHERE name='jobs'");
  TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
  return !row;
}

absl::Status Store::BringUpToDate() {
  // A crash in the middle leaves the old version as a whole: the pragma is part of the transaction.
  TERCIO_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status status = Run(kSchema);
  if (status.ok() && version_ < 3) status = MovePlacements();
  if (status.ok() && version_ < kEnumerators) status = RewriteWords();
  if (status.ok()) status = Run(absl::StrCat("PRAGMA user_version=", kVersion).c_str());
  if (status.ok()) status = Run("COMMIT");
  if (!status.ok()) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  version_ = kVersion;
  return status;
}

absl::Status Store::CheckVersion() {
  SqliteStatement query(database_, "PRAGMA user_version");
  TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
  version_ = row ? query.Integer(0) : 0;
  if (version_ <= kVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "state store: ", path_, " was written by a newer Tercio (schema version ", version_,
      ", this one knows ", kVersion, "); it was left unchanged: start the newer coordinator"));
}

// Before version 3 the record of a job held the placement of its ranks.
absl::Status Store::MovePlacements() {
  Changes moved;
  TERCIO_ASSIGN_OR_RETURN(moved.jobs, LoadJobs());
  for (v1::JobRecord& job : moved.jobs) {
    v1::RankSlots placement;
    placement.mutable_slots()->Swap(job.mutable_slots_of_old_store());
    moved.placements.emplace_back(job.id(),
                                  std::make_shared<const v1::RankSlots>(std::move(placement)));
  }
  MutexLock lock(mutex_);
  return WriteAll(moved);
}

// Loading turns words into enumerators.
absl::Status Store::RewriteWords() {
  Changes rewritten;
  TERCIO_ASSIGN_OR_RETURN(rewritten.jobs, LoadJobs());
  TERCIO_ASSIGN_OR_RETURN(auto plans, LoadPlans());
  for (auto& [job, record] : plans) {
    rewritten.plans.emplace_back(job, std::make_shared<const v1::Plan>(std::move(record)));
  }
  MutexLock lock(mutex_);
  return WriteAll(rewritten);
}

absl::Status Store::CheckIntegrity(absl::Duration limit) {
  std::string problem;
  TimeLimit time(database_, limit);
  SqliteStatement query(database_, "PRAGMA quick_check(1)");
  // One row is enough: damage is not repaired but answered with a backup.
  const absl::StatusOr<bool> row = query.Next();
  // The result of an interrupted check is not a finding.
  if (time.Over()) {
    LogWarning(
        absl::StrCat("state store: ", path_, " is large: its integrity check was stopped after ",
                     absl::FormatDuration(limit),
                     "; delete jobs that are no longer needed (tercio delete, --job-retention)"));
    return absl::OkStatus();
  }
  if (!row.ok()) {
    // Other codes are of the disk or of a lock; they say nothing about the contents.
    if (!absl::IsFailedPrecondition(row.status())) return row.status();
    problem = std::string(row.status().message());
  } else if (!*row || query.Bytes(0) != "ok") {
    problem = *row ? query.Bytes(0) : "it cannot be checked";
  }
  if (problem.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("state store: ", path_, " is damaged: ", problem,
                   "; restore the last backup: mv ", path_, " ", path_, ".damaged; rm -f ", path_,
                   "-wal ", path_, "-shm; cp ", BackUpPath(path_), " ", path_));
}

absl::Status Store::BackUp(const std::function<bool()>& stop) {
  CopyOptions options;
  options.stop = stop;
  return CopyDatabase(path_, BackUpPath(path_), options);
}

Store::~Store() { sqlite3_close(database_); }

absl::Status Store::Run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return Fault(database_, sql);
}

absl::Status Store::Commit(const Changes& changes) {
  if (changes.empty()) return absl::OkStatus();
  MutexLock lock(mutex_);
  // The write lock is taken at once: a transaction that begins as
  // a reader could not be upgraded beside another writer.
  TERCIO_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  absl::Status status = WriteAll(changes);
  if (status.ok()) status = Run("COMMIT");
  if (!status.ok()) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status Store::WriteAll(const Changes& changes) {
  TERCIO_RETURN_IF_ERROR(WriteState(changes));
  TERCIO_RETURN_IF_ERROR(WriteExits(changes));
  TERCIO_RETURN_IF_ERROR(WriteHistory(changes));
  // Jobs are deleted last, since the same batch may still have written steps and logs of them.
  return DeleteJobs(changes);
}

absl::Status Store::WriteState(const Changes& changes) {
  // Statements are prepared once and bound for each row: preparing costs more than inserting.
  SqliteStatement job(database_, "INSERT OR REPLACE INTO jobs VALUES(?,?,?)");
  for (const v1::JobRecord& record : changes.jobs) {
    job.Bind(1, record.id());
    job.Bind(2, record.number());
    job.BindBlob(3, record.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(job.Execute());
  }
  SqliteStatement request(database_, "INSERT OR REPLACE INTO requests VALUES(?,?)");
  for (const auto& [id, made] : changes.requests) {
    request.Bind(1, id);
    request.Bind(2, made);
    TERCIO_RETURN_IF_ERROR(request.Execute());
  }
  SqliteStatement plan(database_, "INSERT OR REPLACE INTO plans VALUES(?,?)");
  for (const auto& [id, record] : changes.plans) {
    plan.Bind(1, id);
    plan.BindBlob(2, record->SerializeAsString());
    TERCIO_RETURN_IF_ERROR(plan.Execute());
  }
  SqliteStatement placement(database_, "INSERT OR REPLACE INTO placements VALUES(?,?)");
  SqliteStatement displace(database_, "DELETE FROM placements WHERE job=?");
  for (const auto& [id, record] : changes.placements) {
    // A job without devices has no row, so that the table stays as small as what runs.
    SqliteStatement& statement = record->slots_size() > 0 ? placement : displace;
    statement.Bind(1, id);
    if (record->slots_size() > 0) statement.BindBlob(2, record->SerializeAsString());
    TERCIO_RETURN_IF_ERROR(statement.Execute());
  }
  SqliteStatement node(database_, "INSERT OR REPLACE INTO nodes VALUES(?,?)");
  for (const v1::NodeRecord& record : changes.nodes) {
    node.Bind(1, record.name());
    node.BindBlob(2, record.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(node.Execute());
  }
  SqliteStatement forget(database_, "DELETE FROM nodes WHERE name=?");
  for (const std::string& name : changes.forgotten_nodes) {
    forget.Bind(1, name);
    TERCIO_RETURN_IF_ERROR(forget.Execute());
  }
  return absl::OkStatus();
}

absl::Status Store::DeleteJobs(const Changes& changes) {
  for (const std::string& job : changes.deleted_jobs) {
    for (const char* sql : {"DELETE FROM jobs WHERE id=?", "DELETE FROM plans WHERE job=?",
                            "DELETE FROM placements WHERE job=?",
                            "DELETE FROM requests WHERE job=?", "DELETE FROM steps WHERE job=?",
                            "DELETE FROM events WHERE job=?", "DELETE FROM logs WHERE job=?",
                            "DELETE FROM traces WHERE job=?", "DELETE FROM exits WHERE job=?"}) {
      SqliteStatement remove(database_, sql);
      remove.Bind(1, job);
      TERCIO_RETURN_IF_ERROR(remove.Execute());
    }
    untrimmed_lines_.erase(job);
  }
  return absl::OkStatus();
}

absl::Status Store::WriteHistory(const Changes& changes) {
  // A step may be reported twice, by its rank and with the
  // checkpoint; the later report is the same.
  SqliteStatement step(database_, "INSERT OR REPLACE INTO steps VALUES(?,?,?,?)");
  for (const auto& [id, record] : changes.steps) {
    step.Bind(1, id);
    step.Bind(2, record.step());
    step.Bind(3, int64_t{record.attempt()});
    step.BindBlob(4, record.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(step.Execute());
  }
  // The sequence is given by SQLite and never reused
  // (AUTOINCREMENT): cursors of clients rely on it.
  SqliteStatement event(database_, "INSERT INTO events(job, record) VALUES(?,?)");
  for (const v1::JobEvent& record : changes.events) {
    event.Bind(1, record.job_id());
    event.BindBlob(2, record.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(event.Execute());
  }
  SqliteStatement log(database_, "INSERT INTO logs(job, record) VALUES(?,?)");
  for (const auto& [id, line] : changes.logs) {
    log.Bind(1, id);
    log.BindBlob(2, line.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(log.Execute());
    // Those that were there before this process did not count them.
    ++untrimmed_lines_.try_emplace(id, kUntrimmedLines).first->second;
  }
  SqliteStatement trace(database_, "INSERT OR REPLACE INTO traces VALUES(?,?,?,?)");
  for (const auto& [id, record] : changes.traces) {
    trace.Bind(1, id);
    trace.Bind(2, int64_t{record.attempt()});
    trace.Bind(3, int64_t{record.rank()});
    trace.BindBlob(4, record.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(trace.Execute());
  }
  return TrimLogs();
}

// Trims the logs of jobs that have many new lines. A failed transaction makes the counts wrong: a
// trim comes too early, or some lines too late.
absl::Status Store::TrimLogs() {
  // The index on job and sequence finds the oldest line that stays without reading records.
  SqliteStatement trim(
      database_,
      "DELETE FROM logs WHERE job=?1 AND sequence <= (SELECT sequence FROM logs WHERE "
      "job=?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)");
  for (auto& [job, lines] : untrimmed_lines_) {
    if (lines < kUntrimmedLines) continue;
    trim.Bind(1, job);
    trim.Bind(2, kLogLines);
    TERCIO_RETURN_IF_ERROR(trim.Execute());
    lines = 0;
  }
  return absl::OkStatus();
}

absl::Status Store::WriteExits(const Changes& changes) {
  SqliteStatement exit(database_, "INSERT OR REPLACE INTO exits VALUES(?,?,?,?)");
  SqliteStatement trim(database_, "DELETE FROM exits WHERE job=? AND attempt<=?");
  for (const RankExit& ended : changes.exits) {
    exit.Bind(1, ended.job);
    exit.Bind(2, int64_t{ended.attempt});
    exit.Bind(3, int64_t{ended.exit.rank()});
    exit.BindBlob(4, ended.exit.SerializeAsString());
    TERCIO_RETURN_IF_ERROR(exit.Execute());
    // Exits are of interest for the last few attempts only; a job in a crash loop has hundreds.
    trim.Bind(1, ended.job);
    trim.Bind(2, ended.attempt - kExitAttempts);
    TERCIO_RETURN_IF_ERROR(trim.Execute());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::JobRecord>> Store::LoadJobs() {
  MutexLock lock(mutex_);
  TERCIO_ASSIGN_OR_RETURN(
      // The order of submission makes a restored state the same each time.
      auto jobs, ParseAll<v1::JobRecord>(database_, "SELECT record FROM jobs ORDER BY number"));
  if (version_ >= kEnumerators) return jobs;
  for (v1::JobRecord& job : jobs) TERCIO_RETURN_IF_ERROR(plan::UpgradeWords(&job));
  return jobs;
}

// An older store is only read, never changed, and lacks later tables.
absl::StatusOr<std::map<std::string, v1::Plan>> Store::LoadPlans() {
  if (version_ < 2) return std::map<std::string, v1::Plan>();
  MutexLock lock(mutex_);
  TERCIO_ASSIGN_OR_RETURN(auto plans,
                          ParseByJob<v1::Plan>(database_, "SELECT job, record FROM plans"));
  if (version_ >= kEnumerators) return plans;
  for (auto& [job, record] : plans) TERCIO_RETURN_IF_ERROR(plan::UpgradeWords(&record));
  return plans;
}

absl::StatusOr<std::map<std::string, v1::RankSlots>> Store::LoadPlacements() {
  if (version_ < 3) return std::map<std::string, v1::RankSlots>();
  MutexLock lock(mutex_);
  return ParseByJob<v1::RankSlots>(database_, "SELECT job, record FROM placements");
}

absl::StatusOr<std::vector<v1::NodeRecord>> Store::LoadNodes() {
  if (version_ < 2) return std::vector<v1::NodeRecord>();
  MutexLock lock(mutex_);
  return ParseAll<v1::NodeRecord>(database_, "SELECT record FROM nodes ORDER BY name");
}

absl::StatusOr<std::string> Store::JobOfRequest(const std::string& request_id) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_, "SELECT job FROM requests WHERE request=?");
  query.Bind(1, request_id);
  TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
  return row ? query.Bytes(0) : std::string();
}

absl::StatusOr<std::vector<v1::StepRecord>> Store::Steps(
    const std::string& job, const StepCursor& after,
    const std::function<bool(const v1::StepRecord&)>& counts, size_t most) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_,
                        "SELECT record FROM steps WHERE job=?1 AND step>=?2 AND (step>?2 OR "
                        "attempt>?3) ORDER BY step, attempt");
  query.Bind(1, job);
  query.Bind(2, after.step);
  query.Bind(3, int64_t{after.attempt});
  std::vector<v1::StepRecord> steps;
  // The filter needs the parsed record, so the limit cannot be left to SQL.
  while (steps.size() < most) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) break;
    TERCIO_ASSIGN_OR_RETURN(v1::StepRecord record, Parse<v1::StepRecord>(query.Bytes(0)));
    if (counts(record)) steps.push_back(std::move(record));
  }
  return steps;
}

absl::StatusOr<std::vector<v1::JobEvent>> Store::Events(const std::string& job, int64_t after,
                                                        size_t most) {
  MutexLock lock(mutex_);
  // Each with an index of its own: one query for both would look at the events of all jobs.
  SqliteStatement query(
      database_, job.empty()
                     ? "SELECT sequence, record FROM events WHERE sequence>?1 ORDER BY sequence"
                     : "SELECT sequence, record FROM events WHERE sequence>?1 AND job=?2 ORDER BY "
                       "sequence");
  query.Bind(1, after);
  if (!job.empty()) query.Bind(2, job);
  std::vector<v1::JobEvent> events;
  while (events.size() < most) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) break;
    TERCIO_ASSIGN_OR_RETURN(v1::JobEvent record, Parse<v1::JobEvent>(query.Bytes(1)));
    record.set_sequence(query.Integer(0));
    events.push_back(std::move(record));
  }
  return events;
}

absl::StatusOr<std::vector<v1::LogLine>> Store::Logs(const std::string& job, int64_t* after,
                                                     const LineFilter& wanted, size_t most) {
  MutexLock lock(mutex_);
  SqliteStatement last(database_, "SELECT seq FROM sqlite_sequence WHERE name='logs'");
  // A cursor beyond the last line comes from a store that was set back to a
  // backup: without this its client would see no line for a long time.
  TERCIO_ASSIGN_OR_RETURN(const bool any, last.Next());
  *after = std::min(*after, any ? last.Integer(0) : 0);
  SqliteStatement query(
      database_, "SELECT sequence, record FROM logs WHERE job=? AND sequence>? ORDER BY sequence");
  query.Bind(1, job);
  query.Bind(2, *after);
  std::vector<v1::LogLine> lines;
  while (lines.size() < most) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) break;
    TERCIO_ASSIGN_OR_RETURN(v1::LogLine line, Parse<v1::LogLine>(query.Bytes(1)));
    // The cursor also moves over lines that are not wanted, so that they are read once.
    *after = query.Integer(0);
    line.set_sequence(*after);
    if (wanted(line)) lines.push_back(std::move(line));
  }
  return lines;
}

absl::StatusOr<int64_t> Store::LogTail(const std::string& job, const LineFilter& wanted,
                                       size_t tail) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_,
                        "SELECT sequence, record FROM logs WHERE job=? ORDER BY sequence DESC");
  query.Bind(1, job);
  int64_t first = 0;
  // Backwards, since the newest lines are few and the log is long.
  for (size_t found = 0; found < tail;) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return 0;
    TERCIO_ASSIGN_OR_RETURN(const v1::LogLine line, Parse<v1::LogLine>(query.Bytes(1)));
    if (!wanted(line)) continue;
    first = query.Integer(0);
    ++found;
  }
  return first - 1;
}

absl::StatusOr<std::vector<v1::RankTrace>> Store::Traces(const std::string& job) {
  MutexLock lock(mutex_);
  SqliteStatement query(
      // Only the newest attempt is shown: times of two attempts do not fit into one picture.
      database_,
      "SELECT record FROM traces WHERE job=?1 AND attempt=(SELECT MAX(attempt) FROM "
      "traces WHERE job=?1) ORDER BY rank");
  query.Bind(1, job);
  std::vector<v1::RankTrace> traces;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return traces;
    TERCIO_ASSIGN_OR_RETURN(v1::RankTrace trace, Parse<v1::RankTrace>(query.Bytes(0)));
    traces.push_back(std::move(trace));
  }
}

absl::StatusOr<std::vector<v1::ExitRecord>> Store::Exits(const std::string& job, int32_t attempt) {
  if (version_ < 4) return std::vector<v1::ExitRecord>();
  MutexLock lock(mutex_);
  SqliteStatement query(database_,
                        "SELECT record FROM exits WHERE job=? AND attempt=? ORDER BY rank");
  query.Bind(1, job);
  query.Bind(2, int64_t{attempt});
  std::vector<v1::ExitRecord> exits;
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    if (!row) return exits;
    TERCIO_ASSIGN_OR_RETURN(v1::ExitRecord record, Parse<v1::ExitRecord>(query.Bytes(0)));
    exits.push_back(std::move(record));
  }
}

}  // namespace tercio::coordinator
