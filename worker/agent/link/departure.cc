#include "worker/agent/link/departure.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/steady_time.h"
#include "worker/agent/runs/trainer_process.h"

namespace tercio::agent {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

double Now() { return absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch()); }

std::string FileIn(const std::string& state_dir) { return state_dir + "/agent.process"; }

struct Agent {
  ProcessId process;
  bool left = false;
};

// The agent that wrote the file; nullopt if it has ended, or there is none.
std::optional<Agent> FindAgent(const std::string& state_dir) {
  const absl::StatusOr<std::string> text = ReadFile(FileIn(state_dir));
  if (!text.ok()) return std::nullopt;
  const std::vector<std::string> words =
      absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Agent agent;
  // An old file may name the number of a process that is no agent: the start time tells.
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &agent.process.pid) ||
      !absl::SimpleAtoi(words[1], &agent.process.start_time) || agent.process.pid <= 0 ||
      StartTimeOf(agent.process.pid) != agent.process.start_time) {
    return std::nullopt;
  }
  agent.left = words[2] == "left";
  return agent;
}

}  // namespace

Departure::Departure(NodeLink& link, RunManager& runs, const std::string& state_dir)
    : link_(link), runs_(runs), path_(FileIn(state_dir)) {}

absl::Status Departure::Announce() { return Write(Presence::kHere); }

void Departure::Begin(double grace_seconds) {
  if (begun()) return;
  // This comes before the message: a connection that is made just now says it by itself (Message).
  gone_at_ = Now() + grace_seconds;
  runs_.StopAccepting();
  link_.Send(*Message());
}

std::optional<v1::AgentMessage> Departure::Message() const {
  if (!begun()) return std::nullopt;
  v1::AgentMessage message;
  message.mutable_leaving()->set_grace_seconds(SecondsLeft());
  return message;
}

void Departure::Look() {
  if (!begun() || left_) return;
  // The hook returns while there is time left, since the agent gets its SIGTERM only after that.
  if (!runs_.Running(EndedRuns::kLeaveOut).empty() && SecondsLeft() > kKillSeconds) return;
  const absl::Status written = Write(Presence::kLeft);
  if (!written.ok()) LogWarning(std::string(written.message()));
  // A disk that is full may have room at the next look.
  left_ = written.ok();
}

void Departure::Finish(double grace_seconds, const std::function<bool()>& give_up) {
  Begin(grace_seconds);
  // The last seconds belong to StopAll, which ends what is left.
  runs_.WaitForEnds(absl::Seconds(SecondsLeft() - kKillSeconds), give_up);
  runs_.StopAll(absl::Seconds(std::min(SecondsLeft(), kKillSeconds)));
  // The ends of the last ranks should arrive before the connection ends.
  link_.Drain(1);
}

double Departure::SecondsLeft() const { return std::max(0.0, gone_at_ - Now()); }

absl::Status Departure::Write(Presence presence) const {
  const char* const word = presence == Presence::kLeft ? "left" : "here";
  return WriteFileDurably(path_,
                          absl::StrCat(getpid(), " ", StartTimeOf(getpid()), " ", word, "\n"));
}

absl::Status AskToLeave(const std::string& state_dir, const std::function<bool()>& give_up) {
  const std::optional<Agent> asked = FindAgent(state_dir);
  if (!asked.has_value()) {
    // A hook must not fail because the agent has ended before it.
    LogInfo(absl::StrCat("no agent runs on ", state_dir, ": nothing to do"));
    return absl::OkStatus();
  }
  // An agent that has ended just now has left.
  if (kill(asked->process.pid, Departure::kSignal) != 0 && errno != ESRCH) {
    return absl::PermissionDeniedError(absl::StrCat("cannot signal the agent's process ",
                                                    asked->process.pid, ": ", std::strerror(errno),
                                                    "; run this as the agent's user"));
  }
  while (true) {
    const std::optional<Agent> agent = FindAgent(state_dir);
    // Another agent on the same directory was not asked, so the one that was has gone.
    if (!agent.has_value() || agent->process.pid != asked->process.pid || agent->left) {
      return absl::OkStatus();
    }
    if (give_up()) return absl::CancelledError("interrupted; the agent continues to leave");
    absl::SleepFor(kLookInterval);
  }
}

}  // namespace tercio::agent
