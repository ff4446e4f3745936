// A rank's part of saving and loading checkpoints, as a client of the coordinator's
// CheckpointService.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "grpcpp/channel.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "worker/trainer/chunks.h"
#include "worker/trainer/part_file.h"

namespace tercio::trainer {

struct CheckpointIdentity {
  v1::RunId run;
  std::string token;
  int rank = 0;
  int world_size = 1;
};

// The content of a checkpoint besides tensors (checkpoint_service.proto).
struct CheckpointTexts {
  std::string training_state;
  std::string tokenizer;              // rank 0 only
  std::vector<v1::StepRecord> steps;  // rank 0 only: steps since the previous checkpoint
};

// How long a save may take.
struct SaveLimits {
  // The upload is retried for this long while there is no answer, or the coordinator has no memory
  // for it.
  absl::Duration patience;
  // From its start to the answer that the whole checkpoint is visible.
  absl::Duration timeout;
};

// The result of a save. `problem` is the reason for giving it up, in case the coordinator does not
// know it.
struct SaveOutcome {
  absl::Status status;
  v1::SaveProblem problem = v1::SAVE_PROBLEM_UNSPECIFIED;
};

// Set if ranks write their parts themselves.
struct OwnParts {
  std::string directory;  // the job's checkpoints; empty: the parts go to the coordinator
  WritePart write = WritePartFile;
};

class CheckpointClient {
 public:
  CheckpointClient(std::shared_ptr<grpc::Channel> channel, CheckpointIdentity identity,
                   OwnParts own_parts = {})
      : channel_(std::move(channel)),
        identity_(std::move(identity)),
        own_parts_(std::move(own_parts)) {}
  ~CheckpointClient();

  // Streams the values (of one slice each) in the background; they must stay unchanged until
  // WaitForUpload returns. The same thread calls `before` first, for work on them that does not
  // wait for the coordinator; the save's time begins after that. `done(outcome, bytes, seconds)` is
  // called from the uploading thread when the whole checkpoint is visible, or given up: with
  // DEADLINE_EXCEEDED once limits.timeout is over. An upload in progress is waited for first.
  using Done = std::function<void(const SaveOutcome&, int64_t bytes, double seconds)>;
  void StartUpload(int64_t step, const std::vector<v1::TensorSlice>& slices,
                   const ValueParts& values, CheckpointTexts texts, SaveLimits limits, Done done,
                   std::function<void()> before = {});
  // An unanswered upload is not retried; one in progress continues.
  void StopRetrying();
  // The result of the last upload; OK before the first. `still_waiting` is called every second
  // meanwhile: the coordinator answers when the whole checkpoint is visible, which may take long,
  // but never longer than the limits of that upload.
  absl::Status WaitForUpload(const std::function<void()>& still_waiting = [] {});
  // Waits until the last upload has ended, or is older than `age`. Returns whether it has ended, so
  // that its values are free.
  bool EndsBefore(absl::Duration age, const std::function<void()>& still_waiting);
  // Whether a part of an upload that has ended is still being written, by a thread that hangs in
  // the file system: its values are not free, and the process ends without it.
  bool WriteHangs() const;

 private:
  absl::Status Upload(const v1::UploadBegin& begin, const ValueParts& values, absl::Time deadline);
  SaveOutcome UploadFile(v1::UploadBegin begin, const ValueParts& values, absl::Time deadline);
  SaveOutcome UploadUntil(const v1::UploadBegin& begin, const ValueParts& values,
                          const SaveLimits& limits);
  bool WritesPart() const;
  bool WritesPartLocked() const TERCIO_REQUIRES(mutex_);
  // The values of an upload are not free.
  bool IsBusy() const TERCIO_REQUIRES(mutex_);
  // Waits for the next try; returns true if there is to be none.
  bool StopsWithin(absl::Duration pause);

  std::shared_ptr<grpc::Channel> channel_;
  CheckpointIdentity identity_;
  const OwnParts own_parts_;
  std::thread uploader_;
  absl::Status outcome_;  // written by the uploader, read when it has ended
  mutable Mutex mutex_;
  ConditionVariable stopped_;
  // The last one, where ranks write them; null: none yet.
  std::shared_ptr<PartFile> part_ TERCIO_GUARDED_BY(mutex_);
  bool stop_ TERCIO_GUARDED_BY(mutex_) = false;
  bool uploading_ TERCIO_GUARDED_BY(mutex_) = false;
  absl::Time begun_ TERCIO_GUARDED_BY(mutex_);  // start of the last upload
};

}  // namespace tercio::trainer
