// Receives streamed checkpoints (saves.h) and serves slices of them (checkpoint_service.proto).
//
// Threads: gRPC's; a pool for work that waits for the disk, in which each job has a few threads, so
// that one whose file system hangs blocks no other; and one thread that answers, which no disk can
// block. Neither an upload nor a reader costs a thread, however many there are and however long
// they wait. What uploads hold in memory is bounded (upload_budget.h).
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "common/keyed_pool.h"
#include "coordinator/service/checkpoint_host.h"
#include "coordinator/service/reader_cache.h"
#include "coordinator/service/saves.h"
#include "coordinator/service/upload_budget.h"
#include "grpcpp/server_builder.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"

namespace tercio::coordinator {

class CheckpointServiceImpl
    : public v1::CheckpointService::WithRawCallbackMethod_Upload<
          v1::CheckpointService::WithCallbackMethod_ReadTensor<v1::CheckpointService::Service>> {
 public:
  // The host must outlive it.
  explicit CheckpointServiceImpl(CheckpointHost& host, const UploadBudget::Limits& limits = {})
      : host_(host), saves_(host), budget_(limits) {}

  // Sets the options that a server of it needs.
  static void Configure(grpc::ServerBuilder& builder);

  using WithRawCallbackMethod_Upload::Upload;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext*,
                                                    grpc::ByteBuffer* response) override;
  using WithCallbackMethod_ReadTensor::ReadTensor;
  grpc::ServerWriteReactor<v1::TensorChunk>* ReadTensor(
      grpc::CallbackServerContext*, const v1::ReadTensorRequest* request) override;

  UploadBudget::Figures upload_figures() const { return budget_.figures(); }

  // Whether all work for disks ends within `patience`. Where it does not, a file system hangs, and
  // this must not be destroyed: it would wait for it.
  bool Drain(absl::Duration patience) { return disks_.Drain(patience); }

 private:
  class UploadCall;
  class ReadCall;
  // Uploads and readers of one job that are served at a time: one disk has no use for more.
  static constexpr int kThreadsPerJob = 4;
  static constexpr int kMostThreads = 128;

  CheckpointHost& host_;
  Saves saves_;
  ReaderCache readers_;
  UploadBudget budget_;
  // Last: their tasks use the others.
  KeyedPool answers_{1, 1};
  KeyedPool disks_{kThreadsPerJob, kMostThreads};
};

}  // namespace tercio::coordinator
