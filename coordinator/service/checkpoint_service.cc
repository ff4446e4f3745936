#include "coordinator/service/checkpoint_service.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::coordinator {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // 1 MiB
constexpr std::chrono::milliseconds kPollInterval{200};
// So long after the last part the others are not expected any more.
constexpr absl::Duration kSilence = absl::Minutes(5);

absl::Status AttemptIsOver() { return absl::AbortedError("this attempt is over"); }

}  // namespace

grpc::Status CheckpointServiceImpl::Upload(grpc::ServerContext* context,
                                           grpc::ServerReader<v1::UploadMessage>* reader,
                                           v1::UploadResponse*) {
  v1::UploadMessage message;
  if (!reader->Read(&message) || !message.has_begin()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be begin");
  }
  const v1::UploadBegin begin = message.begin();
  if (!coordinator_.IsPresent(begin.run(), begin.token())) return ToGrpc(AttemptIsOver());
  const absl::StatusOr<SavePtr> save = Join(begin);
  if (!save.ok()) return ToGrpc(save.status());
  if (*save == nullptr) return grpc::Status::OK;  // its answer was lost on the way
  absl::Status status = Receive(reader, begin, **save);
  if (status.ok()) {
    status = AwaitOutcome(*context, begin, **save);
  } else {
    std::lock_guard<std::mutex> lock(mutex_);
    End(**save, status);
  }
  Leave(**save);
  return ToGrpc(status);
}

absl::StatusOr<CheckpointServiceImpl::SavePtr> CheckpointServiceImpl::Join(
    const v1::UploadBegin& begin) {
  std::lock_guard<std::mutex> lock(mutex_);
  SavePtr& save = saves_[begin.run().job_id()];
  if (save != nullptr && save->run.attempt() > begin.run().attempt()) return AttemptIsOver();
  const bool same = save != nullptr && save->run.attempt() == begin.run().attempt();
  if (same && save->step > begin.step()) {
    return absl::AbortedError(absl::StrCat("the save of step ", save->step, " has begun"));
  }
  if (same && save->step == begin.step() && save->ended) {
    if (save->outcome.ok()) return nullptr;
    return save->outcome;
  }
  if (!same || save->step < begin.step()) {
    if (coordinator_.checkpoints().AttemptOf(begin.run().job_id(), begin.step()) ==
        begin.run().attempt()) {
      // Committed before this coordinator started, which may not have heard of it.
      CheckpointCommitted committed{begin.run(), begin.step(), "", 0};
      for (const checkpoint::Committed& there :
           coordinator_.checkpoints().List(begin.run().job_id())) {
        if (there.step != begin.step()) continue;
        committed.path = there.path;
        committed.bytes = there.bytes;
      }
      coordinator_.Post(std::move(committed));
      return nullptr;
    }
    if (save != nullptr) {
      End(*save,
          same ? absl::AbortedError(absl::StrCat("given up for the save of step ", begin.step()))
               : AttemptIsOver());
    }
    save = std::make_shared<Save>();
    save->run = begin.run();
    save->step = begin.step();
  }
  ++save->uploads;
  return save;
}

absl::Status CheckpointServiceImpl::Receive(grpc::ServerReader<v1::UploadMessage>* reader,
                                            const v1::UploadBegin& begin, Save& save) {
  TERCIO_ASSIGN_OR_RETURN(const auto upload, coordinator_.checkpoints().Begin(begin));
  v1::UploadMessage message;
  while (reader->Read(&message)) {
    if (message.has_chunk()) {
      TERCIO_RETURN_IF_ERROR(upload->Write(message.chunk().data()));
    } else if (message.has_end()) {
      TERCIO_RETURN_IF_ERROR(upload->Finish(message.end().sha256(), message.end().bytes()));
      AddPart(begin, upload->part(), save);
      return absl::OkStatus();
    }
  }
  return absl::DataLossError(absl::StrCat("the stream of rank ", begin.rank(), " ended early"));
}

// The upload that completes the save commits it.
void CheckpointServiceImpl::AddPart(const v1::UploadBegin& begin, const checkpoint::Manifest& part,
                                    Save& save) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    save.parts[begin.rank()] = part;
    if (!begin.training_state().empty()) save.training_state = begin.training_state();
    if (!begin.tokenizer().empty()) save.tokenizer = begin.tokenizer();
    if (begin.steps_size() > 0) save.steps.assign(begin.steps().begin(), begin.steps().end());
    changed_.notify_all();
    if (save.ended || static_cast<int>(save.parts.size()) < begin.world_size()) return;
  }
  // Complete: nobody changes it any more.
  const absl::Status status = CommitSave(begin, save);
  std::lock_guard<std::mutex> lock(mutex_);
  End(save, status);
}

