// The current activity of a rank, in a small file that its trainer maps and writes and its agent
// reads: it works even if the trainer is frozen, or has ended while no agent was there to see it.
//
// One process writes, from any of its threads; readers are other processes. A write costs some
// stores and never a system call. Texts that do not fit are cut. A reader may find the position
// while it is being written; it tries again, and accepts a torn one only from a writer that died or
// stopped in the middle of it (`torn`).
//
// A reader does not trust the writer: it maps nothing, since a file that is truncated would kill
// it, follows no link, and accepts any bytes as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/untrusted_file.h"

namespace tercio::progress {

// A collective or message that a rank waits in. Empty operation: none.
struct CollectivePosition {
  std::string group;
  int64_t sequence = 0;
  std::string operation;
  std::string dtype;
  int64_t count = 0;
  int peer = -1;  // global rank; -1: all of the group
};

struct RankProgress {
  int pid = 0;
  uint64_t beats = 0;    // ascends with every sign of life
  double last_beat = 0;  // seconds of the machine's monotonic clock
  int phase = 0;         // v1::TrainerPhase
  int64_t step = 0;      // the step at work
  std::string action;    // "forward 3", "evaluation", ...
  CollectivePosition waiting;
  bool torn = false;
  // Times of the last step that ended.
  int64_t timed_step = 0;
  double step_seconds = 0;
  double compute_seconds = 0;
  // Bytes of the state that it loads before its first step: read so far, and its share.
  int64_t loaded_bytes = 0;
  int64_t load_total_bytes = 0;
};

struct ExitNote {
  int exit_code = 0;
  bool permanent = false;
  std::string reason;
};

class ProgressPage {
 public:
  // Makes the file, replacing an existing one, and maps it for writing.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Create(const std::string& path);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;

  void Beat();  // a sign of life only; the others count as one, too
  void SetPhase(int phase);
  void BeginStep(int64_t step);
  void BeginAction(std::string_view action);
  void BeginWait(const CollectivePosition& position);
  void EndWait();
  void EndStep(int64_t step, double step_seconds, double compute_seconds);
  // Bytes of this rank's share of the state loaded so far, of `total`.
  void SetLoaded(int64_t bytes, int64_t total);
  // The last message of a process.
  void NoteExit(const ExitNote& note);

 private:
  friend class ProgressReader;
  struct Position;
  struct Layout;
  ProgressPage(Layout* page, int file) : page_(page), file_(file) {}
  template <typename Write>
  void Change(const Write& write);

  Layout* page_;
  int file_;
  Mutex mutex_;  // the threads of the writer; readers never wait
};

// Threads: any.
class ProgressReader {
 public:
  // NOT_FOUND | FAILED_PRECONDITION (not such a file, or of another version).
  static absl::StatusOr<ProgressReader> Open(const std::string& path);

  // Absent if the file is no longer a valid page. Texts may hold any bytes; numbers are finite.
  std::optional<RankProgress> Read() const;
  std::optional<ExitNote> Exit() const;

 private:
  explicit ProgressReader(UntrustedFile file) : file_(std::move(file)) {}
  bool Load(ProgressPage::Layout* page) const;
  std::optional<uint32_t> Edition() const;

  UntrustedFile file_;
};

// Seconds of the clock of `last_beat`; the same for all processes of a machine.
double MonotonicSeconds();

}  // namespace tercio::progress
