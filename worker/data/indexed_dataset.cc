#include "worker/data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::data {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // nine bytes with the terminator
constexpr size_t kMagicBytes = 9;
constexpr size_t kHeaderBytes = 34;

template <typename T>
T ReadAt(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

absl::Status Fault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

bool KnownType(uint8_t code) { return (code >= 1 && code <= 5) || code == 8; }

absl::Status CheckHeader(std::string_view index, const std::string& path) {
  if (index.size() < kHeaderBytes || std::memcmp(index.data(), kMagic, kMagicBytes) != 0) {
    return Fault(path, "not a Megatron index (it must begin with MMIDIDX)");
  }
  if (ReadAt<uint64_t>(index, 9) != 1) {
    return Fault(path, absl::StrCat("version ", ReadAt<uint64_t>(index, 9), ", expected 1"));
  }
  const uint8_t code = ReadAt<uint8_t>(index, 17);
  if (!KnownType(code))
    return Fault(path, absl::StrCat("element type ", code, " is not an integer"));
  return absl::OkStatus();
}

// Lengths, offsets and documents agree with each other and with the size of the .bin file.
absl::Status CheckTables(std::string_view index, const std::string& path, uint64_t sequences,
                         uint64_t documents, int item_bytes, size_t bin_bytes) {
  const size_t offsets = kHeaderBytes + 4 * sequences;
  const size_t borders = offsets + 8 * sequences;
  int64_t bytes = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = ReadAt<int32_t>(index, kHeaderBytes + 4 * i);
    if (length < 0) return Fault(path, absl::StrCat("sequence ", i, " has length ", length));
    if (ReadAt<int64_t>(index, offsets + 8 * i) != bytes) {
      return Fault(path, absl::StrCat("sequence ", i, " does not start where the one before ends"));
    }
    bytes += int64_t{length} * item_bytes;
  }
  if (static_cast<uint64_t>(bytes) != bin_bytes) {
    return Fault(path, absl::StrCat("the sequences need ", bytes, " bytes, but the .bin file has ",
                                    bin_bytes));
  }
  int64_t last = 0;
  for (uint64_t i = 0; i < documents; ++i) {
    const int64_t border = ReadAt<int64_t>(index, borders + 8 * i);
    const bool good = i == 0 ? border == 0 : border >= last;
    if (!good || static_cast<uint64_t>(border) > sequences) {
      return Fault(path, absl::StrCat("document border ", i, " is ", border));
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
  const uint64_t limit = index.size() / 4;
  if (sequences > limit || documents > limit ||
      index.size() < kHeaderBytes + 12 * sequences + 8 * documents) {
    return Fault(index_path,
                 absl::StrCat("truncated: ", sequences, " sequences and ", documents,
                              " document borders do not fit into ", index.size(), " bytes"));
  }
  IndexedDataset dataset;
  dataset.prefix = prefix;
  dataset.type = static_cast<TokenType>(ReadAt<uint8_t>(index, 17));
  dataset.sequences = static_cast<int64_t>(sequences);
  dataset.documents = documents > 0 ? static_cast<int64_t>(documents) - 1 : 0;
  TERCIO_RETURN_IF_ERROR(CheckTables(index, index_path, sequences, documents, BytesOf(dataset.type),
                                     bin->content().size()));
  dataset.tokens =
      TokenDataset(bin, bin->content().data(), dataset.type,
                   static_cast<int64_t>(bin->content().size()) / BytesOf(dataset.type));
  const std::string tokenizer_path = prefix + ".tokenizer.json";
  if (PathExists(tokenizer_path)) {
    TERCIO_ASSIGN_OR_RETURN(const std::string json, ReadFile(tokenizer_path));
    TERCIO_ASSIGN_OR_RETURN(dataset.tokenizer, Tokenizer::FromJson(json));
  }
  return dataset;
}

absl::StatusOr<int32_t> HighestToken(const IndexedDataset& dataset) {
  if (dataset.type == TokenType::kInt64) {
    return absl::InvalidArgumentError(absl::StrCat(
        dataset.prefix, ".idx: int64 tokens are not supported by this version; use int32"));
  }
  constexpr int64_t kBlock = 65536;
  std::vector<int32_t> ids(kBlock);
  int32_t highest = -1;
  for (int64_t at = 0; at < dataset.tokens.tokens(); at += kBlock) {
    const int64_t count = std::min(kBlock, dataset.tokens.tokens() - at);
    dataset.tokens.Read(at, count, ids.data());
    for (int64_t i = 0; i < count; ++i) {
      if (ids[static_cast<size_t>(i)] < 0) {
        return absl::InvalidArgumentError(absl::StrCat(dataset.prefix, ".bin: token ", at + i,
                                                       " is ", ids[static_cast<size_t>(i)]));
      }
      highest = std::max(highest, ids[static_cast<size_t>(i)]);
    }
  }
  return highest;
}

TokenType TokenTypeFor(int32_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

absl::Status WriteIndexedDataset(const std::string& prefix, absl::Span<const int32_t> ids,
                                 const Tokenizer& tokenizer) {
  const TokenType type = TokenTypeFor(tokenizer.vocab_size());
  if (ids.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, ": more than 2^31-1 tokens in one document; split the text"));
  }
  std::string bin;
  bin.reserve(ids.size() * static_cast<size_t>(BytesOf(type)));
  for (const int32_t id : ids) {
    if (type == TokenType::kUint16) {
      Append(static_cast<uint16_t>(id), &bin);
    } else {
      Append(id, &bin);
    }
  }
  std::string index(kMagic, kMagicBytes);
  Append<uint64_t>(1, &index);
  Append<uint8_t>(static_cast<uint8_t>(type), &index);
  Append<uint64_t>(1, &index);
  Append<uint64_t>(2, &index);
  Append<int32_t>(static_cast<int32_t>(ids.size()), &index);
  Append<int64_t>(0, &index);
  Append<int64_t>(0, &index);
  Append<int64_t>(1, &index);
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(prefix + ".bin", bin));
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(prefix + ".tokenizer.json", tokenizer.ToJson()));
  return WriteFileDurably(prefix + ".idx", index);
}

absl::Status TokenizeFile(const std::string& text_path, const std::string& tokenizer,
                          const std::string& prefix) {
  TERCIO_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(text_path));
  const std::string_view text = file->content();
  if (text.empty()) return Fault(text_path, "the file is empty");
  absl::StatusOr<Tokenizer> made =
      tokenizer == "bytes" ? Tokenizer::Bytes()
      : tokenizer == "chars"
          ? Tokenizer::CharsOf({text})
          : absl::InvalidArgumentError(absl::StrCat("the tokenizer '", tokenizer,
                                                    "' is not supported by this version; use bytes "
                                                    "or chars"));
  if (!made.ok()) return Fault(text_path, std::string(made.status().message()));
  TERCIO_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, made->Encode(text));
  return WriteIndexedDataset(prefix, ids, *made);
}

absl::StatusOr<DatasetSummary> InspectDataset(const std::string& prefix) {
  TERCIO_ASSIGN_OR_RETURN(const IndexedDataset dataset, OpenIndexedDataset(prefix));
  DatasetSummary summary;
  summary.documents = dataset.documents;
  summary.tokens = dataset.tokens.tokens();
  summary.dtype = NameOf(dataset.type);
  if (dataset.tokenizer.has_value()) {
    summary.vocab_size = dataset.tokenizer->vocab_size();
  } else {
    TERCIO_ASSIGN_OR_RETURN(const int32_t highest, HighestToken(dataset));
    summary.vocab_size = highest + 1;
  }
  return summary;
}

}  // namespace tercio::data
