#include "worker/agent/runs/rank_inspector.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "common/untrusted_file.h"
#include "common/utf8.h"

namespace tercio::agent {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr size_t kMostStackBytes = 64 << 10;  // stack bytes of a rank

// Content of a file in /proc, which reports no size; empty when the file does not exist.
std::string ReadProc(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<pid_t> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  // Threads, and the process itself, may end while they are listed.
  std::error_code error;
  std::filesystem::directory_iterator entry(absl::StrCat("/proc/", pid, "/task"), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    threads.push_back(std::atoi(entry->path().filename().c_str()));
  }
  return threads;
}

// By default this signal ends a process: it is sent only to one that handles it.
bool Handles(pid_t pid, int signal) {
  const std::string status = ReadProc(absl::StrCat("/proc/", pid, "/status"));
  const size_t at = status.find("SigCgt:");
  if (at == std::string::npos) return false;
  const uint64_t mask = std::strtoull(status.c_str() + at + 7, nullptr, 16);
  return (mask >> (signal - 1) & 1) != 0;
}

size_t CountOf(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// Turns "thread 12" into "thread 12 (grpc_event)" and removes the end lines, which only show that
// all was written.
std::string WithNames(pid_t pid, const std::string& dump) {
  std::istringstream lines(dump);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("end ")) continue;
    if (line.starts_with("thread ")) {
      const int thread = std::atoi(line.c_str() + 7);
      std::string name = ReadProc(absl::StrCat("/proc/", pid, "/task/", thread, "/comm"));
      if (!name.empty() && name.back() == '\n') name.pop_back();
      absl::StrAppend(&line, " (", name, ")");
    }
    text += ForDisplay(line, "\t") + '\n';
  }
  return text;
}

std::string StackOf(const InspectedRank& rank, absl::Duration patience) {
  const auto dump = UntrustedFile::Open(rank.page + ".stacks");
  if (!dump.ok() || !Handles(rank.pid, SIGUSR2)) return "";
  // The file also holds the dumps of earlier requests.
  const int64_t before = dump->size();
  const std::vector<pid_t> threads = ThreadsOf(rank.pid);
  // A signal to the process would be handled by one thread; each has its own stack to show.
  for (const pid_t thread : threads) syscall(SYS_tgkill, rank.pid, thread, SIGUSR2);
  const absl::Time end = SteadyNow() + patience;
  std::string text;
  while (true) {
    text = dump->Read(before, kMostStackBytes);
    // A thread writes its end line behind its frames.
    if (CountOf(text, "\nend ") >= threads.size() || SteadyNow() >= end) break;
    absl::SleepFor(kPoll);
  }
  return WithNames(rank.pid, text);
}

// Protobuf strings must be UTF-8; an invalid one would cost the whole message.
void ToProto(const progress::CollectivePosition& from, v1::CollectiveIdentity* to) {
  to->set_group(ForDisplay(from.group));
  to->set_sequence(from.sequence);
  to->set_operation(ForDisplay(from.operation));
  to->set_dtype(ForDisplay(from.dtype));
  to->set_count(from.count);
  to->set_peer(from.peer);
}

