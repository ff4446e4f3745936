#include "checkpoint/huggingface/weight_files.h"

#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/huggingface/faults.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch/torch_file.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {
namespace {

// A file of torch, and the tensors that had to be copied.
struct TorchMemory {
  std::unique_ptr<TorchFile> file;
  std::deque<std::string> copies;
};

absl::StatusOr<WeightFile> OpenSafetensors(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  TERCIO_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> mapping, MappedFile::Open(path));
  const std::string_view content = mapping->content();
  absl::StatusOr<SafetensorsLayout> layout =
      ParseSafetensors(content, static_cast<int64_t>(content.size()));
  if (!layout.ok()) {
    // The parser knows no path, and a directory may have dozens of files.
    return absl::DataLossError(absl::StrCat(path, ": ", std::string(layout.status().message())));
  }
  WeightFile file;
  file.name = name;
  file.header = content.substr(0, static_cast<size_t>(layout->data_begin));
  for (TensorEntry& entry : layout->tensors) {
    const std::string_view bytes =
        content.substr(static_cast<size_t>(layout->data_begin + entry.begin),
                       static_cast<size_t>(entry.end - entry.begin));
    file.tensors.push_back(
        {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), bytes});
  }
  file.memory = mapping;
  return file;
}

// The elements of a tensor one after the other. REQUIRES: it has a dimension, and is not empty.
std::string GatherElements(const TorchTensor& tensor, size_t elements) {
  const auto size = static_cast<size_t>(DtypeBytes(tensor.dtype));
  std::string dense(elements * size, '\0');
  std::vector<int64_t> at(tensor.shape.size(), 0);
  int64_t from = tensor.offset;
  for (size_t to = 0; to < elements; ++to) {
    std::memcpy(dense.data() + to * size, tensor.storage.data() + static_cast<size_t>(from) * size,
                size);
    // The position is counted up as a number whose digits are the indices.
    for (size_t i = at.size(); i-- > 0;) {
      from += tensor.strides[i];
      if (++at[i] < tensor.shape[i]) break;
      from -= at[i] * tensor.strides[i];
      at[i] = 0;
    }
  }
  return dense;
}

// `room` counts down the bytes that may be copied.
void ReadTorchTensor(const TorchTensor& tensor, TorchMemory* memory, size_t* room,
                     StoredTensor* stored) {
  stored->dtype = tensor.dtype;
  stored->shape = tensor.shape;
  if (tensor.IsContiguous()) {
    stored->bytes = tensor.bytes();
    return;
  }
  size_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= static_cast<size_t>(extent);
  const size_t bytes = elements * static_cast<size_t>(DtypeBytes(tensor.dtype));
  // A tensor that repeats its elements could be of any size.
  stored->repeats = bytes > tensor.storage.size() || bytes > *room;
  if (stored->repeats) return;
  *room -= bytes;
  stored->bytes = memory->copies.emplace_back(GatherElements(tensor, elements));
}

absl::StatusOr<WeightFile> OpenTorch(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  auto memory = std::make_shared<TorchMemory>();
  TERCIO_ASSIGN_OR_RETURN(memory->file, TorchFile::Open(path));
  const PickleValue& root = memory->file->root();
  if (root.kind() != PickleValue::Kind::kMap) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": it holds no map of tensors; save model.state_dict()"));
  }
  WeightFile file;
  file.name = name;
  size_t room = memory->file->content().size();
  for (const auto& [key, value] : root.members()) {
    const bool text = key.kind() == PickleValue::Kind::kText;
    if (!text || value.kind() != PickleValue::Kind::kTensor) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", text ? ShownName(key.text()) : "a key",
                       " is no tensor; save model.state_dict() alone"));
    }
    StoredTensor& stored = file.tensors.emplace_back();
    stored.name = key.text();
    ReadTorchTensor(value.tensor(), memory.get(), &room, &stored);
  }
  file.memory = std::move(memory);
  return file;
}

