#include "worker/agent/link/agent_store.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/sqlite_statement.h"
#include "common/status_macros.h"
#include "plan/old_words.h"

namespace tercio::agent {
namespace {

// Sequence numbers are reserved in blocks of this size. A message that could not be written may
// have been sent: its number must not be used again after a restart.
constexpr uint64_t kReserved = 1 << 20;
constexpr int64_t kEndedRuns = 32;  // as many as the core remembers

// Version of the layout of the tables; stored as SQLite's user_version. 0: before versions were
// stored. 2: runs hold enumerators where those before held words.
constexpr int64_t kVersion = 2;

// Every start runs this: it leaves the tables of a previous agent as they are.
constexpr char kSchema[] = R"(
CREATE TABLE IF NOT EXISTS notes(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spool(sequence INTEGER PRIMARY KEY, message BLOB);
CREATE TABLE IF NOT EXISTS missing(job TEXT, attempt INTEGER, rank INTEGER, lines INTEGER,
  last BLOB, PRIMARY KEY(job, attempt, rank)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs(job TEXT, attempt INTEGER, start BLOB, stopping INTEGER,
  ended INTEGER DEFAULT 0, PRIMARY KEY(job, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranks(job TEXT, attempt INTEGER, rank INTEGER, life INTEGER,
  exited INTEGER, exit BLOB, pid INTEGER DEFAULT 0, start_time INTEGER DEFAULT 0,
  received INTEGER DEFAULT 0, log_file INTEGER DEFAULT 0, log_offset INTEGER DEFAULT 0,
  PRIMARY KEY(job, attempt, rank)) WITHOUT ROWID;
)";

// Merges `later` into `all`; a later pair replaces the one with the same key.
template <typename Key, typename Value>
void Replace(std::vector<std::pair<Key, Value>>& all, std::vector<std::pair<Key, Value>>& later) {
  for (std::pair<Key, Value>& pair : later) {
    // There are never more pairs than ranks on a node, so a search in order is good enough.
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const auto& other) { return other.first == pair.first; });
    if (found == all.end()) {
      all.push_back(std::move(pair));
    } else {
      found->second = std::move(pair.second);
    }
  }
}

// 128 bits: two files with the same id would be taken for one spool, whose messages are known.
std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

}  // namespace

// A rank starts only once, and a run ends only once, so those are never replaced.
void AgentChanges::Add(AgentChanges later) {
  std::move(later.messages.begin(), later.messages.end(), std::back_inserter(messages));
  Replace(runs, later.runs);
  std::move(later.ended.begin(), later.ended.end(), std::back_inserter(ended));
  std::move(later.started.begin(), later.started.end(), std::back_inserter(started));
  Replace(received, later.received);
  Replace(logs, later.logs);
}

absl::StatusOr<std::unique_ptr<AgentStore>> AgentStore::Open(const std::string& path,
                                                             int64_t most_spool_bytes) {
  auto store = TryOpen(path, most_spool_bytes);
  if (store.ok()) return store;
  // The file is sound, but a newer version may need what this one would destroy.
  if (absl::IsUnimplemented(store.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": ", std::string(store.status().message()),
        "; install that version, or move the file away, which restarts the node's runs"));
  }
  LogError(absl::StrCat(path, " is damaged; moving it to ", path,
                        ".damaged: ", std::string(store.status().message())));
  // SQLite would replay the damaged file's log into the new one.
  for (const char* part : {"", "-wal", "-shm"}) {
    std::rename(absl::StrCat(path, part).c_str(), absl::StrCat(path, ".damaged", part).c_str());
  }
  return TryOpen(path, most_spool_bytes);
}

absl::StatusOr<std::unique_ptr<AgentStore>> AgentStore::TryOpen(const std::string& path,
                                                                int64_t most_spool_bytes) {
  // Runs have secrets in them, such as the tokens of attempts.
  TERCIO_RETURN_IF_ERROR(MakeDatabasePrivate(path));
  sqlite3* database = nullptr;
  // SQLite needs no lock of its own (NOMUTEX): mutex_ is held around every use of the database.
  const int code =
      sqlite3_open_v2(path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  // A database that cannot be opened has a handle, too, which must be closed.
  std::unique_ptr<AgentStore> store(new AgentStore(database, most_spool_bytes));
  if (code != SQLITE_OK) return SqliteFault(database, absl::StrCat("cannot open ", path));
  TERCIO_RETURN_IF_ERROR(store->Prepare());
  TERCIO_RETURN_IF_ERROR(store->Load());
  return store;
}

AgentStore::~AgentStore() { sqlite3_close(database_); }

absl::Status AgentStore::Run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return SqliteFault(database_, sql);
}

absl::Status AgentStore::Prepare() {
  // Someone may be reading the file with another tool.
  sqlite3_busy_timeout(database_, 5000);
  TERCIO_RETURN_IF_ERROR(Run("PRAGMA journal_mode=WAL"));
  TERCIO_RETURN_IF_ERROR(Run("PRAGMA synchronous=NORMAL"));
  {
    // Damage is found now, when a new file can replace this one, instead of in the middle of a run.
    SqliteStatement check(database_, "PRAGMA quick_check(1)");
    TERCIO_ASSIGN_OR_RETURN(const bool row, check.Next());
    if (!row || check.Bytes(0) != "ok") {
      return absl::FailedPreconditionError("the database is inconsistent");
    }
  }
  TERCIO_RETURN_IF_ERROR(Run(kSchema));
  return BringUpToDate();
}

absl::Status AgentStore::BringUpToDate() {
  int64_t version = 0;
  {
    SqliteStatement query(database_, "PRAGMA user_version");
    TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
    version = row ? query.Integer(0) : 0;
  }
  if (version > kVersion) {
    return absl::UnimplementedError(absl::StrCat("written by a newer Tercio (version ", version,
                                                 " of its tables; this one supports ", kVersion,
                                                 ")"));
  }
  // The first version of the tables did not keep the last of the missing lines.
  bool known = false;
  {
    SqliteStatement query(database_,
                          "SELECT 1 FROM pragma_table_info('missing') WHERE name='last'");
    TERCIO_ASSIGN_OR_RETURN(known, query.Next());
  }
  if (!known) TERCIO_RETURN_IF_ERROR(Run("ALTER TABLE missing ADD COLUMN last BLOB"));
  return Run(absl::StrCat("PRAGMA user_version=", kVersion).c_str());
}

absl::Status AgentStore::Load() {
  {
    SqliteStatement query(database_, "SELECT sequence, message FROM spool");
    while (true) {
      TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
      if (!row) break;
      spool_.Restore(static_cast<uint64_t>(query.Integer(0)), query.Bytes(1));
    }
  }
  {
    SqliteStatement query(database_, "SELECT job, attempt, rank, lines, last FROM missing");
    while (true) {
      TERCIO_ASSIGN_OR_RETURN(const bool row, query.Next());
      if (!row) break;
      Spool::Missing missing;
      missing.lines = query.Integer(3);
      // Rows of the first version have no such line.
      if (!missing.last.ParseFromString(query.Bytes(4))) missing.last.Clear();
      spool_.RestoreMissing(
          {query.Bytes(0), static_cast<int>(query.Integer(1)), static_cast<int>(query.Integer(2))},
          std::move(missing));
    }
  }
  TERCIO_RETURN_IF_ERROR(LoadRuns());
  // The id belongs to the file, since only the numbers in it continue.
  spool_id_ = Note("spool_id");
  if (spool_id_.empty()) {
    spool_id_ = RandomId();
    SetNote("spool_id", spool_id_);
  }
  // The previous process may have sent messages that it could not write: it used no higher numbers.
  spool_.StartAt(std::strtoull(Note("reserved").c_str(), nullptr, 10));
  reserved_ = spool_.next() + kReserved;
  SetNote("reserved", absl::StrCat(reserved_));
  // Rows of old runs are deleted, so the highest number of all is kept as a note.
  restored_.highest_attempt =
      std::max(restored_.highest_attempt, std::atoi(Note("highest_attempt").c_str()));
  return absl::OkStatus();
}

absl::Status AgentStore::LoadRuns() {
  std::vector<std::pair<int64_t, RunKey>> ended;
  SqliteStatement runs(database_, "SELECT job, attempt, start, stopping, ended FROM runs");
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, runs.Next());
    if (!row) break;
    const RunKey key{runs.Bytes(0), static_cast<int>(runs.Integer(1))};
    restored_.highest_attempt = std::max(restored_.highest_attempt, key.second);
    // The number says in which order runs have ended; those that live have 0.
    if (runs.Integer(4) != 0) {
      ended.emplace_back(runs.Integer(4), key);
      continue;
    }
    RunState& run = restored_.runs[key];
    if (!run.start.ParseFromString(runs.Bytes(2))) {
      return absl::FailedPreconditionError("a record of a run is damaged");
    }
    // A run keeps the record that it began with, however often the agent is upgraded.
    TERCIO_RETURN_IF_ERROR(plan::UpgradeWords(&run.start));
    // The end of the grace is not stored: the core kills what was asked to stop by the last agent.
    run.stopping = runs.Integer(3) != 0;
    for (const v1::RankPlan& plan : run.start.ranks()) {
      run.ranks[plan.placement().rank()].plan = plan;
      run.ranks[plan.placement().rank()].last_step = run.start.resume_step();
    }
  }
  // The core forgets the oldest first.
  std::sort(ended.begin(), ended.end());
  for (const auto& [order, key] : ended) restored_.ended.push_back({key, {}});
  SqliteStatement ranks(database_,
                        "SELECT job, attempt, rank, life, exited, exit, pid, start_time, received, "
                        "log_file, log_offset FROM ranks ORDER BY job, attempt, rank");
  while (true) {
    TERCIO_ASSIGN_OR_RETURN(const bool row, ranks.Next());
    if (!row) return absl::OkStatus();
    const RunKey key{ranks.Bytes(0), static_cast<int>(ranks.Integer(1))};
    const int index = static_cast<int>(ranks.Integer(2));
    v1::ExitRecord exit;
    if (!exit.ParseFromString(ranks.Bytes(5))) {
      return absl::FailedPreconditionError("a record of an exit is damaged");
    }
    for (EndedRun& run : restored_.ended) {
      if (run.run == key && ranks.Integer(4) != 0) run.exits.push_back(exit);
    }
    const auto run = restored_.runs.find(key);
    if (run == restored_.runs.end() || !run->second.ranks.contains(index)) continue;
    RankState& rank = run->second.ranks.at(index);
    rank.life = static_cast<RankState::Life>(ranks.Integer(3));
    rank.has_exited = ranks.Integer(4) != 0;
    rank.exit = exit;
    // These are the trainers that this agent can adopt.
    processes_.push_back({key,
                          index,
                          static_cast<int>(ranks.Integer(6)),
                          static_cast<uint64_t>(ranks.Integer(7)),
                          static_cast<uint64_t>(ranks.Integer(8)),
                          {static_cast<uint64_t>(ranks.Integer(9)), ranks.Integer(10)}});
  }
}

