#include "checkpoint/file_state_digest.h"

#include <algorithm>
#include <cstring>

#include "plan/state_digest.h"

namespace tercio::checkpoint {
namespace {

constexpr auto kValue = static_cast<int64_t>(sizeof(float));

// What else is training state, as FP8's scales, may depend on the layout.
bool IsCounted(const std::string& name) { return name.rfind("training.", 0) != 0; }

}  // namespace

FileStateDigest::FileStateDigest(const Manifest& manifest, const std::string& file) {
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!IsCounted(name)) continue;
    for (const Piece& piece : tensor.pieces) {
      if (piece.file != file) continue;
      // Tercio's own files are aligned; a value that a read cuts could not be counted.
      is_complete_ = is_complete_ && piece.offset % kValue == 0;
      parts_.push_back(
          {&piece, tensor.shape.size() > 1 ? tensor.shape[1] : 1, plan::FactorOfTensor(name)});
    }
  }
}

void FileStateDigest::Update(int64_t at, absl::Span<const char> bytes) {
  const int64_t end = at + static_cast<int64_t>(bytes.size());
  for (const Part& part : parts_) {
    const int64_t first = std::max(at, part.piece->offset);
    const int64_t last = std::min(end, part.piece->offset + part.piece->bytes());
    if (first >= last) continue;
    AddValues(part, (first - part.piece->offset) / kValue, (last - first) / kValue,
              bytes.data() + (first - at));
  }
}

void FileStateDigest::AddValues(const Part& part, int64_t begin, int64_t count, const char* bytes) {
  const int64_t width = part.piece->column_end - part.piece->column_begin;
  values_.resize(static_cast<size_t>(count));
  std::memcpy(values_.data(), bytes, static_cast<size_t>(count * kValue));
  uint64_t sum = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t row = (begin + done) / width;
    const int64_t column = (begin + done) % width;
    // Whole rows of the tensor follow each other.
    const int64_t run =
        width == part.columns ? count - done : std::min(count - done, width - column);
    const int64_t number =
        (part.piece->row_begin + row) * part.columns + part.piece->column_begin + column;
    sum += plan::DigestOfElements(
        absl::MakeConstSpan(values_).subspan(static_cast<size_t>(done), static_cast<size_t>(run)),
        number);
    done += run;
  }
  sum_ += sum * part.factor;
}

}  // namespace tercio::checkpoint
