#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLargestSize = std::numeric_limits<int64_t>::max();
constexpr int64_t kLargestHeader = 100'000'000;  // the limit of the reference implementation

absl::Status Fault(const std::string& what) {
  return absl::InvalidArgumentError("not a safetensors file: " + what);
}

struct Dtype {
  const char* name;
  int64_t bytes;
};
constexpr Dtype kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                             {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                             {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

// -1 when it does not fit.
int64_t BytesOf(const TensorEntry& entry) {
  int64_t bytes = DtypeBytes(entry.dtype);
  // The shape comes from a file, so its product may be anything.
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

// A name of an untrusted file, for a message.
std::string Shown(const std::string& name) { return absl::Utf8SafeCEscape(name.substr(0, 200)); }

// Tensors lie one after the other, from the first byte to the last.
absl::Status CheckFillsFile(const std::vector<TensorEntry>& tensors, int64_t data_bytes) {
  // A header may list its tensors in any order.
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : tensors) order.push_back(&entry);
  // Empty tensors share their beginning with the next one, so the ends decide between them.
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  int64_t at = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != at) {
      return Fault(absl::StrCat(Shown(entry->name), entry->begin < at
                                                        ? " overlaps the tensor before it"
                                                        : " follows a gap"));
    }
    // Gaps are refused as in the reference implementation: they could hide other data.
    at = entry->end;
  }
  if (at != data_bytes) {
    return Fault(absl::StrCat("it has ", data_bytes, " bytes of data, but its tensors have ", at));
  }
  return absl::OkStatus();
}

bool IsOffsets(const nlohmann::json& value) {
  return value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
         value[1].is_number_unsigned();
}

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const nlohmann::json& value,
                                       int64_t data_bytes) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !IsOffsets(value["data_offsets"]) ||
      !value["dtype"].is_string() || !value["shape"].is_array()) {
    return Fault("bad entry for " + Shown(name));
  }
  TensorEntry entry;
  entry.name = name;
  entry.dtype = value["dtype"];
  for (const auto& size : value["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{kLargestSize}) {
      return Fault("bad shape of " + Shown(name));
    }
    entry.shape.push_back(size.get<int64_t>());
  }
  entry.begin = value["data_offsets"][0];
  entry.end = value["data_offsets"][1];
  // This was a conversion of an unsigned number, so the sign is checked, too.
  if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes) {
    return Fault(absl::StrCat(Shown(name), " lies outside the file"));
  }
  if (DtypeBytes(entry.dtype) == 0) {
    return Fault(absl::StrCat(Shown(name), " has the unknown dtype ", Shown(entry.dtype)));
  }
  // A product that overflows is -1, which no size equals.
  if (BytesOf(entry) != entry.end - entry.begin) {
    return Fault(absl::StrCat(Shown(name), " has ", entry.end - entry.begin,
                              " bytes, which does not match its shape"));
  }
  return entry;
}

// The end of the header.
absl::StatusOr<int64_t> DataBegin(std::string_view file, int64_t file_bytes) {
  if (static_cast<int64_t>(file.size()) < kLengthBytes) return Fault("shorter than 8 bytes");
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  // The length is compared before it is added or used, since it may be anything.
  if (length > kLargestHeader || kLengthBytes + static_cast<int64_t>(length) > file_bytes ||
      file.size() < kLengthBytes + length) {
    return Fault(absl::StrCat("a header of ", length, " bytes does not fit"));
  }
  return kLengthBytes + static_cast<int64_t>(length);
}

absl::StatusOr<SafetensorsLayout> ParseEntries(std::string_view file, int64_t data_begin,
                                               int64_t data_bytes) {
  const std::string_view text =
      file.substr(kLengthBytes, static_cast<size_t>(data_begin - kLengthBytes));
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Fault("the header is not JSON");
  SafetensorsLayout layout;
  layout.data_begin = data_begin;
  for (const auto& [name, value] : header.items()) {
    // The metadata are texts for programs that read them, and describe no tensor.
    if (name == "__metadata__") continue;
    TERCIO_ASSIGN_OR_RETURN(TensorEntry entry, ParseEntry(name, value, data_bytes));
    layout.tensors.push_back(std::move(entry));
  }
  return layout;
}

}  // namespace

int64_t DtypeBytes(std::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype == known.name) return known.bytes;
  }
  return 0;
}

std::string SafetensorsHeader(std::vector<TensorEntry>* tensors, std::string_view format) {
  // Entries stay in the order of their bytes, which people read more easily than the alphabet's.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!format.empty()) header["__metadata__"] = {{"format", std::string(format)}};
  int64_t at = 0;
  for (TensorEntry& tensor : *tensors) {
    tensor.begin = at;
    tensor.end = at += BytesOf(tensor);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string json = header.dump();
  // The padding aligns the data to 8 bytes, as the format demands of writers.
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  std::string result(reinterpret_cast<const char*>(&length), sizeof(length));
  return result + json;
}

absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::string_view file, int64_t file_bytes) {
  TERCIO_ASSIGN_OR_RETURN(const int64_t data_begin, DataBegin(file, file_bytes));
  const int64_t data_bytes = file_bytes - data_begin;
  TERCIO_ASSIGN_OR_RETURN(SafetensorsLayout layout, ParseEntries(file, data_begin, data_bytes));
  TERCIO_RETURN_IF_ERROR(CheckFillsFile(layout.tensors, data_bytes));
  return layout;
}

absl::StatusOr<SafetensorsLayout> ParseSafetensorsHeader(std::string_view header) {
  const auto bytes = static_cast<int64_t>(header.size());
  TERCIO_ASSIGN_OR_RETURN(const int64_t data_begin, DataBegin(header, bytes));
  if (data_begin != bytes) return Fault("bytes follow the header");
  // The size of the data is not known here, and is taken from the entries.
  TERCIO_ASSIGN_OR_RETURN(SafetensorsLayout layout, ParseEntries(header, data_begin, kLargestSize));
  int64_t data_bytes = 0;
  // The largest end is the size if there are no gaps, which is what the check then finds out.
  for (const TensorEntry& entry : layout.tensors) data_bytes = std::max(data_bytes, entry.end);
  TERCIO_RETURN_IF_ERROR(CheckFillsFile(layout.tensors, data_bytes));
  return layout;
}

}  // namespace tercio::checkpoint
