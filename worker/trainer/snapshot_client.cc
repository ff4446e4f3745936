#include "worker/trainer/snapshot_client.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/grpc_status.h"
#include "common/security/channel.h"
#include "common/status_macros.h"

namespace tercio::trainer {
namespace {

// An agent that receives a copy more slowly than this counts as stalled.
constexpr double kLeastBytesPerSecond = 20e6;

std::chrono::system_clock::time_point DeadlineFor(int64_t bytes, absl::Duration patience) {
  const double seconds =
      absl::ToDoubleSeconds(patience) + static_cast<double>(bytes) / kLeastBytesPerSecond;
  // gRPC counts deadlines on the wall clock.
  return std::chrono::system_clock::now() +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

int64_t ElementsOfSlice(const v1::TensorSlice& slice) {
  return (slice.row_end() - slice.row_begin()) * (slice.column_end() - slice.column_begin());
}

absl::Status About(const std::string& holder, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("agent ", holder, ": ", std::string(status.message())));
}

// Values that are given to the engine at a time; a slice that the engine wants whole has fewer.
constexpr int64_t kPartElements = int64_t{2} << 20;

// Fills slice after slice as bytes arrive.
class EngineFiller {
 public:
  explicit EngineFiller(engine::TrainingEngine& engine) : engine_(engine) { BeginPart(); }

  absl::Status Add(std::string_view bytes) {
    while (!bytes.empty()) {
      // Another process sends this, and may send more than it should.
      if (index_ == engine_.NeededSlices().size()) {
        return absl::DataLossError("the copy has more bytes than its slices");
      }
      // Messages end anywhere, also within a number.
      const size_t room = values_.size() * sizeof(float) - filled_;
      const size_t taken = std::min(room, bytes.size());
      std::memcpy(reinterpret_cast<char*>(values_.data()) + filled_, bytes.data(), taken);
      filled_ += taken;
      bytes.remove_prefix(taken);
      // The engine takes some slices only whole. Those are
      // shorter than a part, so it is given full ones.
      if (taken < room) return absl::OkStatus();
      TERCIO_RETURN_IF_ERROR(engine_.Load(static_cast<int64_t>(index_), first_, values_));
      first_ += static_cast<int64_t>(values_.size());
      if (first_ == ElementsOfSlice(engine_.NeededSlices()[index_])) {
        ++index_;
        first_ = 0;
      }
      BeginPart();
    }
    return absl::OkStatus();
  }

  bool complete() const { return index_ == engine_.NeededSlices().size(); }

 private:
  void BeginPart() {
    filled_ = 0;
    if (complete()) return;
    const int64_t left = ElementsOfSlice(engine_.NeededSlices()[index_]) - first_;
    values_.resize(static_cast<size_t>(std::min(left, kPartElements)));
  }

