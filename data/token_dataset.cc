#include "data/token_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::data {
namespace {

// The bytes of a mapped file have any alignment.
template <typename T>
T ElementAt(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Calls visit with a value of the element's type.
template <typename Visit>
void WithType(TokenType type, const Visit& visit) {
  switch (type) {
    case TokenType::kUint8:
      return visit(uint8_t{});
    case TokenType::kInt8:
      return visit(int8_t{});
    case TokenType::kInt16:
      return visit(int16_t{});
    case TokenType::kUint16:
      return visit(uint16_t{});
    case TokenType::kInt32:
      return visit(int32_t{});
    case TokenType::kUint32:
      return visit(uint32_t{});
    case TokenType::kInt64:
      return visit(int64_t{});
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
    case TokenType::kUint32:
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
    case TokenType::kUint32:
      return "uint32";
  }
  return "unknown";
}

TokenDataset::TokenDataset(std::shared_ptr<const void> owner, const void* bytes, TokenType type,
                           int64_t count) {
  Add({std::move(owner), static_cast<const std::byte*>(bytes), type, 0, count});
}

void TokenDataset::Add(Part part) {
  // An empty part would share its beginning with the next, and the search for a part would find it.
  if (part.count == 0) return;
  // Positions are assigned here, so a part may come from another data set with other positions.
  part.begin = count_;
  count_ += part.count;
  parts_.push_back(std::move(part));
}

TokenDataset TokenDataset::Concatenate(absl::Span<const TokenDataset> parts) {
  TokenDataset whole;
  for (const TokenDataset& one : parts) {
    // The mappings are shared, so joining data sets copies no token.
    for (const Part& part : one.parts_) whole.Add(part);
  }
  return whole;
}

int64_t TokenDataset::Samples(int64_t context) const {
  TERCIO_CHECK_GE(context, 1);
  // The last token is only a target, so it begins no sample.
  return count_ > 0 ? (count_ - 1) / context : 0;
}

void TokenDataset::ReadSample(int64_t index, int64_t context, int32_t* out) const {
  TERCIO_CHECK(index >= 0 && index < Samples(context));
  // One more id than the context is read: neighbouring samples share the token in between.
  Read(index * context, context + 1, out);
}

void TokenDataset::Read(int64_t begin, int64_t count, int32_t* out) const {
  // The comparison with a difference cannot overflow, unlike one with a sum.
  TERCIO_CHECK(begin >= 0 && count >= 0 && begin <= count_ - count);
  if (count == 0) return;
  // The part before the first one that begins later holds the position; no part is empty.
  auto part =
      std::upper_bound(parts_.begin(), parts_.end(), begin,
                       [](int64_t place, const Part& other) { return place < other.begin; }) -
      1;
  // A sample may span several files.
  while (count > 0) {
    const int64_t skipped = begin - part->begin;
    const int64_t here = std::min(count, part->count - skipped);
    const std::byte* from = part->bytes + skipped * BytesOf(part->type);
    // The type is decided once for a part and not for each id, so the inner loop can be vectorised.
    WithType(part->type, [&](auto element) {
      for (int64_t i = 0; i < here; ++i) {
        out[i] = static_cast<int32_t>(ElementAt<decltype(element)>(from, i));
      }
    });
    begin += here;
    count -= here;
    out += here;
    ++part;
  }
}

absl::StatusOr<int32_t> TokenDataset::HighestToken(const std::string& name) const {
  // Ids are int32 everywhere behind this class, so larger ones in a file would wrap.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t highest = -1;
  int64_t bad_place = -1;
  int64_t bad_id = 0;
  for (const Part& part : parts_) {
    WithType(part.type, [&](auto element) {
      // The first bad id ends the search, since the whole file may be of another type.
      for (int64_t i = 0; i < part.count && bad_place < 0; ++i) {
        const auto id = static_cast<int64_t>(ElementAt<decltype(element)>(part.bytes, i));
        highest = std::max(highest, id);
        if (id >= 0 && id <= kMost) continue;
        bad_place = part.begin + i;
        bad_id = id;
      }
    });
    if (bad_place < 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": token ", bad_place, " is ", bad_id,
                                                   ", outside 0 to 2^31-1; the file is damaged",
                                                   " or was written with another element type"));
  }
  return static_cast<int32_t>(highest);
}

TokenDataset TokenDataset::Slice(int64_t begin, int64_t end) const {
  TERCIO_CHECK(begin >= 0 && begin <= end && end <= count_);
  // A slice shares the mappings of the whole, and keeps only the parts that it touches.
  TokenDataset slice;
  for (const Part& part : parts_) {
    const int64_t from = std::max(begin, part.begin);
    const int64_t to = std::min(end, part.begin + part.count);
    // Parts outside the slice would be empty ones.
    if (from >= to) continue;
    slice.Add({part.owner, part.bytes + (from - part.begin) * BytesOf(part.type), part.type, 0,
               to - from});
  }
  return slice;
}

}  // namespace tercio::data
