#include "worker/agent/runs/preparation_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/utf8.h"
#include "data/preparation_protocol.h"
#include "worker/agent/runs/confined_process.h"
#include "worker/agent/runs/memory_kill.h"

namespace tercio::agent {
namespace {

constexpr int kPollMilliseconds = 250;
constexpr int kEndPollMilliseconds = 5;
// The time from the end of its output to its exit.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr size_t kMostLastWords = 2048;
constexpr int kReadsAtOnce = 64;
constexpr rlim_t kMostFiles = 65536;

// The environment that the program needs. No TERCIO_* but the log level: tokens and keys have such
// names, too.
std::vector<std::string> PlainEnvironment() {
  std::vector<std::string> plain = {"CUDA_VISIBLE_DEVICES="};  // it computes on no GPU
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
                           "TERCIO_LOG_LEVEL"}) {
    if (const char* value = std::getenv(name)) plain.push_back(absl::StrCat(name, "=", value));
  }
  return plain;
}

// The shadow memory of a sanitizer is more than any limit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsBounded = false;
#else
constexpr bool kMemoryIsBounded = true;
#endif

std::pair<int, rlimit> Bounded(int resource, rlim_t most) {
  rlimit present = {};
  getrlimit(static_cast<__rlimit_resource>(resource), &present);
  // A limit above the hard one would be refused, and the program would not start.
  const rlim_t limit = std::min(most, present.rlim_max);
  return {resource, {limit, limit}};
}

// The address space is not limited: files of any size may be mapped.
std::vector<std::pair<int, rlimit>> Limits(int64_t most_memory) {
  std::vector<std::pair<int, rlimit>> limits = {Bounded(RLIMIT_CORE, 0),
                                                Bounded(RLIMIT_NOFILE, kMostFiles)};
  if (kMemoryIsBounded && most_memory > 0) {
    // This limit counts private mappings, too (Linux 4.7), but no mapped files.
    limits.push_back(Bounded(RLIMIT_DATA, static_cast<rlim_t>(most_memory)));
  }
  return limits;
}

std::string Gibibytes(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

}  // namespace

absl::Status WhyNoAnswer(const PreparationEnd& end, int64_t most_memory) {
  if (end.out_of_memory) {
    return absl::ResourceExhaustedError(
        "the process that reads them was killed by the kernel: out of memory on the node or in its "
        "control group; free memory, or use smaller files");
  }
  if (end.signal == 0 && end.exit_code == data::kExitOutOfMemory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the process that reads them ran out of memory: its limit is ", Gibibytes(most_memory),
        " (--data-memory of the agent); use smaller files, or raise the limit"));
  }
  const std::string said =
      end.last_words.empty() ? "" : absl::StrCat("; it printed: ", end.last_words);
  if (end.signal != 0) {
    return absl::AbortedError(absl::StrCat(
        "the process that reads them crashed: signal ", end.signal, " (", strsignal(end.signal),
        ")", said, "; one of the files is damaged or malicious, or was truncated meanwhile"));
  }
  return absl::AbortedError(absl::StrCat("the process that reads them exited with code ",
                                         end.exit_code, " without an answer", said));
}

