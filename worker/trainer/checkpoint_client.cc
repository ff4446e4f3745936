#include "worker/trainer/checkpoint_client.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/upload_message.h"
#include "common/checksum.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/engine/state_slices.h"
#include "worker/trainer/upload_stream.h"

namespace tercio {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{500};
constexpr std::chrono::seconds kStillWaitingInterval{1};

}  // namespace

absl::Status CheckpointClient::ReadSlice(int64_t step, const v1::TensorSlice& slice,
                                         std::vector<float>* values) {
  const int64_t elements =
      (slice.row_end() - slice.row_begin()) * (slice.column_end() - slice.column_begin());
  values->resize(static_cast<size_t>(elements));
  grpc::ClientContext context;
  v1::ReadTensorRequest request;
  request.set_job_id(identity_.run.job_id());
  request.set_step(step);
  *request.mutable_slice() = slice;
  *request.mutable_run() = identity_.run;
  request.set_token(identity_.token);
  const auto reader = stub_->ReadTensor(&context, request);
  v1::TensorChunk chunk;
  size_t received = 0;  // bytes
  while (reader->Read(&chunk)) {
    const size_t room = values->size() * sizeof(float);
    if (received + chunk.data().size() <= room) {
      std::memcpy(reinterpret_cast<char*>(values->data()) + received, chunk.data().data(),
                  chunk.data().size());
    }
    received += chunk.data().size();
  }
  TERCIO_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (received != values->size() * sizeof(float)) {
    return absl::DataLossError(absl::StrCat("tensor ", slice.tensor(), " came with ", received,
                                            " bytes instead of ", elements * 4));
  }
  return absl::OkStatus();
}

absl::Status CheckpointClient::Load(int64_t step, TrainingEngine& engine) {
  std::vector<float> values;
  for (size_t i = 0; i < engine.NeededSlices().size(); ++i) {
    const absl::Status read = ReadSlice(step, engine.NeededSlices()[i], &values);
    // Saved by a job that could not skip steps: what that tensor holds begins now.
    if (absl::IsNotFound(read) && IsOptionalState(engine.NeededSlices()[i].tensor())) continue;
    TERCIO_RETURN_IF_ERROR(read);
    TERCIO_RETURN_IF_ERROR(engine.Load(static_cast<int64_t>(i), values));
  }
  return absl::OkStatus();
}

absl::Status CheckpointClient::Upload(const v1::UploadBegin& begin, const ValueParts& values) {
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::RankFile file, checkpoint::RankFileOf(begin.slices()));
  Checksum checksum;
  checksum.Update(file.header);
  UploadStream stream(channel_);
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

void CheckpointClient::StartUpload(int64_t step, const std::vector<v1::TensorSlice>& slices,
                                   const ValueParts& values, CheckpointTexts texts,
                                   absl::Duration patience, Done done,
                                   std::function<void()> before) {
  WaitForUpload().IgnoreError();  // its `done` has told it
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
  stop_ = false;
  uploading_ = true;
  uploader_ = std::thread(
      [this, begin, values, patience, done = std::move(done), before = std::move(before)] {
        if (before) before();
        const absl::Time start = SteadyNow();
        outcome_ = Upload(begin, values);
        while (absl::IsUnavailable(outcome_) && SteadyNow() - start < patience && !StopsWithin()) {
          outcome_ = Upload(begin, values);
        }
        done(outcome_, BytesOf(values), absl::ToDoubleSeconds(SteadyNow() - start));
        std::lock_guard<std::mutex> lock(mutex_);
        uploading_ = false;
        stopped_.notify_all();
      });
}

CheckpointClient::~CheckpointClient() {
  StopRetrying();
  WaitForUpload().IgnoreError();  // `done` has told it
}

void CheckpointClient::StopRetrying() {
  std::lock_guard<std::mutex> lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
}

bool CheckpointClient::StopsWithin() {
  std::unique_lock<std::mutex> lock(mutex_);
  return stopped_.wait_for(lock, kRetryInterval, [this] { return stop_; });
}

absl::Status CheckpointClient::WaitForUpload(const std::function<void()>& still_waiting) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_.wait_for(lock, kStillWaitingInterval, [this] { return !uploading_; })) {
      still_waiting();
    }
  }
  if (uploader_.joinable()) uploader_.join();
  return outcome_;
}

}  // namespace tercio
