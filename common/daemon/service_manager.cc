#include "common/daemon/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

// Time for a systemd that does not read.
constexpr timeval kPatience = {.tv_sec = 2, .tv_usec = 0};

std::string Take(const char* variable) {
  const char* value = std::getenv(variable);
  std::string taken = value == nullptr ? "" : value;
  // Children must not report in this process's name.
  unsetenv(variable);
  return taken;
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  ServiceManager manager;
  manager.socket_ = Take("NOTIFY_SOCKET");
  // The address has room for so many bytes; a part of it would be another socket.
  if (manager.socket_.size() >= sizeof(sockaddr_un{}.sun_path)) {
    LogWarning(
        absl::StrCat("systemd is not told anything: NOTIFY_SOCKET is too long: ", manager.socket_));
    manager.socket_.clear();
  }
  const std::string patience = Take("WATCHDOG_USEC");
  const std::string watched = Take("WATCHDOG_PID");
  int64_t microseconds = 0;
  // systemd names the process that it watches; a child may have inherited the variable.
  const bool ours = watched.empty() || watched == absl::StrCat(getpid());
  if (ours && absl::SimpleAtoi(patience, &microseconds) && microseconds > 0) {
    // systemd recommends half of its patience.
    manager.ping_interval_ = absl::Microseconds(microseconds) / 2;
  }
  return manager;
}

void ServiceManager::Status(const std::string& text) const {
  Notify(absl::StrCat("STATUS=", text), When::kNowOrNever);
}

void ServiceManager::Reloading() const {
  Notify(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", absl::ToUnixMicros(SteadyNow())));
}

void ServiceManager::Notify(const std::string& state, When when) const {
  // Without systemd nobody listens.
  if (socket_.empty()) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::copy(socket_.begin(), socket_.end(), address.sun_path);
  if (socket_[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  const int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  const int flags = MSG_NOSIGNAL | (when == When::kNowOrNever ? MSG_DONTWAIT : 0);
  const bool sent = descriptor >= 0 && sendto(descriptor, state.data(), state.size(), flags,
                                              reinterpret_cast<const sockaddr*>(&address),
                                              length) == static_cast<ssize_t>(state.size());
  const int error = errno;
  if (sent) {
    *failing_ = false;
  } else if (!failing_->exchange(true)) {
    // One line is enough for each time that it stops working.
    LogWarning(absl::StrCat("systemd was not told ", state.substr(0, state.find('=')), ": ",
                            std::strerror(error)));
  }
  if (descriptor >= 0) close(descriptor);
}

}  // namespace tercio
