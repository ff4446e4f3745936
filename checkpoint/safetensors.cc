#include "checkpoint/safetensors.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLargestHeader = 100'000'000;  // the limit of the reference implementation

absl::Status Fault(const std::string& what) {
  return absl::InvalidArgumentError("not a safetensors file: " + what);
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
    return Fault("bad entry for " + name);
  }
  TensorEntry entry;
  entry.name = name;
  entry.dtype = value["dtype"];
  for (const auto& size : value["shape"]) {
    if (!size.is_number_unsigned()) return Fault("bad shape of " + name);
    entry.shape.push_back(size);
  }
  entry.begin = value["data_offsets"][0];
  entry.end = value["data_offsets"][1];
  if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes) {
    return Fault(absl::StrCat(name, " lies outside the file"));
  }
  return entry;
}

}  // namespace

std::string SafetensorsHeader(std::vector<TensorEntry>* tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t at = 0;
  for (TensorEntry& tensor : *tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    tensor.begin = at;
    tensor.end = at += elements * 4;
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string json = header.dump();
  json.append((8 - json.size() % 8) % 8, ' ');
  const uint64_t length = json.size();
  std::string result(reinterpret_cast<const char*>(&length), sizeof(length));
  return result + json;
}

absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::string_view file, int64_t file_bytes) {
  if (static_cast<int64_t>(file.size()) < kLengthBytes) return Fault("shorter than 8 bytes");
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kLargestHeader || kLengthBytes + static_cast<int64_t>(length) > file_bytes ||
      file.size() < kLengthBytes + length) {
    return Fault(absl::StrCat("a header of ", length, " bytes does not fit"));
  }
  const nlohmann::json header =
      nlohmann::json::parse(file.substr(kLengthBytes, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Fault("the header is not JSON");
  SafetensorsLayout layout;
  layout.data_begin = kLengthBytes + static_cast<int64_t>(length);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<TensorEntry> entry = ParseEntry(name, value, file_bytes - layout.data_begin);
    if (!entry.ok()) return entry.status();
    layout.tensors.push_back(*std::move(entry));
  }
  return layout;
}

}  // namespace tercio::checkpoint
