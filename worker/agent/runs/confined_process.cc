#include "worker/agent/runs/confined_process.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace tercio::agent {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The data that the child needs between vfork and exec. It shares the memory, and makes system
// calls only.
struct Child {
  const ConfinedProgram& confined;
  char* const* arguments;
  char* const* environment;
  const TrainerUser* user;  // null: that of this process
  volatile int error = 0;
};

bool DropRights(const TrainerUser& user) {
  // The library's functions change all threads of this process; these system calls change the child
  // alone.
  return syscall(SYS_setgroups, 0, nullptr) == 0 &&
         syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
         syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0;
}

bool SetLimits(const ConfinedProgram& confined) {
  for (const auto& [resource, limit] : confined.limits) {
    if (syscall(SYS_prlimit64, 0, resource, &limit, nullptr) != 0) return false;
  }
  return true;
}

bool TakeStreams(const ConfinedProgram& confined) {
  if (dup2(confined.input, STDIN_FILENO) < 0 || dup2(confined.output, STDOUT_FILENO) < 0 ||
      dup2(confined.errors, STDERR_FILENO) < 0) {
    return false;
  }
  // All are closed by exec anyway, unless O_CLOEXEC was forgotten somewhere. Older kernels lack
  // this call.
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);
  return true;
}

// Gets a group of its own (so that Ctrl-C on the terminal is the agent's to handle) and default
// signals.
[[noreturn]] void Become(Child& child) {
  const ConfinedProgram& confined = child.confined;
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigset_t none;
  sigemptyset(&none);
  // The death signal is set after the change of the user, which resets it.
  const bool ready =
      setpgid(0, 0) == 0 && TakeStreams(confined) && SetLimits(confined) &&
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      (child.user == nullptr || DropRights(*child.user)) &&
      (!confined.ends_with_thread || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0) &&
      sigaction(SIGPIPE, &standard, nullptr) == 0 && sigprocmask(SIG_SETMASK, &none, nullptr) == 0;
  if (ready) execve(confined.program.c_str(), child.arguments, child.environment);
  child.error = errno;
  _exit(127);
}

// Returns once the child has become the other program, or has failed.
[[gnu::noinline]] pid_t Fork(Child& child) {
  const pid_t pid = vfork();
  if (pid == 0) Become(child);
  return pid;
}

}  // namespace

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.push_back(*entry);
  return all;
}

absl::StatusOr<pid_t> StartConfined(const ConfinedProgram& confined) {
  std::vector<std::string> arguments = confined.arguments;
  std::vector<std::string> environment = confined.environment;
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);
  Child child = {confined, argument_pointers.data(), environment_pointers.data(),
                 confined.user.has_value() ? &*confined.user : nullptr};
  // No signal handler of this process may run in the child, which shares its memory.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = Fork(child);
  const int error = pid < 0 ? errno : child.error;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid > 0 && error == 0) return pid;
  if (pid > 0) waitpid(pid, nullptr, 0);
  return absl::InternalError(
      absl::StrCat("cannot start ", confined.program,
                   confined.user.has_value() ? absl::StrCat(" as ", confined.user->name) : "", ": ",
                   std::strerror(error)));
}

}  // namespace tercio::agent
