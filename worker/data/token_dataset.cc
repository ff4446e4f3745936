#include "worker/data/token_dataset.h"

#include <cstring>

#include "common/check.h"

namespace tercio::data {
namespace {

template <typename T>
void Convert(const std::byte* from, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<int32_t>(value);
  }
}

}  // namespace

int BytesOf(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

const char* NameOf(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
  }
  return "unknown";
}

TokenDataset::TokenDataset(std::shared_ptr<const void> owner, const void* bytes, TokenType type,
                           int64_t count)
    : owner_(std::move(owner)),
      bytes_(static_cast<const std::byte*>(bytes)),
      type_(type),
      count_(count) {}

int64_t TokenDataset::Samples(int64_t context) const {
  TERCIO_CHECK_GE(context, 1);
  return count_ > 0 ? (count_ - 1) / context : 0;
}

void TokenDataset::ReadSample(int64_t index, int64_t context, int32_t* out) const {
  TERCIO_CHECK(index >= 0 && index < Samples(context));
  Read(index * context, context + 1, out);
}

void TokenDataset::Read(int64_t begin, int64_t count, int32_t* out) const {
  TERCIO_CHECK(begin >= 0 && count >= 0 && begin + count <= count_);
  const std::byte* from = bytes_ + begin * BytesOf(type_);
  switch (type_) {
    case TokenType::kUint8:
      return Convert<uint8_t>(from, count, out);
    case TokenType::kInt8:
      return Convert<int8_t>(from, count, out);
    case TokenType::kInt16:
      return Convert<int16_t>(from, count, out);
    case TokenType::kUint16:
      return Convert<uint16_t>(from, count, out);
    case TokenType::kInt32:
      return Convert<int32_t>(from, count, out);
    case TokenType::kInt64:
      return Convert<int64_t>(from, count, out);
  }
}

TokenDataset TokenDataset::Slice(int64_t begin, int64_t end) const {
  TERCIO_CHECK(begin >= 0 && begin <= end && end <= count_);
  return TokenDataset(owner_, bytes_ + begin * BytesOf(type_), type_, end - begin);
}

}  // namespace tercio::data
