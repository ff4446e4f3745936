#include "worker/progress/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tercio {
namespace {

constexpr uint64_t kMagic = 0x3145474150524554;  // "TERPAGE1" in the file
constexpr uint32_t kVersion = 1;
constexpr int kTries = 100;

template <size_t kSize>
void Put(char (&field)[kSize], std::string_view text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

template <size_t kSize>
std::string Get(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

std::string Why(const std::string& path) { return absl::StrCat(path, ": ", std::strerror(errno)); }

}  // namespace

struct ProgressPage::Layout {
  struct Position {
    int64_t step;
    char action[40];
    char group[40];
    int64_t sequence;
    char operation[32];
    char dtype[12];
    int32_t peer;
    int64_t count;
  };
  std::atomic<uint64_t> magic;
  uint32_t version;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> beats;
  std::atomic<double> last_beat;
  std::atomic<int32_t> phase;
  std::atomic<uint32_t> edition;  // odd while `position` is written
  Position position;
  std::atomic<int64_t> timed_step;
  std::atomic<double> step_seconds;
  std::atomic<double> compute_seconds;
  std::atomic<uint32_t> has_exit;
  int32_t exit_code;
  uint32_t permanent;
  char reason[2036];
  std::atomic<int64_t> loaded_bytes;
  std::atomic<int64_t> load_total_bytes;
};

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& path) {
  static_assert(std::atomic<double>::is_always_lock_free && sizeof(Layout) <= 4096);
  unlink(path.c_str());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return absl::UnavailableError(Why(path));
  void* memory = MAP_FAILED;
  // Allocated now: a full disk must not kill a process that writes into the page later.
  const int full = posix_fallocate(file, 0, sizeof(Layout));
  if (full == 0) {
    memory = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  } else {
    errno = full;
  }
  if (memory == MAP_FAILED) {
    const absl::Status status = absl::UnavailableError(Why(path));
    close(file);
    return status;
  }
  auto* page = static_cast<Layout*>(memory);
  page->version = kVersion;
  page->pid = getpid();
  page->last_beat = MonotonicSeconds();
  page->magic.store(kMagic, std::memory_order_release);
  return std::unique_ptr<ProgressPage>(new ProgressPage(page, file));
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return absl::NotFoundError(Why(path));
  struct stat info = {};
  void* memory = MAP_FAILED;
  if (fstat(file, &info) == 0 && info.st_size == static_cast<off_t>(sizeof(Layout))) {
    memory = mmap(nullptr, sizeof(Layout), PROT_READ, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) {
    close(file);
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a progress page"));
  }
  auto* page = static_cast<Layout*>(memory);
  std::unique_ptr<ProgressPage> made(new ProgressPage(page, file));
  if (page->magic.load(std::memory_order_acquire) != kMagic || page->version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": not a progress page of this version"));
  }
  return made;
}

ProgressPage::~ProgressPage() {
  munmap(page_, sizeof(Layout));
  close(file_);
}

void ProgressPage::Beat() {
  page_->last_beat.store(MonotonicSeconds(), std::memory_order_relaxed);
  page_->beats.fetch_add(1, std::memory_order_release);
}

void ProgressPage::SetPhase(int phase) {
  page_->phase = phase;
  Beat();
}

template <typename Write>
void ProgressPage::Change(const Write& write) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    page_->edition.fetch_add(1, std::memory_order_acq_rel);
    write(page_->position);
    page_->edition.fetch_add(1, std::memory_order_acq_rel);
  }
  Beat();
}

void ProgressPage::BeginStep(int64_t step) {
  Change([&](Layout::Position& position) {
    position.step = step;
    position.action[0] = '\0';
  });
}

void ProgressPage::BeginAction(std::string_view action) {
  Change([&](Layout::Position& position) { Put(position.action, action); });
}

void ProgressPage::BeginWait(const CollectivePosition& waiting) {
  Change([&](Layout::Position& position) {
    Put(position.group, waiting.group);
    Put(position.operation, waiting.operation);
    Put(position.dtype, waiting.dtype);
    position.sequence = waiting.sequence;
    position.count = waiting.count;
    position.peer = waiting.peer;
  });
}

void ProgressPage::EndWait() {
  Change([](Layout::Position& position) { position.operation[0] = '\0'; });
}

void ProgressPage::EndStep(int64_t step, double step_seconds, double compute_seconds) {
  page_->step_seconds = step_seconds;
  page_->compute_seconds = compute_seconds;
  page_->timed_step.store(step, std::memory_order_release);
  Beat();
}

void ProgressPage::SetLoaded(int64_t bytes, int64_t total) {
  page_->load_total_bytes = total;
  page_->loaded_bytes = bytes;
  Beat();
}

void ProgressPage::NoteExit(const ExitNote& note) {
  page_->exit_code = note.exit_code;
  page_->permanent = note.permanent ? 1 : 0;
  Put(page_->reason, note.reason);
  page_->has_exit.store(1, std::memory_order_release);
}

RankProgress ProgressPage::Read() const {
  RankProgress progress;
  Layout::Position position = {};
  progress.torn = true;
  for (int i = 0; i < kTries && progress.torn; ++i) {
    const uint32_t before = page_->edition.load(std::memory_order_acquire);
    std::memcpy(&position, &page_->position, sizeof(position));
    std::atomic_thread_fence(std::memory_order_acquire);
    progress.torn = before % 2 != 0 || page_->edition.load(std::memory_order_relaxed) != before;
  }
  progress.pid = page_->pid;
  progress.beats = page_->beats.load(std::memory_order_acquire);
  progress.last_beat = page_->last_beat;
  progress.phase = page_->phase;
  progress.step = position.step;
  progress.action = Get(position.action);
  progress.waiting = {Get(position.group), position.sequence, Get(position.operation),
                      Get(position.dtype), position.count,    position.peer};
  progress.timed_step = page_->timed_step.load(std::memory_order_acquire);
  progress.step_seconds = page_->step_seconds;
  progress.compute_seconds = page_->compute_seconds;
  progress.loaded_bytes = page_->loaded_bytes;
  progress.load_total_bytes = page_->load_total_bytes;
  return progress;
}

std::optional<ExitNote> ProgressPage::Exit() const {
  if (page_->has_exit.load(std::memory_order_acquire) == 0) return std::nullopt;
  return ExitNote{page_->exit_code, page_->permanent != 0, Get(page_->reason)};
}

}  // namespace tercio
