#include "worker/progress/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tercio::progress {
namespace {

constexpr uint64_t kMagic = 0x3145474150524554;  // "TERPAGE1" in the file
// An agent may find the page of a trainer that an agent of another version has started.
constexpr uint32_t kVersion = 1;
// A writer takes less than a microsecond, so one that is found writing this often has stopped.
constexpr int kTries = 100;

template <size_t kSize>
void Put(char (&field)[kSize], std::string_view text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

template <size_t kSize>
// The writer is not trusted to have ended the text.
std::string Get(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

// Stores a value that other processes may read at the same time.
template <typename Value>
void Store(Value& field, Value value) {
  std::atomic_ref<Value>(field).store(value, std::memory_order_release);
}

template <typename Value>
void Increment(Value& field) {
  std::atomic_ref<Value>(field).fetch_add(1, std::memory_order_acq_rel);
}

// Any bytes may lie in the file, and readers compute with these numbers.
double Finite(double value) { return std::isfinite(value) ? value : 0; }

std::string Why(const std::string& path) { return absl::StrCat(path, ": ", std::strerror(errno)); }

}  // namespace

struct ProgressPage::Position {
  int64_t step;
  char action[40];
  char group[40];
  int64_t sequence;
  char operation[32];
  char dtype[12];
  int32_t peer;
  int64_t count;
};

// Other processes find the fields by their offsets: a change of these needs another kVersion.
struct ProgressPage::Layout {
  uint64_t magic;
  uint32_t version;
  int32_t pid;
  uint64_t beats;
  double last_beat;
  int32_t phase;
  uint32_t edition;  // odd while `position` is written
  Position position;
  int64_t timed_step;
  double step_seconds;
  double compute_seconds;
  uint32_t has_exit;
  int32_t exit_code;
  uint32_t permanent;
  char reason[2036];
  int64_t loaded_bytes;
  int64_t load_total_bytes;
};

// libstdc++'s steady clock is CLOCK_MONOTONIC, which all processes of a machine share.
double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& path) {
  // An atomic with a lock would keep it in this process, where readers of the file cannot see it.
  static_assert(std::atomic_ref<double>::is_always_lock_free && sizeof(Layout) <= 4096);
  // A process that still maps the old file keeps it, instead of writing into the new one.
  unlink(path.c_str());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return absl::UnavailableError(Why(path));
  void* memory = MAP_FAILED;
  // Allocated now: a full disk must not kill a process that writes to the page later.
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
  // The magic number comes last, so that readers take a page only when it is complete.
  Store(page->magic, kMagic);
  return std::unique_ptr<ProgressPage>(new ProgressPage(page, file));
}

// The file stays, since agents read the exit note when the process has ended.
ProgressPage::~ProgressPage() {
  munmap(page_, sizeof(Layout));
  close(file_);
}

void ProgressPage::Beat() {
  Store(page_->last_beat, MonotonicSeconds());
  // Threads of the trainer may beat at the same time.
  Increment(page_->beats);
}

void ProgressPage::SetPhase(int phase) {
  Store(page_->phase, phase);
  Beat();
}

template <typename Write>
void ProgressPage::Change(const Write& write) {
  {
    // Readers take no lock: they compare the edition
    // before and after, and try again while it is odd.
    MutexLock lock(mutex_);
    Increment(page_->edition);
    write(page_->position);
    Increment(page_->edition);
  }
  Beat();
}

void ProgressPage::BeginStep(int64_t step) {
  Change([&](Position& position) {
    position.step = step;
    position.action[0] = '\0';
  });
}

void ProgressPage::BeginAction(std::string_view action) {
  Change([&](Position& position) { Put(position.action, action); });
}

void ProgressPage::BeginWait(const CollectivePosition& waiting) {
  Change([&](Position& position) {
    Put(position.group, waiting.group);
    Put(position.operation, waiting.operation);
    Put(position.dtype, waiting.dtype);
    position.sequence = waiting.sequence;
    position.count = waiting.count;
    position.peer = waiting.peer;
  });
}

void ProgressPage::EndWait() {
  // An empty operation says that nothing is waited for, so the other fields may stay.
  Change([](Position& position) { position.operation[0] = '\0'; });
}

void ProgressPage::EndStep(int64_t step, double step_seconds, double compute_seconds) {
  Store(page_->step_seconds, step_seconds);
  Store(page_->compute_seconds, compute_seconds);
  Store(page_->timed_step, step);
  Beat();
}

void ProgressPage::SetLoaded(int64_t bytes, int64_t total) {
  Store(page_->load_total_bytes, total);
  Store(page_->loaded_bytes, bytes);
  Beat();
}

void ProgressPage::NoteExit(const ExitNote& note) {
  page_->exit_code = note.exit_code;
  page_->permanent = note.permanent ? 1 : 0;
  Put(page_->reason, note.reason);
  // The flag is set when the whole note is there: the process may be killed in the middle.
  Store(page_->has_exit, uint32_t{1});
}

absl::StatusOr<ProgressReader> ProgressReader::Open(const std::string& path) {
  // The file is the trainer's, whose user could put anything in its place.
  auto file = UntrustedFile::Open(path);
  if (!file.ok()) return file.status();
  ProgressReader reader(*std::move(file));
  ProgressPage::Layout page = {};
  // A file of another size is still being made, or was made by another version.
  if (reader.file_.size() != static_cast<int64_t>(sizeof(page)) || !reader.Load(&page)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": not a progress page of this version"));
  }
  return reader;
}

