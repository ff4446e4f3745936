// Messages of an upload (v1::UploadMessage) as bytes on the wire. Nearly all of them are chunks of
// tensors, which protobuf would copy once more on either side: these are put together, and taken
// apart, by hand. Pure.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"

namespace tercio::checkpoint {

grpc::ByteBuffer ToBuffer(const v1::UploadMessage& message);
// The message of one chunk; copies the bytes once.
grpc::ByteBuffer ChunkMessage(std::string_view bytes);

struct ReceivedUpload {
  bool is_chunk = false;
  std::vector<std::string_view> chunk;  // its bytes, in order
  std::vector<grpc::Slice> slices;      // which hold them
  v1::UploadMessage message;            // all else
};

// INVALID_ARGUMENT: it is not an UploadMessage.
absl::StatusOr<ReceivedUpload> ParseUpload(grpc::ByteBuffer buffer);

}  // namespace tercio::checkpoint
