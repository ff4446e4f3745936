#include "worker/trainer/checkpoint_client.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/upload_message.h"
#include "common/checksum.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/engine/state_slices.h"
#include "worker/trainer/upload_stream.h"

namespace tercio::trainer {
namespace {

constexpr absl::Duration kRetryInterval = absl::Milliseconds(500);
constexpr absl::Duration kLongestRetryInterval = absl::Seconds(8);
constexpr absl::Duration kStillWaitingInterval = absl::Seconds(1);
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// The coordinator gives up a save after the same time, and knows the reason better: its answer gets
// this much longer to arrive.
constexpr absl::Duration kAnswerTime = absl::Seconds(2);
constexpr absl::Duration kClockSlack = absl::Milliseconds(200);

// Training comes first if there are more threads than cores: by default a thread gets ten times as
// much of a core as one that is nicer by this much. On Linux niceness is per thread, and inherited
// by the threads that it starts.
constexpr int kNicerBy = 10;

void LetTrainingGoFirst() {
  // On Linux 0 stands for the calling thread, not for its process.
  const id_t this_thread = 0;
  errno = 0;
  const int nice = getpriority(PRIO_PROCESS, this_thread);
  if (nice == -1 && errno != 0) return;
  (void)setpriority(PRIO_PROCESS, this_thread, nice + kNicerBy);
}

// When a server's memory for calls is used up, gRPC itself ends some of them with the code of a
// full disk: those are worth another try. Errors of the server itself have its own words.
bool IsShortOfMemoryForCalls(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         (absl::StrContains(status.message(), "RST_STREAM") ||
          absl::StrContains(status.message(), "Buffers full") ||
          absl::StrContains(status.message(), "emory quota"));
}

// An answer of the coordinator is known to it; anything else is not.
SaveOutcome OutcomeOf(absl::Status status) {
  const bool unanswered = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return {std::move(status),
          unanswered ? v1::SAVE_PROBLEM_UNREACHABLE : v1::SAVE_PROBLEM_UNSPECIFIED};
}

SaveOutcome NotWritten(absl::Status status) {
  const bool full = absl::IsResourceExhausted(status);
  return {std::move(status), full ? v1::SAVE_PROBLEM_DISK_FULL : v1::SAVE_PROBLEM_NOT_WRITTEN};
}

// This name has never been used: a part that is sent again does not touch the first.
std::string FileNameOf(const v1::UploadBegin& begin) {
  std::random_device device;
  return absl::StrFormat("attempt-%d/rank-%05d-%08x.safetensors", begin.run().attempt(),
                         begin.rank(), device());
}

}  // namespace

absl::Status CheckpointClient::Upload(const v1::UploadBegin& begin, const ValueParts& values,
                                      absl::Time deadline) {
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::RankFile file, checkpoint::RankFileOf(begin.slices()));
  Checksum checksum;
  // The coordinator's file begins with the header that it computes from the same slices.
  checksum.Update(file.header);
  UploadStream stream(channel_, deadline);
  v1::UploadMessage message;
  *message.mutable_begin() = begin;
  bool open = stream.Write(checkpoint::ToBuffer(message));
  for (const std::string_view chunk : ChunksOf(values)) {
    if (!open) break;
    checksum.Update(chunk);
    open = stream.Write(checkpoint::ChunkMessage(chunk));
  }
  if (open) {
    message.mutable_end()->set_checksum(checksum.Hex());
    message.mutable_end()->set_bytes(BytesOf(values));
    stream.Write(checkpoint::ToBuffer(message));
  }
  return stream.Finish();
}

// The rank writes the file and reports it to the coordinator.
SaveOutcome CheckpointClient::UploadFile(v1::UploadBegin begin, const ValueParts& values,
                                         absl::Time deadline) {
  begin.set_file(FileNameOf(begin));
  const std::string path =
      absl::StrFormat("%s/step-%08d/%s", own_parts_.directory, begin.step(), begin.file());
  UploadStream stream(channel_, deadline);
  v1::UploadMessage message;
  *message.mutable_begin() = begin;
  bool open = stream.Write(checkpoint::ToBuffer(message));
  // It may outlive this call: WritesPart looks at it while the file system hangs.
  const auto part = std::make_shared<PartFile>(
      path, std::vector<v1::TensorSlice>(begin.slices().begin(), begin.slices().end()), values,
      own_parts_.write);
  {
    MutexLock lock(mutex_);
    part_ = part;
  }
  // A part that makes no progress sends nothing, which the coordinator sees as silence.
  int64_t told = 0;
  while (open && !part->Ended(kProgressInterval) && SteadyNow() < deadline) {
    const int64_t bytes = part->bytes();
    if (std::exchange(told, bytes) == bytes) continue;
    message.mutable_progress()->set_bytes(bytes);
    open = stream.Write(checkpoint::ToBuffer(message));
  }
  if (SteadyNow() >= deadline) {
    part->Remove();
    stream.Cancel();
    stream.Finish().IgnoreError();
    return OutcomeOf(absl::DeadlineExceededError("the part was not written in time"));
  }
  if (!open) {
    part->Remove();
    return OutcomeOf(stream.Finish());
  }
  const absl::StatusOr<v1::UploadEnd> end = part->result();
  if (!end.ok()) {
    SaveOutcome outcome = NotWritten(end.status());
    message.mutable_failure()->set_problem(outcome.problem);
    message.mutable_failure()->set_error(std::string(outcome.status.message()));
    stream.Write(checkpoint::ToBuffer(message));
    stream.Finish().IgnoreError();  // it repeats the failure that was just sent
    return outcome;
  }
  *message.mutable_end() = *end;
  // Once it has received the end the coordinator may commit the file, even if its answer is lost.
  if (stream.Write(checkpoint::ToBuffer(message))) {
    part->Keep();
  } else {
    part->Remove();
  }
  return OutcomeOf(stream.Finish());
}

