// A sequence of token ids, memory-mapped from one file or from several, one after the other:
// training samples are cut from it.
//
// Sample i of context T is tokens [i*T, i*T + T]: T inputs and, shifted by one, T targets. N tokens
// hold floor((N-1)/T) samples; neighbours share one token. Documents of a Megatron data set are
// simply one after the other, in the order of the index, and nothing is put between them
// (docs/formats.md).
//
// A value: copies share the mapping, which lives as long as any of them.
// Thread safety: immutable; any number of threads may read.
// Failure:       a file that is truncated while it is mapped ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tercio::data {

// Element types of token files, with Megatron's codes; uint32 is only in llm.c files and has none.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
  kUint32 = 255,
};

// 1, 2, 4 or 8.
int BytesOf(TokenType type);

// "uint8", "int32", ...
const char* NameOf(TokenType type);

class TokenDataset {
 public:
  // No tokens.
  TokenDataset() = default;

  // `count` elements at `bytes` (any alignment), kept alive by `owner`.
  // REQUIRES: every id that is read fits int32_t; HighestToken checks it for files.
  TokenDataset(std::shared_ptr<const void> owner, const void* bytes, TokenType type, int64_t count);

  // The tokens of all parts, in their order.
  static TokenDataset Concatenate(absl::Span<const TokenDataset> parts);

  int64_t tokens() const { return count_; }

  // Samples of `context` inputs each. REQUIRES: context >= 1.
  int64_t Samples(int64_t context) const;

  // Writes context + 1 ids to `out`. REQUIRES: 0 <= index < Samples(context).
  void ReadSample(int64_t index, int64_t context, int32_t* out) const;

  // Writes tokens [begin, begin + count) to `out`. REQUIRES: inside the data set.
  void Read(int64_t begin, int64_t count, int32_t* out) const;

  // The largest id, -1 if there is none. Reads all of them. INVALID_ARGUMENT for an id below 0 or
  // above 2^31 - 1, naming its position in `name`.
  absl::StatusOr<int32_t> HighestToken(const std::string& name) const;

  // Tokens [begin, end), sharing the mapping. REQUIRES: 0 <= begin <= end <= tokens().
  TokenDataset Slice(int64_t begin, int64_t end) const;

 private:
  struct Part {
    std::shared_ptr<const void> owner;
    const std::byte* bytes;
    TokenType type;
    int64_t begin;  // position of its first token in the whole
    int64_t count;
  };
  void Add(Part part);

  std::vector<Part> parts_;  // none is empty
  int64_t count_ = 0;
};

}  // namespace tercio::data
