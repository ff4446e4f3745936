#include "data/indexed_dataset.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::data {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the terminator
constexpr size_t kMagicBytes = 9;
// The header has the magic number, a version (8 bytes), the element type (1), and the numbers of
// sequences and document borders (8 each).
constexpr size_t kHeaderBytes = 34;

template <typename T>
T ReadAt(std::string_view bytes, size_t offset) {
  // Numbers of the file have any alignment.
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

absl::Status IndexFault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Megatron's codes 6 and 7 are floating-point types, which hold no ids.
bool KnownType(uint8_t code) { return (code >= 1 && code <= 5) || code == 8; }

absl::Status CheckHeader(std::string_view index, const std::string& path) {
  if (index.size() < kHeaderBytes || std::memcmp(index.data(), kMagic, kMagicBytes) != 0) {
    return IndexFault(path, "not a Megatron index (it must begin with MMIDIDX)");
  }
  if (ReadAt<uint64_t>(index, 9) != 1) {
    return IndexFault(path, absl::StrCat("version ", ReadAt<uint64_t>(index, 9), ", expected 1"));
  }
  const uint8_t code = ReadAt<uint8_t>(index, 17);
  if (!KnownType(code))
    return IndexFault(path, absl::StrCat("element type ", code, " is not an integer"));
  return absl::OkStatus();
}

// Lengths, offsets and documents agree with each other and with the size of the .bin file.
absl::Status CheckTables(std::string_view index, const std::string& path, uint64_t sequences,
                         uint64_t documents, int item_bytes, size_t bin_bytes) {
  const size_t offsets = kHeaderBytes + 4 * sequences;
  const size_t borders = offsets + 8 * sequences;
  // The sizes are signed in the file, so a damaged length can be negative.
  int64_t bytes = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = ReadAt<int32_t>(index, kHeaderBytes + 4 * i);
    if (length < 0) return IndexFault(path, absl::StrCat("sequence ", i, " has length ", length));
    if (ReadAt<int64_t>(index, offsets + 8 * i) != bytes) {
      return IndexFault(
          path, absl::StrCat("sequence ", i, " does not start where the previous one ends"));
    }
    bytes += int64_t{length} * item_bytes;
  }
  // A .bin file of another size belongs to another index, or was not written to its end.
  if (static_cast<uint64_t>(bytes) != bin_bytes) {
    return IndexFault(path, absl::StrCat("the sequences need ", bytes,
                                         " bytes, but the .bin file has ", bin_bytes));
  }
  int64_t last = 0;
  for (uint64_t i = 0; i < documents; ++i) {
    const int64_t border = ReadAt<int64_t>(index, borders + 8 * i);
    const bool good = i == 0 ? border == 0 : border >= last;
    // Only the first border must be 0; equal ones are documents without sequences.
    if (!good || static_cast<uint64_t>(border) > sequences) {
      return IndexFault(path, absl::StrCat("document border ", i, " is ", border));
    }
    last = border;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<IndexedDataset> OpenIndexedDataset(const std::string& prefix) {
  const std::string index_path = prefix + ".idx";
  const std::string bin_path = prefix + ".bin";
  TERCIO_ASSIGN_OR_RETURN(const auto index_file, MappedFile::Open(index_path));
  TERCIO_ASSIGN_OR_RETURN(const auto bin, MappedFile::Open(bin_path));
  const std::string_view index = index_file->content();
  TERCIO_RETURN_IF_ERROR(CheckHeader(index, index_path));
  const uint64_t sequences = ReadAt<uint64_t>(index, 18);
  const uint64_t documents = ReadAt<uint64_t>(index, 26);
  // Both numbers are bounded before they are multiplied, so that the products cannot overflow.
  const uint64_t limit = index.size() / 4;
  if (sequences > limit || documents > limit ||
      index.size() < kHeaderBytes + 12 * sequences + 8 * documents) {
    return IndexFault(index_path,
                      absl::StrCat("truncated: ", sequences, " sequences and ", documents,
                                   " document borders do not fit into ", index.size(), " bytes"));
  }
  IndexedDataset dataset;
  dataset.prefix = prefix;
  dataset.type = static_cast<TokenType>(ReadAt<uint8_t>(index, 17));
  dataset.sequences = static_cast<int64_t>(sequences);
  // The last border is the end of the last document and begins none.
  dataset.documents = documents > 0 ? static_cast<int64_t>(documents) - 1 : 0;
  TERCIO_RETURN_IF_ERROR(CheckTables(index, index_path, sequences, documents, BytesOf(dataset.type),
                                     bin->content().size()));
  dataset.tokens =
      TokenDataset(bin, bin->content().data(), dataset.type,
                   static_cast<int64_t>(bin->content().size()) / BytesOf(dataset.type));
  const char* offsets = index.data() + kHeaderBytes + 4 * sequences;
  dataset.borders = DocumentBorders::OfIndex({.owner = index_file,
                                              .offsets = offsets,
                                              .borders = offsets + 8 * sequences,
                                              .sequences = dataset.sequences,
                                              .border_count = static_cast<int64_t>(documents),
                                              .tokens = dataset.tokens.tokens(),
                                              .token_bytes = BytesOf(dataset.type)});
  const std::string tokenizer_path = prefix + ".tokenizer.json";
  // Data sets of other programs have no tokenizer beside them, which is no error.
  if (PathExists(tokenizer_path)) {
    TERCIO_ASSIGN_OR_RETURN(const std::string json, ReadFile(tokenizer_path));
    absl::StatusOr<tokenizer::Tokenizer> tokenizer = tokenizer::Tokenizer::FromJson(json);
    if (!tokenizer.ok())
      return IndexFault(tokenizer_path, std::string(tokenizer.status().message()));
    dataset.tokenizer = *std::move(tokenizer);
  }
  return dataset;
}

}  // namespace tercio::data