// The weight map of an index: name of a tensor -> file.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(std::string_view text,
                                                                  const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": has no weight_map"));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    // The name comes from a file that is not trusted, and must not lead out of the directory; open
    // would cut it at a zero byte.
    if (file.empty() || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos || file == "." || file == "..") {
      return absl::DataLossError(absl::StrCat(path, ": tensor ", ShownName(tensor),
                                              " is not in a file of this directory"));
    }
    weight_map[tensor] = file;
  }
  return weight_map;
}

absl::Status CheckIndex(const std::string& path,
                        const std::map<std::string, std::string>& weight_map,
                        const std::vector<WeightFile>& files, const v1::ModelSpec& model) {
  TensorFaults faults(path);
  std::map<std::string, std::string> there;
  for (const WeightFile& file : files) {
    for (const StoredTensor& tensor : file.tensors) there[tensor.name] = file.name;
  }
  const auto is_buffer = [&](const std::string& tensor) {
    return IsIgnoredBuffer(model, CurrentSuffix(model, tensor));
  };
  // Both directions are compared: a file from another download may lack tensors or have more.
  for (const auto& [tensor, file] : weight_map) {
    const auto found = there.find(tensor);
    if ((found == there.end() || found->second != file) && !is_buffer(tensor)) {
      faults.Damaged(absl::StrCat("tensor ", ShownName(tensor), " is not in ", ShownName(file)));
    }
  }
  for (const auto& [tensor, file] : there) {
    if (!weight_map.contains(tensor) && !is_buffer(tensor)) {
      faults.Damaged(absl::StrCat("tensor ", ShownName(tensor), " of ", ShownName(file),
                                  " is not in the index"));
    }
  }
  return faults.ToStatus();
}

using FileOpener = absl::StatusOr<WeightFile> (*)(const std::string& directory,
                                                  const std::string& name);

absl::StatusOr<std::vector<WeightFile>> OpenIndexed(const std::string& directory, const char* index,
                                                    FileOpener open_file,
                                                    const v1::ModelSpec& model) {
  const std::string path = absl::StrCat(directory, "/", index);
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  TERCIO_ASSIGN_OR_RETURN(const auto weight_map, ParseWeightMap(text, path));
  // The map names a file once for each of its tensors.
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  if (names.empty()) return absl::DataLossError(absl::StrCat(path, ": names no files"));
  std::vector<WeightFile> files;
  for (const std::string& name : names) {
    TERCIO_ASSIGN_OR_RETURN(WeightFile file, open_file(directory, name));
    files.push_back(std::move(file));
  }
  TERCIO_RETURN_IF_ERROR(CheckIndex(path, weight_map, files, model));
  return files;
}

}  // namespace

absl::StatusOr<std::vector<WeightFile>> OpenWeightFiles(const std::string& directory,
                                                        const v1::ModelSpec& model) {
  const struct {
    const char* file;
    const char* index;
    FileOpener open_file;
  } formats[] = {{kHuggingFaceFile, kHuggingFaceIndex, &OpenSafetensors},
                 {kTorchFile, kTorchIndex, &OpenTorch}};
  for (const auto& format : formats) {
    if (PathExists(absl::StrCat(directory, "/", format.file))) {
      TERCIO_ASSIGN_OR_RETURN(WeightFile file, format.open_file(directory, format.file));
      std::vector<WeightFile> files;
      files.push_back(std::move(file));
      return files;
    }
    if (PathExists(absl::StrCat(directory, "/", format.index))) {
      return OpenIndexed(directory, format.index, format.open_file, model);
    }
  }
  return absl::NotFoundError(absl::StrCat(directory, " has neither ", kHuggingFaceFile, " nor ",
                                          kHuggingFaceIndex, ", ", kTorchFile, " or ",
                                          kTorchIndex));
}

std::string ShardName(size_t number, size_t count) {
  if (count == 1) return kHuggingFaceFile;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number, count);
}

std::string WeightIndex(int64_t total_bytes, const std::map<std::string, std::string>& weight_map) {
  nlohmann::ordered_json json;
  json["metadata"] = {{"total_size", total_bytes}};
  json["weight_map"] = nlohmann::json(weight_map);
  return json.dump(2) + "\n";
}

}  // namespace tercio::checkpoint
