// Finds out whether the kernel has killed a process because memory ran out. The exit status does
// not show it, so the evidence is collected from the kernel's counts and log:
//   - the kills that it counts for the process's cgroup (memory.events of cgroup version 2,
//     memory.oom_control of version 1): decisive if there is such a count;
//   - the kills that it counts for the machine (oom_kill of /proc/vmstat): none means no such kill;
//   - its log (/dev/kmsg), if it is readable: it names the process, or it was another one.
// Counts are compared with those of some seconds before the end.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace tercio::agent {

// Kills because memory ran out, ever; absent if there is no counter.
struct MemoryKills {
  std::string cgroup;  // the group that is counted
  std::optional<int64_t> of_cgroup;
  std::optional<int64_t> of_machine;
};

// Evidence about a process that was killed by a SIGKILL of unknown origin.
struct MemoryKillEvidence {
  MemoryKills before;
  MemoryKills after;
  // Whether the kernel's log names the process; absent if the log is not readable.
  std::optional<bool> named;
};
bool KilledForWantOfMemory(const MemoryKillEvidence& evidence);

// The number after `name` in lines of "name number".
std::optional<int64_t> CountIn(const std::string& text, const std::string& name);
// The file with the kill count of a process's cgroup, by /proc/PID/cgroup and /proc/self/mountinfo;
// empty when there is none.
std::string KillCountFile(const std::string& cgroups, const std::string& mounts);
// Whether a record of the kernel's log says that it has killed this process because memory ran out.
bool NamesKill(const std::string& record, pid_t pid);

// Watches one process from its start.
class MemoryKillWatch {
 public:
  explicit MemoryKillWatch(pid_t pid);
  ~MemoryKillWatch();
  MemoryKillWatch(const MemoryKillWatch&) = delete;
  MemoryKillWatch& operator=(const MemoryKillWatch&) = delete;

  // Called often while the process lives.
  void Sample();
  // Called after its end.
  bool Killed();

 private:
  struct Sampled {
    std::chrono::steady_clock::time_point time;
    MemoryKills kills;
  };
  std::optional<bool> NamedInLog();

  const pid_t pid_;
  int log_ = -1;
  std::deque<Sampled> samples_;
};

}  // namespace tercio::agent