// The ends of the connection between this process and the other: ours and theirs.
class PreparationProcess::Ends {
 public:
  Ends() = default;
  ~Ends() {
    for (const int end : {socket_[0], socket_[1], errors_[0], errors_[1]}) {
      if (end >= 0) close(end);
    }
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  absl::Status Make() {
    // Errors are read between other things, so their pipe must never block.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socket_.data()) != 0 ||
        pipe2(errors_.data(), O_CLOEXEC) != 0 || fcntl(errors_[0], F_SETFL, O_NONBLOCK) != 0) {
      return absl::InternalError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }
  int its_socket() const { return socket_[1]; }
  int its_errors() const { return errors_[1]; }
  // The other process has ends of its own.
  void CloseIts() {
    for (int* end : {&socket_[1], &errors_[1]}) close(std::exchange(*end, -1));
  }
  int TakeSocket() { return std::exchange(socket_[0], -1); }

  // Sends as much of `request` as possible and reads what has arrived. False when no more will
  // come.
  bool Exchange(int socket, std::string_view* request, std::string* answer) {
    pollfd entries[2] = {{socket, POLLIN, 0}, {errors_[0], POLLIN, 0}};
    if (!request->empty()) entries[0].events |= POLLOUT;
    // poll reports a closed pipe at once, every time.
    if (errors_ended_) entries[1].fd = -1;
    if (poll(entries, 2, kPollMilliseconds) <= 0) return true;
    if (entries[1].revents != 0) TakeErrors();
    if ((entries[0].revents & POLLOUT) != 0) {
      // The process may answer before it has read everything, so neither side waits for the other.
      const ssize_t sent =
          send(socket, request->data(), request->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) request->remove_prefix(static_cast<size_t>(sent));
    }
    if ((entries[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
    std::array<char, 65536> buffer;
    const ssize_t count = recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    answer->append(buffer.data(), static_cast<size_t>(count));
    return count > 0;
  }

  // Keeps the end of the error output so far.
  void TakeErrors() {
    std::array<char, 4096> buffer;
    // A process that prints without end must not keep the caller here.
    for (int i = 0; i < kReadsAtOnce; ++i) {
      const ssize_t count = read(errors_[0], buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      errors_ended_ = count == 0;
      if (count <= 0) return;
      printed_.append(buffer.data(), static_cast<size_t>(count));
      if (printed_.size() > kMostLastWords) printed_.erase(0, printed_.size() - kMostLastWords);
    }
  }
  std::string LastWords() const {
    std::string words = ForDisplay(printed_, "\t\n");
    while (!words.empty() && words.back() == '\n') words.pop_back();
    return words;
  }

 private:
  std::array<int, 2> socket_ = {-1, -1};
  std::array<int, 2> errors_ = {-1, -1};
  bool errors_ended_ = false;
  std::string printed_;
};

absl::StatusOr<pid_t> PreparationProcess::Start(Ends& ends) {
  ConfinedProgram confined;
  confined.program = options_.program;
  confined.arguments = {"tercio-trainer", "--prepare"};
  confined.environment = PlainEnvironment();
  confined.input = ends.its_socket();
  confined.output = ends.its_socket();
  confined.errors = ends.its_errors();
  confined.user = options_.user;
  confined.limits = Limits(options_.most_memory);
  // An agent that dies must not leave a process behind that reads for nobody.
  confined.ends_with_thread = true;
  MutexLock lock(mutex_);
  // Under the lock Cancel either finds the process or keeps it from being started.
  if (cancelled_) return absl::CancelledError("the request was cancelled");
  TERCIO_ASSIGN_OR_RETURN(pid_, StartConfined(confined));
  return pid_;
}

absl::StatusOr<v1::PrepareAnswer> PreparationProcess::Ask(const v1::PrepareRequest& request) {
  Ends ends;
  TERCIO_RETURN_IF_ERROR(ends.Make());
  TERCIO_ASSIGN_OR_RETURN(const pid_t pid, Start(ends));
  ends.CloseIts();
  socket_ = ends.TakeSocket();
  MemoryKillWatch memory(pid);
  const std::string sent = data::WithLength(request.SerializeAsString());
  std::string_view unsent(sent);
  std::string answer;
  bool whole = false;
  while (ends.Exchange(socket_, &unsent, &answer)) {
    memory.Sample();
    if (answer.size() < data::kLengthBytes) continue;
    const uint64_t length = data::LengthIn(answer);
    // The length is what the other process says, which may be anything.
    whole = length <= data::kLongestMessage && answer.size() - data::kLengthBytes >= length;
    if (whole || length > data::kLongestMessage) break;
  }
  v1::PrepareAnswer parsed;
  if (whole && parsed.ParseFromArray(answer.data() + data::kLengthBytes,
                                     static_cast<int>(data::LengthIn(answer)))) {
    return parsed;
  }
  PreparationEnd end = WaitForEnd(pid);
  if (cancelled()) return absl::CancelledError("the request was cancelled");
  ends.TakeErrors();
  end.last_words = ends.LastWords();
  // When memory runs out the kernel kills by SIGKILL; other signals have other causes.
  end.out_of_memory = end.signal == SIGKILL && memory.Killed();
  return WhyNoAnswer(end, options_.most_memory);
}

bool PreparationProcess::cancelled() {
  MutexLock lock(mutex_);
  return cancelled_;
}

bool PreparationProcess::Kill() {
  MutexLock lock(mutex_);
  if (pid_ == 0) return false;
  // The group is killed: the process may have started others.
  kill(-pid_, SIGKILL);
  return true;
}

void PreparationProcess::Cancel() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
  }
  Kill();
}

PreparationEnd PreparationProcess::WaitForEnd(pid_t pid) {
  const absl::Time deadline = SteadyNow() + kEndPatience;
  siginfo_t info = {};
  // The process keeps its number until it is reaped under the lock.
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0 && SteadyNow() < deadline) {
    poll(nullptr, 0, kEndPollMilliseconds);
  }
  Kill();  // also any processes that it has started
  // Not under the lock: a process that hangs in a file system does not end, and Cancel must not
  // wait.
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  MutexLock lock(mutex_);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  PreparationEnd end;
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return end;
}

PreparationProcess::~PreparationProcess() {
  if (Kill()) WaitForEnd(pid_);
  if (socket_ >= 0) close(socket_);
}

}  // namespace tercio::agent
