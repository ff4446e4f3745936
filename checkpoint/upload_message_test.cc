#include "checkpoint/upload_message.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// In slices of `piece` bytes.
grpc::ByteBuffer BufferOf(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.substr(at, piece));
  }
  if (slices.empty()) slices.emplace_back("");
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::UploadMessage Chunk(const std::string& bytes) {
  v1::UploadMessage message;
  message.mutable_chunk()->set_data(bytes);
  return message;
}

std::string Joined(const ReceivedUpload& received) {
  std::string bytes;
  for (const std::string_view part : received.chunk) bytes += part;
  return bytes;
}

TEST(UploadMessageTest, AChunkIsWhatProtobufMakesOfIt) {
  for (const size_t size : {0, 1, 23, 126, 127, 128, 5000, 1 << 20}) {
    const std::string bytes(size, 'x');
    v1::UploadMessage parsed;
    ASSERT_TRUE(parsed.ParseFromString(BytesOf(ChunkMessage(bytes))));
    EXPECT_TRUE(parsed.has_chunk());
    EXPECT_TRUE(parsed.chunk().data() == bytes) << size;
  }
}

TEST(UploadMessageTest, AChunkIsFoundHoweverItIsDivided) {
  for (const size_t size : {0, 1, 11, 127, 128, 300, 70000}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    const std::string wire = Chunk(bytes).SerializeAsString();
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{5}, size_t{4096}, wire.size()}) {
      const auto received = ParseUpload(BufferOf(wire, piece));
      ASSERT_TRUE(received.ok()) << received.status();
      EXPECT_TRUE(received->is_chunk);
      EXPECT_TRUE(Joined(*received) == bytes) << size << " by " << piece;
    }
  }
}

TEST(UploadMessageTest, OtherFormsAreLeftToProtobuf) {
  v1::UploadMessage end;
  end.mutable_end()->set_bytes(5);
  auto received = ParseUpload(ToBuffer(end));
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->is_chunk);
  EXPECT_EQ(received->message.end().bytes(), 5);
  // Two chunks in one message: the last counts.
  received = ParseUpload(
      BufferOf(Chunk("first").SerializeAsString() + Chunk("second").SerializeAsString(), 1000));
  ASSERT_TRUE(received.ok());
  EXPECT_TRUE(received->is_chunk);
  EXPECT_EQ(Joined(*received), "second");
  // Nothing set.
  received = ParseUpload(BufferOf("", 1));
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received->message.body_case(), v1::UploadMessage::BODY_NOT_SET);
}

TEST(UploadMessageTest, WhateverComesIsReadAsProtobufReadsIt) {
  std::mt19937 random(20261121);
  const std::string good = Chunk(std::string(40, 'x')).SerializeAsString();
  for (int i = 0; i < 20000; ++i) {
    std::string wire = good.substr(0, random() % (good.size() + 1));
    for (int flips = static_cast<int>(random() % 3); flips > 0 && !wire.empty(); --flips) {
      wire[random() % std::min<size_t>(wire.size(), 6)] = static_cast<char>(random());
    }
    v1::UploadMessage parsed;
    const bool is_message = parsed.ParseFromString(wire);
    const auto received = ParseUpload(BufferOf(wire, 1 + random() % 50));
    ASSERT_EQ(received.ok(), is_message) << i;
    if (!is_message) continue;
    ASSERT_EQ(received->is_chunk, parsed.has_chunk()) << i;
    if (!parsed.has_chunk()) continue;
    EXPECT_EQ(Joined(*received), parsed.chunk().data());
  }
}

}  // namespace
}  // namespace tercio::checkpoint
