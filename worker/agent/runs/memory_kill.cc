#include "worker/agent/runs/memory_kill.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tercio::agent {
namespace {

constexpr auto kSampleInterval = std::chrono::seconds(1);
// A large process takes a while to end after it was counted.
constexpr size_t kSamples = 10;
// The kernel may write records faster than they are read here.
constexpr int kMostLogRecords = 10'000;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The mount point of a hierarchy.
struct Mount {
  std::string root;  // the group that is visible at `point`
  std::string point;
  bool unified = false;
};

// Parses a line of proc(5), mountinfo: ... ROOT POINT ... - TYPE SOURCE OPTIONS.
std::optional<Mount> CgroupMount(const std::string& line) {
  const std::pair<std::string, std::string> halves =
      absl::StrSplit(line, absl::MaxSplits(" - ", 1));
  const std::vector<std::string> left = absl::StrSplit(halves.first, ' ');
  const std::vector<std::string> right = absl::StrSplit(halves.second, ' ');
  if (left.size() < 5 || right.size() < 3) return std::nullopt;
  const bool unified = right[0] == "cgroup2";
  bool memory = unified;
  for (const auto option : absl::StrSplit(right[2], ',')) {
    memory = memory || (right[0] == "cgroup" && option == "memory");
  }
  if (!memory) return std::nullopt;
  return Mount{left[3], left[4], unified};
}

// The path in a line of proc(5), cgroup: ID:CONTROLLERS:PATH; absent in those of other hierarchies.
std::optional<std::string> GroupIn(const std::string& line, bool unified) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
  if (fields.size() < 3) return std::nullopt;
  if (unified) return fields[1].empty() ? std::optional<std::string>(fields[2]) : std::nullopt;
  for (const auto controller : absl::StrSplit(fields[1], ',')) {
    if (controller == "memory") return fields[2];
  }
  return std::nullopt;
}

MemoryKills Count(const std::string& file) {
  MemoryKills kills;
  kills.cgroup = file;
  if (!file.empty()) kills.of_cgroup = CountIn(ReadAll(file), "oom_kill");
  kills.of_machine = CountIn(ReadAll("/proc/vmstat"), "oom_kill");
  return kills;
}

}  // namespace

bool KilledForWantOfMemory(const MemoryKillEvidence& evidence) {
  const MemoryKills& before = evidence.before;
  const MemoryKills& after = evidence.after;
  if (before.of_cgroup && after.of_cgroup && before.cgroup == after.cgroup) {
    return *after.of_cgroup > *before.of_cgroup;
  }
  const bool counted = before.of_machine && after.of_machine;
  if (counted && *after.of_machine <= *before.of_machine) return false;
  // The machine-wide count does not name the victim; the log does.
  if (evidence.named) return *evidence.named;
  return counted;
}

std::optional<int64_t> CountIn(const std::string& text, const std::string& name) {
  for (const auto line : absl::StrSplit(text, '\n')) {
    const std::string prefix = name + " ";
    if (!absl::StartsWith(line, prefix)) continue;
    const std::string number(line.substr(prefix.size()));
    char* end = nullptr;
    const int64_t value = std::strtoll(number.c_str(), &end, 10);
    if (end != number.c_str()) return value;
  }
  return std::nullopt;
}

// The memory controller is in one hierarchy only, that of version 1 where it is mounted.
std::string KillCountFile(const std::string& cgroups, const std::string& mounts) {
  std::string file;
  for (const auto mount_line : absl::StrSplit(mounts, '\n')) {
    const std::optional<Mount> mount = CgroupMount(std::string(mount_line));
    if (!mount || (mount->unified && !file.empty())) continue;
    for (const auto line : absl::StrSplit(cgroups, '\n')) {
      std::optional<std::string> group = GroupIn(std::string(line), mount->unified);
      if (!group) continue;
      // In a container a part of the hierarchy is mounted, while paths of groups begin at its top.
      if (mount->root != "/" && absl::StartsWith(*group, mount->root)) {
        group = group->substr(mount->root.size());
      }
      file = absl::StrCat(mount->point, *group == "/" ? "" : *group,
                          mount->unified ? "/memory.events" : "/memory.oom_control");
    }
  }
  return file;
}

bool NamesKill(const std::string& record, pid_t pid) {
  // "Out of memory: Killed process 12 (name) ...", "Memory cgroup out of memory: Killed process
  // ..."
  return absl::StrContains(absl::AsciiStrToLower(record), "out of memory") &&
         absl::StrContains(record, absl::StrCat("Killed process ", pid, " "));
}

MemoryKillWatch::MemoryKillWatch(pid_t pid)
    : pid_(pid), log_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  // Older records may be about an earlier process of that number.
  if (log_ >= 0 && lseek(log_, 0, SEEK_END) < 0) {
    close(log_);
    log_ = -1;
  }
  Sample();
}

MemoryKillWatch::~MemoryKillWatch() {
  if (log_ >= 0) close(log_);
}

void MemoryKillWatch::Sample() {
  const auto now = std::chrono::steady_clock::now();
  if (!samples_.empty() && now - samples_.back().time < kSampleInterval) return;
  // A process may be moved to another group while it runs.
  const std::string file = KillCountFile(ReadAll(absl::StrCat("/proc/", pid_, "/cgroup")),
                                         ReadAll("/proc/self/mountinfo"));
  samples_.push_back({now, Count(file)});
  if (samples_.size() > kSamples) samples_.pop_front();
}

// Each read gives one record; EPIPE: some were overwritten before they could be read.
std::optional<bool> MemoryKillWatch::NamedInLog() {
  if (log_ < 0) return std::nullopt;
  char record[8192];
  for (int i = 0; i < kMostLogRecords; ++i) {
    const ssize_t size = read(log_, record, sizeof(record));
    if (size < 0 && errno == EPIPE) continue;
    if (size < 0 && errno != EAGAIN) return std::nullopt;
    if (size <= 0) return false;
    if (NamesKill(std::string(record, static_cast<size_t>(size)), pid_)) return true;
  }
  return false;
}

bool MemoryKillWatch::Killed() {
  const std::string& group = samples_.back().kills.cgroup;
  // The oldest sample of the group in which it was in the end.
  const MemoryKills* before = &samples_.back().kills;
  for (auto sample = samples_.rbegin(); sample != samples_.rend(); ++sample) {
    if (sample->kills.cgroup != group) break;
    before = &sample->kills;
  }
  return KilledForWantOfMemory({*before, Count(group), NamedInLog()});
}

}  // namespace tercio::agent
