// Text to token ids and back: `bytes` (ids are exactly the byte values 0-255) and `chars` (ids are
// the positions of the text's distinct Unicode code points in ascending order). The JSON form is
// stored in token caches, beside token files, and in checkpoints, so that generated ids can be read
// back.
//
// JSON:  {"kind":"bytes","vocab_size":256}
//        {"characters":"\n !abc","kind":"chars","vocab_size":6}   (characters in the order of their
//        ids)
//
// Thread safety: immutable after construction; copies are independent values.
// Errors:        INVALID_ARGUMENT: text that is not UTF-8, a character or an id outside the
// vocabulary, JSON
//                that is not a tokenizer. Messages say where (byte, line, id).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tercio::data {

class Tokenizer {
 public:
  static Tokenizer Bytes();

  // Collects the code points of one or more texts (all text of the job, before it is split).
  static absl::StatusOr<Tokenizer> CharsOf(const std::vector<std::string_view>& texts);

  static absl::StatusOr<Tokenizer> FromJson(std::string_view json);
  std::string ToJson() const;

  // "bytes" or "chars".
  const std::string& kind() const { return kind_; }
  int32_t vocab_size() const { return vocab_size_; }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const;

  bool operator==(const Tokenizer& other) const {
    return kind_ == other.kind_ && code_points_ == other.code_points_;
  }

 private:
  Tokenizer(std::string kind, std::vector<uint32_t> code_points);

  std::string kind_;
  int32_t vocab_size_ = 0;
  std::vector<uint32_t> code_points_;            // chars: id -> code point, ascending
  std::unordered_map<uint32_t, int32_t> id_of_;  // chars: code point -> id
};

}  // namespace tercio::data