void CheckpointClient::StartUpload(int64_t step, const std::vector<v1::TensorSlice>& slices,
                                   const ValueParts& values, CheckpointTexts texts,
                                   SaveLimits limits, Done done, std::function<void()> before) {
  WaitForUpload().IgnoreError();  // `done` has reported the result
  v1::UploadBegin begin;
  *begin.mutable_run() = identity_.run;
  begin.set_token(identity_.token);
  begin.set_rank(identity_.rank);
  begin.set_world_size(identity_.world_size);
  begin.set_step(step);
  begin.mutable_slices()->Add(slices.begin(), slices.end());
  begin.set_training_state(std::move(texts.training_state));
  begin.set_tokenizer(std::move(texts.tokenizer));
  begin.mutable_steps()->Add(texts.steps.begin(), texts.steps.end());
  {
    MutexLock lock(mutex_);
    // The last save may have been told to stop; this one may retry again.
    stop_ = false;
    uploading_ = true;
    // EndsBefore counts from here, whatever `before` takes.
    begun_ = SteadyNow();
  }
  uploader_ = std::thread(
      [this, begin, values, limits, done = std::move(done), before = std::move(before)] {
        LetTrainingGoFirst();
        // This comes before the time of the save begins, which it does not take from.
        if (before) before();
        const absl::Time start = SteadyNow();
        const SaveOutcome outcome = UploadUntil(begin, values, limits);
        // Others read it after they have joined this thread.
        outcome_ = outcome.status;
        done(outcome, BytesOf(values), absl::ToDoubleSeconds(SteadyNow() - start));
        MutexLock lock(mutex_);
        uploading_ = false;
        stopped_.NotifyAll();
      });
}

SaveOutcome CheckpointClient::UploadUntil(const v1::UploadBegin& begin, const ValueParts& values,
                                          const SaveLimits& limits) {
  const absl::Time start = SteadyNow();
  const absl::Time deadline = start + limits.timeout + kAnswerTime;
  absl::Duration pause = kRetryInterval;
  while (true) {
    SaveOutcome outcome = own_parts_.directory.empty() ? OutcomeOf(Upload(begin, values, deadline))
                                                       : UploadFile(begin, values, deadline);
    const absl::Status& status = outcome.status;
    // The call's deadline is on another clock.
    if (absl::IsDeadlineExceeded(status) && SteadyNow() + kClockSlack >= deadline) {
      return {absl::DeadlineExceededError(
                  absl::StrCat("not stored within ", absl::FormatDuration(limits.timeout))),
              v1::SAVE_PROBLEM_TIMEOUT};
    }
    const bool crowded = IsShortOfMemoryForCalls(status);
    const bool answered = outcome.problem != v1::SAVE_PROBLEM_UNREACHABLE;
    if (answered && !crowded) return outcome;
    const absl::Time next = SteadyNow() + pause;
    // A retry beyond these limits would stand in the way of the next save.
    if (next - start >= limits.patience || next >= deadline || StopsWithin(pause)) return outcome;
    // The part has been marked as no longer wanted.
    while (WritesPart()) {
      if (SteadyNow() >= deadline || StopsWithin(kRetryInterval)) return outcome;
    }
    if (crowded) pause = std::min(kLongestRetryInterval, 2 * pause);
  }
}

CheckpointClient::~CheckpointClient() {
  StopRetrying();
  WaitForUpload().IgnoreError();  // `done` has reported the result
}

void CheckpointClient::StopRetrying() {
  MutexLock lock(mutex_);
  stop_ = true;
  stopped_.NotifyAll();
}

bool CheckpointClient::StopsWithin(absl::Duration pause) {
  MutexLock lock(mutex_);
  return stopped_.WaitFor(mutex_, absl::ToChronoMilliseconds(pause),
                          [this]() TERCIO_REQUIRES(mutex_) { return stop_; });
}

bool CheckpointClient::EndsBefore(absl::Duration age, const std::function<void()>& still_waiting) {
  MutexLock lock(mutex_);
  while (IsBusy()) {
    const absl::Duration left = begun_ + age - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    stopped_.WaitFor(mutex_, absl::ToChronoNanoseconds(std::min(left, kStillWaitingInterval)),
                     [this]() TERCIO_REQUIRES(mutex_) { return !IsBusy(); });
    if (IsBusy()) still_waiting();
  }
  return true;
}

bool CheckpointClient::IsBusy() const { return uploading_ || WritesPartLocked(); }

bool CheckpointClient::WritesPartLocked() const {
  return part_ != nullptr && !part_->Ended(absl::ZeroDuration());
}

bool CheckpointClient::WritesPart() const {
  MutexLock lock(mutex_);
  return WritesPartLocked();
}

bool CheckpointClient::WriteHangs() const {
  MutexLock lock(mutex_);
  // The upload has given up, but its thread is still in the kernel.
  return !uploading_ && WritesPartLocked();
}

absl::Status CheckpointClient::WaitForUpload(const std::function<void()>& still_waiting) {
  {
    MutexLock lock(mutex_);
    const auto ended = [this]() TERCIO_REQUIRES(mutex_) { return !uploading_; };
    while (!stopped_.WaitFor(mutex_, absl::ToChronoNanoseconds(kStillWaitingInterval), ended)) {
      // This may take minutes, in which the caller shows that it is alive.
      still_waiting();
    }
  }
  if (uploader_.joinable()) uploader_.join();
  return outcome_;
}

}  // namespace tercio::trainer