  engine::TrainingEngine& engine_;
  size_t index_ = 0;           // index of the slice
  int64_t first_ = 0;          // begin of the part, in the slice
  std::vector<float> values_;  // values of the part
  size_t filled_ = 0;          // bytes
};

absl::Status CheckSlices(const v1::SnapshotBegin& begin, const engine::TrainingEngine& engine) {
  const std::vector<v1::TensorSlice>& needed = engine.NeededSlices();
  // In the stream values have no names: they belong to the slices by their order.
  bool same = begin.slices_size() == static_cast<int>(needed.size());
  for (int i = 0; same && i < begin.slices_size(); ++i) {
    same =
        begin.slices(i).SerializeAsString() == needed[static_cast<size_t>(i)].SerializeAsString();
  }
  if (same) return absl::OkStatus();
  return absl::DataLossError("the copy belongs to another layout or model than this rank's");
}

}  // namespace

absl::StatusOr<v1::SnapshotService::Stub*> SnapshotClient::StubOf(const std::string& holder) {
  std::unique_ptr<v1::SnapshotService::Stub>& stub = stubs_[holder];
  if (stub == nullptr) {
    // The node's own agent is reached by its socket, where there is no TLS.
    const TlsFiles tls = holder.starts_with("unix:") ? TlsFiles() : TlsFromEnvironment();
    // Weights are given to agents only, which their certificates prove.
    TERCIO_ASSIGN_OR_RETURN(const auto channel, OpenChannel(holder, tls, kAgentRole));
    stub = v1::SnapshotService::NewStub(channel);
  }
  return stub.get();
}

// The checksum is computed while the first holder is served.
absl::Status SnapshotClient::PutTo(const std::string& holder, const v1::SnapshotBegin& begin,
                                   const ValueParts& values, std::string* checksum) {
  TERCIO_ASSIGN_OR_RETURN(v1::SnapshotService::Stub * stub, StubOf(holder));
  grpc::ClientContext context;
  context.set_deadline(DeadlineFor(begin.bytes(), patience_));
  v1::PutSnapshotResponse response;
  const auto writer = stub->Put(&context, &response);
  v1::PutSnapshotMessage message;
  *message.mutable_begin() = begin;
  bool open = writer->Write(message);
  Checksum sum;
  for (const std::string_view chunk : ChunksOf(values)) {
    if (!open) break;
    if (checksum->empty()) sum.Update(chunk);
    message.mutable_chunk()->set_data(chunk.data(), chunk.size());
    open = writer->Write(message);
  }
  if (open) {
    if (checksum->empty()) *checksum = sum.Hex();
    message.mutable_end()->set_checksum(*checksum);
    message.mutable_end()->set_bytes(begin.bytes());
    writer->Write(message);
  }
  // After a failed write, too, Finish has the reason.
  writer->WritesDone();
  return FromGrpc(writer->Finish());
}

std::vector<absl::Status> SnapshotClient::Put(int64_t step,
                                              const std::vector<v1::TensorSlice>& slices,
                                              const ValueParts& values,
                                              const std::vector<v1::StepRecord>& steps) {
  v1::SnapshotBegin begin;
  *begin.mutable_run() = identity_.run;
  begin.set_token(identity_.token);
  begin.set_rank(identity_.rank);
  begin.set_step(step);
  // The agent reserves room by this number before anything arrives.
  begin.set_bytes(BytesOf(values));
  begin.mutable_slices()->Add(slices.begin(), slices.end());
  begin.mutable_steps()->Add(steps.begin(), steps.end());
  std::vector<absl::Status> errors;
  std::string checksum;
  // A holder that fails does not keep the others from their copies.
  for (const std::string& holder : holders_) {
    const absl::Status status = PutTo(holder, begin, values, &checksum);
    if (!status.ok()) errors.push_back(About(holder, status));
  }
  return errors;
}

absl::Status SnapshotClient::Load(const std::string& holder, int attempt, int64_t step,
                                  const LoadedBytes& loaded, engine::TrainingEngine& engine) {
  TERCIO_ASSIGN_OR_RETURN(v1::SnapshotService::Stub * stub, StubOf(holder));
  v1::GetSnapshotRequest request;
  *request.mutable_run() = identity_.run;
  request.set_token(identity_.token);
  request.set_attempt(attempt);
  request.set_rank(identity_.rank);
  request.set_step(step);
  int64_t bytes = 0;
  for (const v1::TensorSlice& slice : engine.NeededSlices()) {
    bytes += ElementsOfSlice(slice) * static_cast<int64_t>(sizeof(float));
  }
  grpc::ClientContext context;
  context.set_deadline(DeadlineFor(bytes, patience_));
  const auto reader = stub->Get(&context, request);
  v1::GetSnapshotMessage message;
  EngineFiller filler(engine);
  Checksum sum;
  absl::Status status;
  bool verified = false;
  int64_t received = 0;
  loaded(0, bytes);
  while (status.ok() && !verified && reader->Read(&message)) {
    if (message.has_begin()) {
      status = CheckSlices(message.begin(), engine);
    } else if (message.has_chunk()) {
      sum.Update(message.chunk().data());
      status = filler.Add(message.chunk().data());
      received += static_cast<int64_t>(message.chunk().data().size());
      loaded(received, bytes);
    } else if (message.has_end()) {
      // The values are in the engine already. Those that do
      // not match end the attempt before a step can use them.
      verified = filler.complete() && sum.Hex() == message.end().checksum();
      if (!verified) status = absl::DataLossError("the checksum of the copy does not match");
    }
  }
  // The rest of the copy need not come.
  if (!status.ok()) context.TryCancel();
  // After a cancellation this error is only a consequence, so the first one is kept.
  const absl::Status ended = FromGrpc(reader->Finish());
  if (status.ok()) status = ended;
  if (status.ok() && !verified) status = absl::DataLossError("the copy ended early");
  return About(holder, status);
}

}  // namespace tercio::trainer
