// Saves of jobs in progress: which uploads belong to one, which parts have arrived, and the commit
// when the last part is there.
//
// An upload is answered when the whole save is visible, or given up: a rank that has its answer
// need not send again. A save is given up when one of its uploads fails, when a rank begins a later
// one, or has reported to its agent that it gave up its part, when its attempt is over, when no
// byte has come for kSilence, or when it has taken longer than the job's checkpoint.timeout: then
// also while it is being committed, since a disk that hangs answers no caller. Its files are
// removed by the last upload that leaves it.
//
// Threads: any. No call but Leave, and what AddPart returns, waits for a disk.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "common/mutex.h"
#include "coordinator/service/checkpoint_host.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::coordinator {

class Saves {
 public:
  struct Save;
  using SavePtr = std::shared_ptr<Save>;

  // How an upload takes part in a save.
  struct Joined {
    SavePtr save;           // null: it is committed already
    bool has_part = false;  // this rank's part is there: nothing to send, only to wait for
  };

  // The host must outlive it.
  explicit Saves(CheckpointHost& host);
  ~Saves();
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // ABORTED when the upload comes too late, UNAVAILABLE while the save before it is being
  // committed, INVALID_ARGUMENT when it is not one of this job. A caller that has joined a save
  // must leave it.
  absl::StatusOr<Joined> Join(const v1::UploadBegin& begin);
  // Bytes of the save have arrived.
  void Progress(Save& save);
  // Returns the commit where this part completes the save, to be called where waiting for a disk
  // blocks no other work; else null.
  std::function<void()> AddPart(const v1::UploadBegin& begin, checkpoint::Manifest part,
                                const SavePtr& save);
  // No effect on a save that has all its parts, or has ended.
  void GiveUp(Save& save, const absl::Status& why);
  // The same, for a rank that could not write its part.
  void GiveUpForRank(Save& save, int rank, const v1::UploadFailure& failure);
  // The outcome of the save, once it has ended.
  std::optional<absl::Status> OutcomeOf(const Save& save);
  // `ended` is called once, now or later, by whichever call ends the save; it must not call back.
  void Await(Save& save, std::function<void(absl::Status outcome)> ended);
  void Leave(Save& save);

 private:
  struct Whole;  // all that a commit needs

  void CommitWhole(Save& save, const Whole& whole);
  absl::StatusOr<checkpoint::Committed> Commit(const Save& save, const Whole& whole);
  bool IsWanted(const Save& save);
  void LookForEnds();
  void EndWhereDue(Save& save) TERCIO_REQUIRES(mutex_);
  // `rank`: which could not write its part, for that reason; -1: it is no one rank's.
  void End(Save& save, const absl::Status& why, std::optional<SaveFailure> reason = {},
           int rank = -1) TERCIO_REQUIRES(mutex_);

  CheckpointHost& host_;
  Mutex mutex_;
  // By job; under way, or the last that has ended.
  std::map<std::string, SavePtr> saves_ TERCIO_GUARDED_BY(mutex_);
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  ConditionVariable stopped_;
  std::thread watcher_;
};

}  // namespace tercio::coordinator
