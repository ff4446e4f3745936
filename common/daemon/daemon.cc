#include "common/daemon/daemon.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "yaml-cpp/yaml.h"

namespace tercio {

absl::StatusOr<std::vector<std::string>> WithConfigFile(int argc, char** argv) {
  std::vector<std::string> given(argv + 1, argv + argc);
  std::string path;
  std::vector<std::string> rest;
  // The file's settings come before the command line, so that flags win over it.
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--config" && i + 1 < given.size()) {
      path = given[++i];
    } else if (given[i].starts_with("--config=")) {
      path = given[i].substr(std::string_view("--config=").size());
    } else {
      rest.push_back(given[i]);
    }
  }
  std::vector<std::string> arguments;
  if (!path.empty()) {
    try {
      const YAML::Node root = YAML::LoadFile(path);
      if (!root.IsMap()) return absl::InvalidArgumentError(path + ": expected a map of settings");
      std::set<std::string> names;
      for (const auto& entry : root) {
        std::string name = entry.first.as<std::string>();
        // Keys may be written as in other configuration files.
        for (char& c : name) c = c == '_' ? '-' : c;
        const std::string place =
            absl::StrCat(path, ":", entry.first.Mark().line + 1, ": ", name, ": ");
        if (!names.insert(name).second) {
          return absl::InvalidArgumentError(place + "the key is given twice; keep one");
        }
        if (entry.second.IsNull()) continue;  // treated as absent
        if (entry.second.IsMap()) {
          return absl::InvalidArgumentError(place + "expected a value, or a list of values");
        }
        // A list is a flag that is given several times.
        const YAML::Node& value = entry.second;
        for (size_t i = 0; i < (value.IsSequence() ? value.size() : 1); ++i) {
          const YAML::Node& each = value.IsSequence() ? value[i] : value;
          arguments.push_back(absl::StrCat("--", name, "=", each.as<std::string>()));
        }
      }
    } catch (const YAML::Exception& error) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
    }
  }
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  return arguments;
}

namespace {

void Block(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

void HoldStandardStreams() {
  // Any file that is opened later would get the number of a closed stream.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // Gets the lowest free number. Opened in the wrong direction, so that its users get the error
    // of a closed stream.
    open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void BlockStopSignals() {
  Block({SIGINT, SIGTERM});
  // A client that disconnects must not end the process.
  std::signal(SIGPIPE, SIG_IGN);
}

std::vector<int> BlockDaemonSignals(const std::vector<int>& more, const std::vector<int>& others) {
  BlockStopSignals();
  Block({SIGHUP});
  Block(more);
  Block(others);
  std::vector<int> stop = {SIGINT, SIGTERM};
  stop.insert(stop.end(), more.begin(), more.end());
  // On a terminal this signal means that it is gone; elsewhere it asks for a reload.
  if (isatty(STDIN_FILENO) == 1) stop.push_back(SIGHUP);
  return stop;
}

void KeepFreedMemory() {
  constexpr int kMiB = 1 << 20;
  // Larger blocks are tensors and copies of snapshots: few, and better returned immediately.
  mallopt(M_MMAP_THRESHOLD, 16 * kMiB);
  mallopt(M_TRIM_THRESHOLD, 64 * kMiB);
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // The hard limit is as far as a daemon may go by itself.
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void DieWithParent() {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The parent may have ended before the request.
  if (getppid() != parent) raise(SIGTERM);
}

std::string ProgramDirectory() {
  // The link names the running program, even where its file was moved.
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string file(path, length > 0 ? static_cast<size_t>(length) : 0);
  return file.substr(0, file.rfind('/'));
}

}  // namespace tercio
