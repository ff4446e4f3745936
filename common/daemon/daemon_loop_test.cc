#include "common/daemon/daemon_loop.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;
using testing::StartsWith;

// The receiving side of the protocol, as in systemd.
class NotifySocket {
 public:
  // A path, or an abstract name, which begins with '@'.
  explicit NotifySocket(const std::string& name)
      : descriptor_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const size_t length = offsetof(sockaddr_un, sun_path) + name.size();
    EXPECT_EQ(
        bind(descriptor_, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(length)),
        0);
  }
  ~NotifySocket() { close(descriptor_); }

  // Waits for the next message.
  std::string Next() {
    char text[4096];
    const ssize_t size = recv(descriptor_, text, sizeof(text), 0);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  }
  // The messages received so far, without waiting.
  std::vector<std::string> All() {
    std::vector<std::string> messages;
    char text[4096];
    for (ssize_t size; (size = recv(descriptor_, text, sizeof(text), MSG_DONTWAIT)) > 0;) {
      messages.emplace_back(text, static_cast<size_t>(size));
    }
    return messages;
  }

 private:
  const int descriptor_;
};

class DaemonLoopTest : public testing::Test {
 protected:
  DaemonLoopTest() : socket_(directory_.path() + "/notify") {
    setenv("NOTIFY_SOCKET", (directory_.path() + "/notify").c_str(), 1);
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGHUP, SIGTERM, SIGUSR2}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    loop_.rounds = [this] { return ++rounds_; };
    loop_.ready = [] { return true; };
    loop_.status = [] { return "well"; };
    loop_.reload = [this] { ++reloads_; };
    loop_.stop_signals = {SIGTERM};
  }

  TempDir directory_{"/tmp"};  // names of sockets are short
  NotifySocket socket_;
  DaemonLoop loop_;
  std::atomic<uint64_t> rounds_ = 0;
  std::atomic<int> reloads_ = 0;
};

TEST_F(DaemonLoopTest, TheEnvironmentIsTakenOnce) {
  setenv("WATCHDOG_USEC", "4000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  const ServiceManager manager = ServiceManager::FromEnvironment();
  EXPECT_TRUE(manager.listens());
  EXPECT_EQ(manager.ping_interval(), absl::Seconds(2));
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(std::getenv(name), nullptr) << name;
  }
  EXPECT_FALSE(ServiceManager::FromEnvironment().listens());
}

TEST_F(DaemonLoopTest, TheSocketMayHaveAnAbstractName) {
  const std::string name = absl::StrCat("@tercio-daemon-loop-test-", getpid());
  NotifySocket socket(name);
  setenv("NOTIFY_SOCKET", name.c_str(), 1);
  ServiceManager::FromEnvironment().Ready();
  EXPECT_THAT(socket.All(), ElementsAre("READY=1"));
}

TEST_F(DaemonLoopTest, HealthIsToldWhenItChanges) {
  const ServiceManager nobody;
  int beats = 0;
  std::vector<bool> told;
  loop_.beat = absl::Milliseconds(1);
  loop_.ready = [&beats] {
    if (++beats == 30) raise(SIGTERM);
    return beats > 10 && beats <= 20;
  };
  loop_.health = [&told](bool alive, bool ready) {
    EXPECT_TRUE(alive);
    told.push_back(ready);
  };
  RunDaemonLoop(nobody, loop_);
  EXPECT_THAT(told, ElementsAre(false, true, false));
}

TEST_F(DaemonLoopTest, OtherSignalsDoNotEndIt) {
  const ServiceManager nobody;
  std::vector<std::string> done;
  loop_.other_signals[SIGUSR2] = [&done] { done.push_back("signal"); };
  loop_.each_beat = [&done] {
    done.push_back("beat");
    raise(SIGTERM);
  };
  raise(SIGUSR2);
  EXPECT_EQ(RunDaemonLoop(nobody, loop_), SIGTERM);
  EXPECT_THAT(done, ElementsAre("signal", "beat"));
}

TEST_F(DaemonLoopTest, AWatchdogOfAnotherProcessIsNotOurs) {
  setenv("WATCHDOG_USEC", "4000000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceManager::FromEnvironment().ping_interval(), absl::InfiniteDuration());
}

TEST_F(DaemonLoopTest, SaysWhatItDoes) {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  std::thread daemon([&] { EXPECT_EQ(RunDaemonLoop(manager, loop_), SIGTERM); });
  EXPECT_EQ(socket_.Next(), "WATCHDOG=1");
  EXPECT_EQ(socket_.Next(), "STATUS=well");
  EXPECT_EQ(socket_.Next(), "READY=1");
  pthread_kill(daemon.native_handle(), SIGHUP);
  std::string message = "WATCHDOG=1";
  while (message == "WATCHDOG=1") message = socket_.Next();
  EXPECT_THAT(message, StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_EQ(socket_.Next(), "READY=1");
  EXPECT_EQ(reloads_, 1);
  pthread_kill(daemon.native_handle(), SIGTERM);
  daemon.join();
  EXPECT_EQ(socket_.All().back(), "STOPPING=1");
}

TEST_F(DaemonLoopTest, ALoopThatStandsStillFeedsNoWatchdog) {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  uint64_t round = 0;
  std::vector<bool> alive;
  loop_.beat = absl::Milliseconds(1);
  loop_.stuck_after = absl::Milliseconds(20);
  loop_.rounds = [&round] { return round < 3 ? ++round : round; };
  loop_.health = [&alive](bool is_alive, bool) {
    alive.push_back(is_alive);
    // It has been called often enough: end.
    if (!is_alive) raise(SIGTERM);
  };
  EXPECT_EQ(RunDaemonLoop(manager, loop_), SIGTERM);
  const std::vector<std::string> messages = socket_.All();
  EXPECT_EQ(std::count(messages.begin(), messages.end(), "WATCHDOG=1"), 3);
  EXPECT_THAT(alive, Contains(true));
  EXPECT_FALSE(alive.back());
}

TEST_F(DaemonLoopTest, WithoutSystemdNobodyIsTold) {
  const ServiceManager nobody;
  loop_.health = [](bool, bool) { raise(SIGTERM); };
  EXPECT_EQ(RunDaemonLoop(nobody, loop_), SIGTERM);
  EXPECT_THAT(socket_.All(), ElementsAre());
}

TEST_F(DaemonLoopTest, ASystemdThatDoesNotReadHoldsNobodyUp) {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  for (int i = 0; i < 5000; ++i) manager.Alive();
  EXPECT_LT(socket_.All().size(), 5000u);
}

TEST_F(DaemonLoopTest, ALostSocketHarmsNobody) {
  setenv("NOTIFY_SOCKET", (directory_.path() + "/nobody").c_str(), 1);
  const ServiceManager manager = ServiceManager::FromEnvironment();
  loop_.health = [](bool, bool) { raise(SIGTERM); };
  EXPECT_EQ(RunDaemonLoop(manager, loop_), SIGTERM);
  EXPECT_THAT(socket_.All(), Not(Contains("READY=1")));
}

}  // namespace
}  // namespace tercio