absl::Status CheckpointServiceImpl::AwaitOutcome(const grpc::ServerContext& context,
                                                 const v1::UploadBegin& begin, Save& save) {
  std::unique_lock<std::mutex> lock(mutex_);
  size_t parts = save.parts.size();
  absl::Time last_part = SteadyNow();
  while (!save.ended) {
    changed_.wait_for(lock, kPollInterval);
    if (save.parts.size() != parts) last_part = SteadyNow();
    parts = save.parts.size();
    // A committing save has all its parts and ends by itself.
    if (static_cast<int>(parts) >= begin.world_size()) continue;
    if (context.IsCancelled()) End(save, absl::AbortedError("a rank has gone away"));
    if (!coordinator_.IsPresent(begin.run(), begin.token())) End(save, AttemptIsOver());
    if (SteadyNow() - last_part > kSilence) {
      End(save, absl::DeadlineExceededError(absl::StrCat("only ", parts, " of ", begin.world_size(),
                                                         " ranks have sent their part")));
    }
  }
  return save.outcome;
}

void CheckpointServiceImpl::End(Save& save, const absl::Status& outcome) {
  if (save.ended) return;
  save.ended = true;
  save.outcome = outcome;
  changed_.notify_all();
  if (outcome.ok()) return;
  LogWarning(absl::StrCat("checkpoint of ", save.run.job_id(), " step ", save.step, ": ",
                          std::string(outcome.message())));
  coordinator_.Post(CheckpointFailed{save.run, save.step, std::string(outcome.message())});
}

// The last upload to leave a save that was given up removes it: nobody writes there any more.
void CheckpointServiceImpl::Leave(Save& save) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--save.uploads > 0 || !save.ended || save.outcome.ok()) return;
  }
  const absl::Status removed =
      coordinator_.checkpoints().Abandon(save.run.job_id(), save.step, save.run.attempt());
  if (!removed.ok()) LogWarning(std::string(removed.message()));
}

absl::Status CheckpointServiceImpl::CommitSave(const v1::UploadBegin& begin, const Save& save) {
  // Between the last byte and the rename the attempt may have been replaced: an old one commits
  // nothing.
  if (!coordinator_.IsPresent(begin.run(), begin.token())) return AttemptIsOver();
  TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord job, coordinator_.Find(begin.run().job_id()));
  std::string model;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  if (!google::protobuf::util::MessageToJsonString(job.spec().model(), &model, options).ok()) {
    return absl::InternalError("cannot write the model as JSON");
  }
  std::vector<checkpoint::Manifest> parts;
  for (const auto& [rank, part] : save.parts) parts.push_back(part);
  TERCIO_RETURN_IF_ERROR(coordinator_.Ask(StepsDone{begin.run(), save.steps}));
  TERCIO_ASSIGN_OR_RETURN(
      const checkpoint::Committed committed,
      coordinator_.checkpoints().Commit(begin.run().job_id(), begin.step(), begin.run().attempt(),
                                        model, save.training_state, save.tokenizer, parts));
  // Only fails when the coordinator is stopping; the checkpoint is on disk.
  coordinator_
      .Ask(CheckpointCommitted{begin.run(), committed.step, committed.path, committed.bytes,
                               absl::ToDoubleSeconds(SteadyNow() - save.begun)})
      .IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<checkpoint::Reader>> CheckpointServiceImpl::OpenReader(
    const std::string& job, int64_t step) {
  const std::string path = coordinator_.checkpoints().PathOf(job, step);
  std::lock_guard<std::mutex> lock(mutex_);
  if (reader_ != nullptr && reader_path_ == path) return reader_;
  // Its digests were checked when it was chosen.
  TERCIO_ASSIGN_OR_RETURN(reader_, checkpoint::Reader::Open(path, /*digests=*/false));
  reader_path_ = path;
  return reader_;
}

grpc::Status CheckpointServiceImpl::GetManifest(grpc::ServerContext*,
                                                const v1::GetManifestRequest* request,
                                                v1::GetManifestResponse* response) {
  const absl::StatusOr<std::string> text = ReadFile(
      coordinator_.checkpoints().PathOf(request->job_id(), request->step()) + "/manifest.json");
  if (!text.ok()) return ToGrpc(text.status());
  response->set_manifest(*text);
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::ReadTensor(grpc::ServerContext*,
                                               const v1::ReadTensorRequest* request,
                                               grpc::ServerWriter<v1::TensorChunk>* writer) {
  if (!coordinator_.IsPresent(request->run(), request->token())) return ToGrpc(AttemptIsOver());
  const auto reader = OpenReader(request->job_id(), request->step());
  if (!reader.ok()) return ToGrpc(reader.status());
  const v1::TensorSlice& slice = request->slice();
  if (const absl::Status known = (*reader)->CheckSlice(slice); !known.ok()) return ToGrpc(known);
  // Never more than a chunk in memory, however large the tensor.
  v1::TensorChunk chunk;
  for (const v1::TensorSlice& part : checkpoint::DivideSlice(slice, kChunkElements)) {
    const int64_t elements =
        (part.row_end() - part.row_begin()) * (part.column_end() - part.column_begin());
    std::string* data = chunk.mutable_data();
    data->resize(static_cast<size_t>(elements) * sizeof(float));
    const absl::Status read = (*reader)->ReadSlice(part, reinterpret_cast<float*>(data->data()));
    if (!read.ok()) return ToGrpc(read);
    if (!writer->Write(chunk)) break;  // the trainer is gone
  }
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