std::string AgentStore::Note(const std::string& name) {
  MutexLock lock(mutex_);
  SqliteStatement query(database_, "SELECT value FROM notes WHERE name=?");
  query.Bind(1, name);
  const absl::StatusOr<bool> row = query.Next();
  return row.ok() && *row ? query.Bytes(0) : std::string();
}

void AgentStore::SetNote(const std::string& name, const std::string& text) {
  MutexLock lock(mutex_);
  SqliteStatement note(database_, "INSERT OR REPLACE INTO notes VALUES(?,?)");
  note.Bind(1, name);
  note.Bind(2, text);
  const absl::Status status = note.Execute();
  if (!status.ok()) LogError(absl::StrCat("agent.db: ", std::string(status.message())));
}

void AgentStore::Commit(AgentChanges changes) {
  if (changes.empty()) return;
  const bool news = !changes.messages.empty();
  {
    MutexLock lock(mutex_);
    for (v1::AgentMessage& message : changes.messages) spool_.Append(std::move(message));
    changes.messages.clear();
    // What could not be written before is written together with this, or waits on.
    unsaved_.Add(std::move(changes));
    Save();
  }
  // The lock is free by now: a listener may ask the store for the messages.
  if (news) CallListener();
}

void AgentStore::CallListener() {
  MutexLock lock(listener_mutex_);
  // The lock is held, so that SetListener returns only when no call is under way.
  if (listener_) listener_();
}

