#include "common/daemon.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "yaml-cpp/yaml.h"

namespace tercio {
int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kExitForbidden;
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDataLoss:
      return kExitConflict;
    default:
      return kExitInternal;
  }
}

absl::StatusOr<std::vector<std::string>> WithConfigFile(int argc, char** argv) {
  std::vector<std::string> given(argv + 1, argv + argc);
  std::string path;
  std::vector<std::string> rest;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--config" && i + 1 < given.size()) {
      path = given[++i];
    } else {
      rest.push_back(given[i]);
    }
  }
  std::vector<std::string> arguments;
  if (!path.empty()) {
    try {
      const YAML::Node root = YAML::LoadFile(path);
      if (!root.IsMap()) return absl::InvalidArgumentError(path + ": expected a map of settings");
      for (const auto& entry : root) {
        std::string name = entry.first.as<std::string>();
        for (char& c : name) c = c == '_' ? '-' : c;
        // A list is a flag given several times.
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

void BlockStopSignals() {
  Block({SIGINT, SIGTERM});
  // A client that has gone must not end the process.
  std::signal(SIGPIPE, SIG_IGN);
}

std::vector<int> BlockDaemonSignals(const std::vector<int>& more, const std::vector<int>& others) {
  BlockStopSignals();
  Block({SIGHUP});
  Block(more);
  Block(others);
  std::vector<int> stop = {SIGINT, SIGTERM};
  stop.insert(stop.end(), more.begin(), more.end());
  if (isatty(STDIN_FILENO) == 1) stop.push_back(SIGHUP);
  return stop;
}

void KeepFreedMemory() {
  constexpr int kMiB = 1 << 20;
  // Larger ones are tensors and copies of snapshots: few, and better returned at once.
  mallopt(M_MMAP_THRESHOLD, 16 * kMiB);
  mallopt(M_TRIM_THRESHOLD, 64 * kMiB);
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
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
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string file(path, length > 0 ? static_cast<size_t>(length) : 0);
  return file.substr(0, file.rfind('/'));
}

}  // namespace tercio
