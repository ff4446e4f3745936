// Saves of jobs under way: which uploads belong to one, what each rank has brought, and the commit
// when the last part is there.
//
// An upload is answered when the whole save is visible, or given up: a rank that has its answer
// need not send again. A save is given up when one of its uploads fails, when a rank begins a later
// one (ranks begin the next only after the answer to the last, or when they no longer want it),
// when its attempt is over, or when no part has come for kSilence. What it has written is removed
// then, by the last upload that leaves it.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/manifest.h"
#include "coordinator/service/checkpoint_host.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::coordinator {

class Saves {
 public:
  struct Save;
  using SavePtr = std::shared_ptr<Save>;

  // The host must outlive it.
  explicit Saves(CheckpointHost& host);
  ~Saves();
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // The save that an upload belongs to, null when it is committed already; ABORTED when the upload
  // comes too late. Who has joined leaves.
  absl::StatusOr<SavePtr> Join(const v1::UploadBegin& begin);
  // The upload that completes the save commits it, here.
  void AddPart(const v1::UploadBegin& begin, checkpoint::Manifest part, Save& save);
  // No effect on a save that has all its parts, or has ended.
  void GiveUp(Save& save, const absl::Status& why);
  // How it ended, once it has.
  std::optional<absl::Status> OutcomeOf(const Save& save);
  // `ended` is called once, now or later, by whoever ends the save; it must not call back.
  void Await(Save& save, std::function<void(absl::Status outcome)> ended);
  void Leave(Save& save);

 private:
  absl::Status Commit(const v1::UploadBegin& begin, const Save& save);
  void LookForLostRanks();
  // With mutex_ held.
  void End(Save& save, const absl::Status& outcome);

  CheckpointHost& host_;
  std::mutex mutex_;
  std::map<std::string, SavePtr> saves_;  // by job; under way, or the last that has ended
  bool stopping_ = false;
  std::condition_variable stopped_;
  std::thread watcher_;
};

}  // namespace tercio::coordinator
