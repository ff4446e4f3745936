// Takes in streamed checkpoints (saves.h) and gives out slices of them (checkpoint_service.proto).
//
// Threads: gRPC's, and a pool for what the disk keeps waiting: an upload costs no thread, however
// long it waits for the others.
#pragma once

#include "common/thread_pool.h"
#include "coordinator/service/checkpoint_host.h"
#include "coordinator/service/reader_cache.h"
#include "coordinator/service/saves.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"

namespace tercio::coordinator {

class CheckpointServiceImpl
    : public v1::CheckpointService::WithRawCallbackMethod_Upload<v1::CheckpointService::Service> {
 public:
  // The host must outlive it.
  explicit CheckpointServiceImpl(CheckpointHost& host) : host_(host), saves_(host) {}

  using WithRawCallbackMethod_Upload::Upload;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext*,
                                                    grpc::ByteBuffer* response) override;
  grpc::Status ReadTensor(grpc::ServerContext*, const v1::ReadTensorRequest*,
                          grpc::ServerWriter<v1::TensorChunk>*) override;

 private:
  class UploadCall;
  // So many uploads have a message handled at a time: one disk has no use for more.
  static constexpr int kPoolThreads = 8;

  CheckpointHost& host_;
  Saves saves_;
  ReaderCache readers_;
  ThreadPool pool_{kPoolThreads};  // last: its tasks use the others
};

}  // namespace tercio::coordinator