bool ProgressReader::Load(ProgressPage::Layout* page) const {
  const std::string bytes = file_.Read(0, sizeof(*page));
  if (bytes.size() != sizeof(*page)) return false;
  std::memcpy(page, bytes.data(), sizeof(*page));
  return page->magic == kMagic && page->version == kVersion;
}

std::optional<uint32_t> ProgressReader::Edition() const {
  uint32_t edition = 0;
  const std::string bytes = file_.Read(offsetof(ProgressPage::Layout, edition), sizeof(edition));
  if (bytes.size() != sizeof(edition)) return std::nullopt;
  std::memcpy(&edition, bytes.data(), sizeof(edition));
  return edition;
}

std::optional<RankProgress> ProgressReader::Read() const {
  RankProgress progress;
  ProgressPage::Layout page = {};
  progress.torn = true;
  for (int i = 0; i < kTries && progress.torn; ++i) {
    // Separate reads before and after: within one read, bytes arrive in any order.
    const std::optional<uint32_t> before = Edition();
    if (!Load(&page)) return std::nullopt;
    progress.torn = !before.has_value() || *before % 2 != 0 || Edition() != before;
  }
  const ProgressPage::Position& position = page.position;
  progress.pid = page.pid;
  progress.beats = page.beats;
  progress.last_beat = Finite(page.last_beat);
  progress.phase = page.phase;
  progress.step = position.step;
  progress.action = Get(position.action);
  progress.waiting = {Get(position.group), position.sequence, Get(position.operation),
                      Get(position.dtype), position.count,    position.peer};
  progress.timed_step = page.timed_step;
  progress.step_seconds = Finite(page.step_seconds);
  progress.compute_seconds = Finite(page.compute_seconds);
  // Shares of a load are computed from these, and must not be negative.
  progress.loaded_bytes = std::max<int64_t>(0, page.loaded_bytes);
  progress.load_total_bytes = std::max<int64_t>(0, page.load_total_bytes);
  return progress;
}

std::optional<ExitNote> ProgressReader::Exit() const {
  ProgressPage::Layout page = {};
  if (!Load(&page) || page.has_exit == 0) return std::nullopt;
  return ExitNote{page.exit_code, page.permanent != 0, Get(page.reason)};
}

}  // namespace tercio::progress
