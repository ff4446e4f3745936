#include "checkpoint/upload_message.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"

namespace tercio::checkpoint {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kChunkTag = WireFormatLite::MakeTag(v1::UploadMessage::kChunkFieldNumber,
                                                       WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kDataTag = WireFormatLite::MakeTag(v1::TensorChunk::kDataFieldNumber,
                                                      WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
// Two tags below 128 and two lengths.
constexpr size_t kMostHeader = 12;

size_t VarintSize(size_t value) {
  return CodedOutputStream::VarintSize32(static_cast<uint32_t>(value));
}

// The length of the header before a chunk's bytes; 0 when this is not a message of one chunk and
// nothing else.
size_t HeaderOfChunk(const uint8_t* bytes, size_t there, size_t total) {
  CodedInputStream input(bytes, static_cast<int>(there));
  uint32_t message = 0;
  uint32_t data = 0;
  if (input.ReadTag() != kChunkTag || !input.ReadVarint32(&message)) return 0;
  // The inner message must fill the outer one: anything behind it would be another field.
  if (message != total - static_cast<size_t>(input.CurrentPosition())) return 0;
  if (input.ReadTag() != kDataTag || !input.ReadVarint32(&data)) return 0;
  const size_t header = static_cast<size_t>(input.CurrentPosition());
  return data == total - header ? header : 0;
}

}  // namespace

grpc::ByteBuffer ToBuffer(const v1::UploadMessage& message) {
  // Messages other than chunks are rare and small.
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer ChunkMessage(std::string_view bytes) {
  std::array<uint8_t, kMostHeader> header;
  uint8_t* at = header.data();
  at = CodedOutputStream::WriteTagToArray(kChunkTag, at);
  // The tag of the data takes one byte, as its number is below 16.
  const size_t inner = 1 + VarintSize(bytes.size()) + bytes.size();
  at = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(inner), at);
  at = CodedOutputStream::WriteTagToArray(kDataTag, at);
  at = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(bytes.size()), at);
  const grpc::Slice slices[] = {grpc::Slice(header.data(), static_cast<size_t>(at - header.data())),
                                grpc::Slice(bytes.data(), bytes.size())};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<ReceivedUpload> ParseUpload(grpc::ByteBuffer buffer) {
  ReceivedUpload received;
  if (!buffer.Dump(&received.slices).ok()) return absl::InvalidArgumentError("an empty message");
  // The header may be divided among slices, so its first bytes are collected.
  std::array<uint8_t, kMostHeader> start;
  size_t there = 0;
  for (const grpc::Slice& slice : received.slices) {
    const size_t taken = std::min(slice.size(), start.size() - there);
    std::copy_n(slice.begin(), taken, start.begin() + there);
    there += taken;
  }
  size_t header = HeaderOfChunk(start.data(), there, buffer.Length());
  if (header == 0) {
    // What is not in the usual form is left to protobuf, which knows all forms.
    const grpc::Status parsed =
        grpc::GenericDeserialize<grpc::ProtoBufferReader, v1::UploadMessage>(&buffer,
                                                                             &received.message);
    if (!parsed.ok()) return absl::InvalidArgumentError("not an upload message");
    if (!received.message.has_chunk()) return received;
    // The view has to point into memory that the result owns.
    received.slices = {grpc::Slice(received.message.chunk().data())};
  }
  received.is_chunk = true;
  for (const grpc::Slice& slice : received.slices) {
    const size_t left_out = std::min(header, slice.size());
    header -= left_out;
    if (left_out == slice.size()) continue;
    received.chunk.emplace_back(reinterpret_cast<const char*>(slice.begin()) + left_out,
                                slice.size() - left_out);
  }
  return received;
}

}  // namespace tercio::checkpoint