v1::RankPosition InspectRank(const InspectedRank& rank, absl::Duration patience) {
  v1::RankPosition position;
  position.set_rank(rank.rank);
  if (rank.pid > 0) position.set_process_state(ProcessState(rank.pid));
  const auto page = progress::ProgressReader::Open(rank.page);
  if (const auto progress = page.ok() ? page->Read() : std::nullopt; progress.has_value()) {
    position.set_phase(static_cast<v1::TrainerPhase>(progress->phase));
    position.set_step(progress->step);
    position.set_action(ForDisplay(progress->action));
    if (!progress->waiting.operation.empty()) {
      ToProto(progress->waiting, position.mutable_waiting());
    }
    // The page may hold any time, also one to come.
    position.set_seconds(std::max(0.0, progress::MonotonicSeconds() - progress->last_beat));
  }
  const std::string& state = position.process_state();
  // A stopped process would answer only after it is continued.
  if (!state.empty() && std::string("TtZX").find(state) == std::string::npos) {
    position.set_stack(StackOf(rank, patience));
  }
  return position;
}

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string ProcessState(pid_t pid) {
  const std::string stat = ReadProc(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');  // the name may contain any bytes
  return name_end == std::string::npos || name_end + 2 >= stat.size()
             ? ""
             : stat.substr(name_end + 2, 1);
}

std::vector<v1::RankPosition> InspectRanks(const std::vector<InspectedRank>& ranks,
                                           absl::Duration patience) {
  std::vector<v1::RankPosition> positions(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    // All ranks are asked at once, so that a few that do not answer cost the patience once.
    threads.emplace_back([&, i] { positions[i] = InspectRank(ranks[i], patience); });
  }
  for (std::thread& thread : threads) thread.join();
  return positions;
}

void RankWatch::Sample(const RunKey& run, int rank, const std::string& page) {
  const auto [found, inserted] = runs_[run].try_emplace(rank);
  Rank& entry = found->second;
  // A rank that never makes its page counts as stalled from now on.
  if (inserted) entry.last_beat = progress::MonotonicSeconds();
  if (!entry.page.has_value()) {
    auto opened = progress::ProgressReader::Open(page);
    if (!opened.ok()) return;  // not created yet
    // It stays open, since this is called several times a second.
    entry.page = *std::move(opened);
  }
  const std::optional<progress::RankProgress> progress = entry.page->Read();
  if (!progress.has_value()) return;
  entry.last_beat = std::max(entry.last_beat, progress->last_beat);
  entry.loading = progress->phase == v1::TRAINER_PHASE_LOADING;
  entry.loaded_bytes = progress->loaded_bytes;
  entry.load_total_bytes = progress->load_total_bytes;
  // This is called many times in a step, which counts once.
  if (progress->timed_step <= entry.timed_step) return;
  entry.timed_step = progress->timed_step;
  entry.step_seconds.push_back(progress->step_seconds);
  entry.compute_seconds.push_back(progress->compute_seconds);
}

// While one of them loads, those that have finished loading count, too.
void RankWatch::AddLoading(const std::map<int, Rank>& ranks, v1::RunHealth* health) {
  const bool loading = std::any_of(ranks.begin(), ranks.end(),
                                   [](const auto& entry) { return entry.second.loading; });
  if (!loading) return;
  for (const auto& [rank, entry] : ranks) {
    health->set_loaded_bytes(health->loaded_bytes() + entry.loaded_bytes);
    health->set_load_total_bytes(health->load_total_bytes() + entry.load_total_bytes);
  }
}

v1::RunHealth RankWatch::Take(const RunKey& run) {
  v1::RunHealth health;
  *health.mutable_run() = ToRunId(run);
  const auto found = runs_.find(run);
  if (found == runs_.end()) return health;
  double latest = 0;
  AddLoading(found->second, &health);
  for (auto& [rank, entry] : found->second) {
    // A run stands still when none of its ranks moves: one that computes keeps the others waiting.
    latest = std::max(latest, entry.last_beat);
    if (entry.step_seconds.empty()) continue;
    v1::RankTiming* timing = health.add_timings();
    timing->set_rank(rank);
    timing->set_step(entry.timed_step);
    // The median leaves out a single slow step, which says nothing about the rank.
    timing->set_step_seconds(Median(entry.step_seconds));
    timing->set_compute_seconds(Median(entry.compute_seconds));
    entry.step_seconds.clear();
    entry.compute_seconds.clear();
  }
  health.set_stalled_seconds(std::max(0.0, progress::MonotonicSeconds() - latest));
  return health;
}

void RankWatch::Forget(const RunKey& run) { runs_.erase(run); }

}  // namespace tercio::agent