void AgentStore::Acknowledge(uint64_t sequence) {
  uint64_t before = 0;
  uint64_t after = 0;
  {
    MutexLock lock(mutex_);
    before = spool_.next();
    if (spool_.Acknowledge(sequence)) Save();
    after = spool_.next();
  }
  if (after > before) CallListener();  // there is room to report what is missing
}

std::vector<v1::AgentMessage> AgentStore::After(uint64_t sequence, int64_t most_bytes) {
  MutexLock lock(mutex_);
  return spool_.After(sequence, most_bytes);
}

int64_t AgentStore::SpoolBytes() {
  MutexLock lock(mutex_);
  return spool_.bytes();
}

uint64_t AgentStore::Newest() {
  MutexLock lock(mutex_);
  return spool_.newest();
}

void AgentStore::SetListener(std::function<void()> listener) {
  MutexLock lock(listener_mutex_);
  listener_ = std::move(listener);
}

void AgentStore::Save() {
  // IMMEDIATE takes the lock at once, so that no later statement finds the file busy.
  absl::Status status = Run("BEGIN IMMEDIATE");
  if (status.ok()) {
    status = WriteAll();
    if (status.ok()) status = Run("COMMIT");
    if (!status.ok()) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  if (status.ok()) {
    unsaved_ = {};
    spool_.ForgetDelta();
    // Numbers are reserved when that is on the disk, not before.
    reserved_ = std::max(reserved_, reserving_);
  } else if (!failing_) {
    // Every event comes here, so an outage is reported once.
    LogError(absl::StrCat("cannot write agent.db; new messages are kept in memory only: ",
                          std::string(status.message())));
  }
  failing_ = !status.ok();
}

absl::Status AgentStore::WriteAll() {
  TERCIO_RETURN_IF_ERROR(WriteRuns(unsaved_));
  TERCIO_RETURN_IF_ERROR(WriteProcesses(unsaved_));
  return WriteSpool();
}

absl::Status AgentStore::WriteRuns(const AgentChanges& changes) {
  if (changes.runs.empty() && changes.ended.empty()) return absl::OkStatus();
  // A run's start may be large and never changes, so it is written once.
  SqliteStatement run(database_,
                      "INSERT INTO runs(job, attempt, start, stopping) VALUES(?,?,?,?) ON "
                      "CONFLICT DO UPDATE SET stopping=excluded.stopping");
  // An update leaves the columns of the process alone, which WriteProcesses sets.
  SqliteStatement rank(database_,
                       "INSERT INTO ranks(job, attempt, rank, life, exited, exit) "
                       "VALUES(?,?,?,?,?,?) ON CONFLICT DO UPDATE SET life=excluded.life, "
                       "exited=excluded.exited, exit=excluded.exit");
  const auto write_rank = [&](const RunKey& key, int index, RankState::Life life,
                              const v1::ExitRecord* exit) {
    rank.Bind(1, key.first);
    rank.Bind(2, int64_t{key.second});
    rank.Bind(3, int64_t{index});
    rank.Bind(4, static_cast<int64_t>(life));
    // A rank that ended before it was started has no exit.
    rank.Bind(5, int64_t{exit != nullptr});
    rank.BindBlob(6, exit == nullptr ? "" : exit->SerializeAsString());
    return rank.Execute();
  };
  // This outlives the rows of the runs.
  SqliteStatement highest(database_,
                          "INSERT INTO notes VALUES('highest_attempt', ?1) ON CONFLICT DO UPDATE "
                          "SET value=MAX(CAST(value AS INTEGER), ?1)");
  for (const auto& [key, state] : changes.runs) {
    run.Bind(1, key.first);
    run.Bind(2, int64_t{key.second});
    run.BindBlob(3, state.start.SerializeAsString());
    run.Bind(4, int64_t{state.stopping});
    TERCIO_RETURN_IF_ERROR(run.Execute());
    for (const auto& [index, each] : state.ranks) {
      TERCIO_RETURN_IF_ERROR(
          write_rank(key, index, each.life, each.has_exited ? &each.exit : nullptr));
    }
    highest.Bind(1, int64_t{key.second});
    TERCIO_RETURN_IF_ERROR(highest.Execute());
  }
  // `ended` counts the runs in the order of their ends. Nothing
  // reads the start of such a run, so its bytes are given back.
  SqliteStatement end(database_,
                      "INSERT INTO runs(job, attempt, start, stopping, ended) VALUES(?1, ?2, '', "
                      "1, (SELECT MAX(ended) + 1 FROM (SELECT 0 AS ended UNION SELECT ended FROM "
                      "runs))) ON CONFLICT DO UPDATE SET start='', ended=excluded.ended");
  for (const EndedRun& ended : changes.ended) {
    for (const v1::ExitRecord& exit : ended.exits) {
      TERCIO_RETURN_IF_ERROR(write_rank(ended.run, exit.rank(), RankState::Life::kEnded, &exit));
    }
    end.Bind(1, ended.run.first);
    end.Bind(2, int64_t{ended.run.second});
    TERCIO_RETURN_IF_ERROR(end.Execute());
  }
  if (changes.ended.empty()) return absl::OkStatus();
  SqliteStatement trim(database_,
                       "DELETE FROM runs WHERE ended > 0 AND ended <= (SELECT MAX(ended) FROM "
                       "runs) - ?");
  trim.Bind(1, kEndedRuns);
  TERCIO_RETURN_IF_ERROR(trim.Execute());
  // The tables have no foreign keys: ranks go with their runs here.
  return Run("DELETE FROM ranks WHERE (job, attempt) NOT IN (SELECT job, attempt FROM runs)");
}

absl::Status AgentStore::WriteProcesses(const AgentChanges& changes) {
  const auto bind = [](SqliteStatement& statement, int at, const RunKey& key, int rank) {
    statement.Bind(at, key.first);
    statement.Bind(at + 1, int64_t{key.second});
    statement.Bind(at + 2, int64_t{rank});
  };
  // The rows exist: a run is kept before its first trainer starts.
  for (const ProcessRecord& process : changes.started) {
    SqliteStatement start(database_,
                          "UPDATE ranks SET pid=?, start_time=?, log_file=?, log_offset=? WHERE "
                          "job=? AND attempt=? AND rank=?");
    start.Bind(1, int64_t{process.pid});
    start.Bind(2, static_cast<int64_t>(process.start_time));
    start.Bind(3, static_cast<int64_t>(process.log.file));
    start.Bind(4, process.log.offset);
    bind(start, 5, process.run, process.rank);
    TERCIO_RETURN_IF_ERROR(start.Execute());
  }
  for (const auto& [rank, sequence] : changes.received) {
    SqliteStatement received(database_,
                             "UPDATE ranks SET received=? WHERE job=? AND attempt=? AND rank=?");
    received.Bind(1, static_cast<int64_t>(sequence));
    bind(received, 2, rank.first, rank.second);
    TERCIO_RETURN_IF_ERROR(received.Execute());
  }
  for (const auto& [rank, position] : changes.logs) {
    SqliteStatement log(
        database_,
        "UPDATE ranks SET log_file=?, log_offset=? WHERE job=? AND attempt=? AND rank=?");
    log.Bind(1, static_cast<int64_t>(position.file));
    log.Bind(2, position.offset);
    bind(log, 3, rank.first, rank.second);
    TERCIO_RETURN_IF_ERROR(log.Execute());
  }
  return absl::OkStatus();
}

absl::Status AgentStore::WriteSpool() {
  const Spool::Delta& delta = spool_.delta();
  if (delta.acknowledged > 0) {
    SqliteStatement told(database_, "DELETE FROM spool WHERE sequence<=?");
    told.Bind(1, static_cast<int64_t>(delta.acknowledged));
    TERCIO_RETURN_IF_ERROR(told.Execute());
  }
  if (!delta.added.empty()) {
    SqliteStatement add(database_, "INSERT INTO spool VALUES(?,?)");
    for (const auto& [sequence, bytes] : delta.added) {
      add.Bind(1, static_cast<int64_t>(sequence));
      add.BindBlob(2, bytes);
      TERCIO_RETURN_IF_ERROR(add.Execute());
    }
  }
  for (const uint64_t sequence : delta.removed) {
    SqliteStatement remove(database_, "DELETE FROM spool WHERE sequence=?");
    remove.Bind(1, static_cast<int64_t>(sequence));
    TERCIO_RETURN_IF_ERROR(remove.Execute());
  }
  if (delta.missing_changed) {
    // A node has few ranks, so this small table is written as a whole.
    TERCIO_RETURN_IF_ERROR(Run("DELETE FROM missing"));
    SqliteStatement missing(database_, "INSERT INTO missing VALUES(?,?,?,?,?)");
    for (const auto& [rank, each] : spool_.missing()) {
      missing.Bind(1, std::get<0>(rank));
      missing.Bind(2, int64_t{std::get<1>(rank)});
      missing.Bind(3, int64_t{std::get<2>(rank)});
      missing.Bind(4, each.lines);
      missing.BindBlob(5, each.last.SerializeAsString());
      TERCIO_RETURN_IF_ERROR(missing.Execute());
    }
  }
  // The next block is reserved when half of this one is left, so that the disk may fail meanwhile.
  if (spool_.next() + kReserved / 2 < reserved_) return absl::OkStatus();
  // It becomes the limit when the transaction has been committed (Save).
  reserving_ = spool_.next() + kReserved;
  SqliteStatement reserve(database_, "INSERT OR REPLACE INTO notes VALUES('reserved', ?)");
  reserve.Bind(1, static_cast<int64_t>(reserving_));
  return reserve.Execute();
}

}  // namespace tercio::agent
