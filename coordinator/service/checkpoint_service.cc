#include "coordinator/service/checkpoint_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::coordinator {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

absl::Status AttemptIsOver() { return absl::AbortedError("this attempt is over"); }

}  // namespace

grpc::Status CheckpointServiceImpl::Upload(grpc::ServerContext*,
                                           grpc::ServerReader<v1::UploadMessage>* reader,
                                           v1::UploadResponse*) {
  v1::UploadMessage message;
  if (!reader->Read(&message) || !message.has_begin()) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be begin");
  }
  const v1::UploadBegin begin = message.begin();
  if (!coordinator_.IsPresent(begin.run(), begin.token())) return ToGrpc(AttemptIsOver());
  const absl::Status status = Receive(reader, begin);
  if (!status.ok()) FailSave(begin, status);
  return ToGrpc(status);
}

absl::Status CheckpointServiceImpl::Receive(grpc::ServerReader<v1::UploadMessage>* reader,
                                            const v1::UploadBegin& begin) {
  TERCIO_ASSIGN_OR_RETURN(const auto upload, coordinator_.checkpoints().Begin(begin));
  v1::UploadMessage message;
  while (reader->Read(&message)) {
    if (message.has_chunk()) {
      TERCIO_RETURN_IF_ERROR(upload->Write(message.chunk().data()));
    } else if (message.has_end()) {
      TERCIO_RETURN_IF_ERROR(upload->Finish(message.end().sha256(), message.end().bytes()));
      return AddPart(begin, upload->part());
    }
  }
  return absl::DataLossError(absl::StrCat("the stream of rank ", begin.rank(), " ended early"));
}

absl::Status CheckpointServiceImpl::AddPart(const v1::UploadBegin& begin,
                                            const checkpoint::Manifest& part) {
  Save complete;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Save& save = saves_[{begin.run().job_id(), begin.step()}];
    if (save.attempt != begin.run().attempt()) {
      if (save.attempt > begin.run().attempt()) return AttemptIsOver();
      save = {};
      save.attempt = begin.run().attempt();
    }
    save.parts[begin.rank()] = part;
    if (!begin.training_state().empty()) save.training_state = begin.training_state();
    if (!begin.tokenizer().empty()) save.tokenizer = begin.tokenizer();
    if (static_cast<int>(save.parts.size()) < begin.world_size()) return absl::OkStatus();
    complete = save;
    saves_.erase({begin.run().job_id(), begin.step()});
  }
  return CommitSave(begin, complete);
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
  TERCIO_ASSIGN_OR_RETURN(
      const checkpoint::Committed committed,
      coordinator_.checkpoints().Commit(begin.run().job_id(), begin.step(), begin.run().attempt(),
                                        model, save.training_state, save.tokenizer, parts));
  coordinator_
      .Ask(CheckpointCommitted{begin.run(), committed.step, committed.path, committed.bytes})
      .IgnoreError();  // only fails when the coordinator is stopping; the checkpoint is on disk
  return absl::OkStatus();
}

void CheckpointServiceImpl::FailSave(const v1::UploadBegin& begin, const absl::Status& status) {
  LogWarning(absl::StrCat("checkpoint of ", begin.run().job_id(), " step ", begin.step(), ": ",
                          std::string(status.message())));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    saves_.erase({begin.run().job_id(), begin.step()});
  }
  if (absl::IsAborted(status)) return;
  const absl::Status removed =
      coordinator_.checkpoints().Abandon(begin.run().job_id(), begin.step(), begin.run().attempt());
  if (!removed.ok()) LogWarning(std::string(removed.message()));
  coordinator_.Post(CheckpointFailed{begin.run(), begin.step(), std::string(status.message())});
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
  const int64_t rows = slice.row_end() - slice.row_begin();
  const int64_t columns = slice.column_end() - slice.column_begin();
  if (rows < 0 || columns < 0) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "an empty slice");
  }
  std::vector<float> values(static_cast<size_t>(rows * columns));
  if (absl::Status status = (*reader)->ReadSlice(slice, values.data()); !status.ok()) {
    return ToGrpc(status);
  }
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float));
  v1::TensorChunk chunk;
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const std::string_view part = bytes.substr(at, kChunkBytes);
    chunk.set_data(part.data(), part.size());
    if (!writer->Write(chunk)) break;
  }
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
