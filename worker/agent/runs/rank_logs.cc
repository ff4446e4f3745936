#include "worker/agent/runs/rank_logs.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/utf8.h"

namespace tercio::agent {
namespace {

void SetNow(google::protobuf::Timestamp* time) {
  const absl::Time now = absl::Now();
  time->set_seconds(absl::ToUnixSeconds(now));
  time->set_nanos(static_cast<int32_t>(absl::ToUnixNanos(now) % 1'000'000'000));
}

}  // namespace

LogFields RankFields(const RunKey& run, int rank) {
  return {{"job", run.first}, {"attempt", run.second}, {"rank", rank}};
}

RankLogs::Stream::Stream(const RankLogs& logs, RunKey run, int rank)
    : logs_(logs), run_(std::move(run)), rank_(rank), limit_(logs.options_.lines_per_second) {}

void RankLogs::Stream::Send(const std::vector<std::string>& lines, const LogPosition& position) {
  const LineLimit::Passed passed =
      limit_.Pass(absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch()), lines);
  // The position in the log is stored with the next lines that are sent.
  if (passed.lines.empty() && passed.left_out_before == 0) return;
  AgentChanges changes;
  *changes.messages.emplace_back().mutable_logs() =
      logs_.MakeMessage(run_, rank_, passed.left_out_before, passed.lines);
  // In the same commit as the lines: they are taken once, even if this process dies.
  changes.logs.push_back({{run_, rank_}, position});
  logs_.store_.Commit(std::move(changes));
  if (passed.left_out_before > 0) logs_.on_dropped_(run_, rank_, passed.left_out_before);
}

void RankLogs::Stream::Finish() {
  const int64_t dropped = limit_.TakeLeftOut();
  if (dropped == 0) return;
  AgentChanges changes;
  *changes.messages.emplace_back().mutable_logs() = logs_.MakeMessage(run_, rank_, dropped, {});
  logs_.store_.Commit(std::move(changes));
  logs_.on_dropped_(run_, rank_, dropped);
}

RankLogs::RankLogs(RankLogsOptions options, AgentStore& store, OnDropped on_dropped)
    : options_(std::move(options)), store_(store), on_dropped_(std::move(on_dropped)) {}

std::string RankLogs::NameOf(const RunKey& run, int rank) {
  return absl::StrCat(run.first, "/attempt-", run.second, "-rank-", rank, ".log");
}

std::string RankLogs::PathOf(const RunKey& run, int rank) const {
  return absl::StrCat(options_.directory, "/", NameOf(run, rank));
}

absl::Status RankLogs::MakeFolder(const std::string& job) const {
  const std::string folder = absl::StrCat(options_.directory, "/", job);
  TERCIO_RETURN_IF_ERROR(MakeDirectories(folder));
  // Trainers create their next log file themselves.
  return options_.user.has_value() ? GiveTo(*options_.user, folder) : absl::OkStatus();
}

std::shared_ptr<RankLogs::Stream> RankLogs::OpenStream(const RunKey& run, int rank) const {
  return std::make_shared<Stream>(*this, run, rank);
}

void RankLogs::ReportUnwritten(const RunKey& run, int64_t lines) const {
  AgentChanges changes;
  v1::RankLogs* logs = changes.messages.emplace_back().mutable_logs();
  *logs->mutable_run() = ToRunId(run);
  logs->set_lost(lines);
  store_.Commit(std::move(changes));
}

// Protobuf strings are UTF-8, and control characters would move the reader's cursor.
std::string RankLogs::Readable(const std::string& text) { return ForDisplay(text, "\t\n"); }

std::vector<std::string> RankLogs::Readable(const std::vector<std::string>& lines) {
  std::vector<std::string> readable;
  for (const std::string& line : lines) readable.push_back(Readable(line));
  return readable;
}

v1::RankLogs RankLogs::MakeMessage(const RunKey& run, int rank, int64_t dropped,
                                   const std::vector<std::string>& lines) const {
  v1::RankLogs logs;
  *logs.mutable_run() = ToRunId(run);
  logs.set_lost(dropped);
  std::vector<std::string> all;
  if (dropped > 0) {
    std::string marker = FormatLogLine(
        LogFormat::kLogfmt,
        {absl::Now(), LogLevel::kWarning, "agent",
         absl::StrCat(dropped, " lines were dropped here: more than ", options_.lines_per_second,
                      " per second (--log-rate); the newest of them are in ", PathOf(run, rank))},
        {}, RankFields(run, rank));
    marker.pop_back();
    all.push_back(std::move(marker));
  }
  all.insert(all.end(), lines.begin(), lines.end());
  for (const std::string& line : all) {
    v1::LogLine* log = logs.add_lines();
    SetNow(log->mutable_time());
    log->set_attempt(run.second);
    log->set_rank(rank);
    log->set_node(options_.node);
    log->set_line(Readable(line));
    if (const auto level = LevelOfLogLine(line); level.has_value()) {
      log->set_level(std::string(tercio::NameOf(*level)));
    }
  }
  return logs;
}

bool RankLogs::Trim(const std::set<std::string>& live) const {
  bool any = false;
  const std::vector<std::string> jobs = ListDirectory(options_.directory);
  for (const std::string& job : jobs) {
    const int removed = TrimLogs(options_.directory, {job}, options_.job_bytes, live);
    if (removed == 0) continue;
    any = true;
    LogInfo(absl::StrCat("removed ", removed, " old logs: the job's logs exceeded --log-quota"),
            {{"job", job}});
  }
  const int removed = TrimLogs(options_.directory, jobs, options_.all_bytes, live);
  if (removed == 0) return any;
  LogInfo(absl::StrCat("removed the ", removed,
                       " oldest logs of all jobs, which exceeded --log-total"));
  return true;
}

void RankLogs::RemoveEmptyFolders() const {
  for (const std::string& job : ListDirectory(options_.directory)) {
    // Folders that are not empty stay.
    rmdir(absl::StrCat(options_.directory, "/", job).c_str());
  }
}

}  // namespace tercio::agent
