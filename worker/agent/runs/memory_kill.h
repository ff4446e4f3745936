// Whether the kernel has killed a process because memory ran out. It says so nowhere in the exit
// status, so the evidence is put together from what it counts and logs:
//   - the kills it counts for the process's cgroup (memory.events of cgroup version 2,
//     memory.oom_control of version 1): decisive where there is such a count;
//   - the kills it counts for the machine (oom_kill of /proc/vmstat): none means no such kill;
//   - its log (/dev/kmsg), where it may be read: names the process, or it was another one.
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

namespace tercio {

// Kills because memory ran out, ever; absent where nobody counts them.
struct MemoryKills {
  std::string cgroup;  // whose count it is
  std::optional<int64_t> of_cgroup;
  std::optional<int64_t> of_machine;
};

// About a process that was killed by a SIGKILL of which nobody here knows.
struct MemoryKillEvidence {
  MemoryKills before;
  MemoryKills after;
  // Whether the kernel's log names the process; absent where it may not be read.
  std::optional<bool> named;
};
bool KilledForWantOfMemory(const MemoryKillEvidence& evidence);

// The number behind `name` in lines of "name number".
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

  // To be called often while the process lives.
  void Sample();
  // After its end.
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

}  // namespace tercio
