#include "worker/trainer/stack_dump.h"

#include <execinfo.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"

namespace tercio::trainer {
namespace {

constexpr int kFrames = 48;
constexpr int kOwnFrames = 2;  // this handler, and the kernel's return from it
// The text lies on the stack of whatever thread is interrupted, and
// goes out in one write, so that dumps of several threads do not mix.
constexpr size_t kBytes = 6144;

std::atomic<int> dump_file{-1};

// Text in a fixed buffer, using only functions that a signal handler may call.
class Text {
 public:
  void Add(const char* text) {
    while (*text != '\0' && size_ < kBytes) bytes_[size_++] = *text++;
  }
  void AddNumber(uint64_t value, unsigned base) {
    char digits[24];
    size_t at = sizeof(digits);
    digits[--at] = '\0';
    do {
      digits[--at] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value > 0);
    Add(digits + at);
  }
  // Leaves room for the last line.
  bool Full() const { return size_ > kBytes - 512; }
  void Write(int file) const {
    for (size_t at = 0; at < size_;) {
      const ssize_t written = write(file, bytes_ + at, size_ - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      at += static_cast<size_t>(written);
    }
  }

 private:
  char bytes_[kBytes];
  size_t size_ = 0;
};

void DumpThisThread(int) {
  // The interrupted code may be about to look at it.
  const int saved_errno = errno;
  const int file = dump_file;
  if (file >= 0) {
    const auto thread = static_cast<uint64_t>(syscall(SYS_gettid));
    void* frames[kFrames];
    const int count = backtrace(frames, kFrames);
    Text text;
    text.Add("thread ");
    text.AddNumber(thread, 10);
    text.Add("\n");
    for (int i = kOwnFrames; i < count && !text.Full(); ++i) {
      char name[256];
      text.Add("  0x");
      text.AddNumber(reinterpret_cast<uintptr_t>(frames[i]), 16);
      text.Add(" ");
      // A return address may belong to the next function.
      const bool known = absl::Symbolize(static_cast<char*>(frames[i]) - 1, name, sizeof(name));
      text.Add(known ? name : "?");
      text.Add("\n");
    }
    text.Add("end ");
    text.AddNumber(thread, 10);
    text.Add("\n");
    text.Write(file);
  }
  errno = saved_errno;
}

}  // namespace

absl::Status InstallStackDump(const char* program, const std::string& path) {
  absl::InitializeSymbolizer(program);
  // The first call loads a library, which a signal handler must not.
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction action = {};
  action.sa_handler = DumpThisThread;
  // System calls continue: a dump must not change the course of what it shows.
  action.sa_flags = SA_RESTART;
  if (sigaction(SIGUSR2, &action, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("SIGUSR2: ", std::strerror(errno)));
  }
  unlink(path.c_str());
  // The file shows the agent that asking is safe, so it is created after the handler.
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  dump_file = file;
  return absl::OkStatus();
}

}  // namespace tercio::trainer
