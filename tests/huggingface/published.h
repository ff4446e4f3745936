// Directories in the form of published checkpoints, made from
// tests/huggingface/fixtures/published.json: the same files with the same tensors of the same
// values as make_published.py gave to transformers.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/float_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch/testing/torch_bytes.h"
#include "nlohmann/json.hpp"

namespace tercio::checkpoint {

// value() of make_published.py.
inline std::vector<float> PublishedValues(const std::string& name, int64_t count) {
  uint64_t seed = 0xCBF29CE484222325u;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  std::string lower = "." + name;
  for (char& c : lower) c = static_cast<char>(std::tolower(c));
  const bool weight = absl::EndsWith(name, ".weight") || absl::EndsWith(name, ".gamma");
  const bool norm =
      weight && (absl::StrContains(lower, "norm") || absl::StrContains("." + name, ".ln"));
  std::vector<float> values;
  for (int64_t place = 0; place < count; ++place) {
    uint64_t mixed = seed + (static_cast<uint64_t>(place) + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    const auto top = static_cast<float>((mixed ^ mixed >> 31) >> 48);
    values.push_back(top * 0x1p-17f - 0.25f + (norm ? 1.0f : 0.0f));
  }
  return values;
}

struct PublishedTensor {
  TensorEntry entry;
  std::string bytes;
};

// The tensors of a file, each layer's too, in order.
inline std::vector<PublishedTensor> PublishedTensors(const nlohmann::json& rows, int layers) {
  std::vector<PublishedTensor> tensors;
  for (const nlohmann::json& row : rows) {
    const auto pattern = row[0].get<std::string>();
    const bool repeated = absl::StrContains(pattern, "*");
    for (int layer = 0; layer < (repeated ? layers : 1); ++layer) {
      PublishedTensor& tensor = tensors.emplace_back();
      const std::map<std::string, std::string> number = {{"*", absl::StrCat(layer)}};
      tensor.entry.name = absl::StrReplaceAll(pattern, number);
      tensor.entry.dtype = row[1];
      tensor.entry.shape = row[2].get<std::vector<int64_t>>();
      int64_t count = 1;
      for (const int64_t extent : tensor.entry.shape) count *= extent;
      // A tied tensor has the values of another.
      const std::string values = row[3].is_string()
                                     ? absl::StrReplaceAll(row[3].get<std::string>(), number)
                                     : tensor.entry.name;
      tensor.bytes.assign(static_cast<size_t>(count * DtypeBytes(tensor.entry.dtype)), '\0');
      // Buffers of whole numbers may hold anything.
      if (const auto format = FloatFormatOf(tensor.entry.dtype)) {
        NarrowFloats(*format, PublishedValues(values, count).data(), count, tensor.bytes.data());
      }
    }
  }
  return tensors;
}

// What torch.save writes for a map of these tensors. Tied ones share a storage.
inline std::string TorchBytes(const std::vector<PublishedTensor>& tensors, bool stream) {
  const std::map<std::string, std::string> types = {{"F32", "FloatStorage"},
                                                    {"F16", "HalfStorage"},
                                                    {"BF16", "BFloat16Storage"},
                                                    {"I64", "LongStorage"},
                                                    {"U8", "ByteStorage"}};
  std::map<std::string, std::string> keys;  // by content
  std::vector<StreamStorage> storages;
  PickleBytes pickle;
  pickle.Global("collections", "OrderedDict").Raw(")R(");
  for (const PublishedTensor& tensor : tensors) {
    const int64_t elements =
        static_cast<int64_t>(tensor.bytes.size()) / DtypeBytes(tensor.entry.dtype);
    const auto [key, is_new] =
        keys.emplace(tensor.entry.dtype + tensor.bytes, absl::StrCat(storages.size()));
    if (is_new) storages.push_back({key->second, elements, tensor.bytes});
    std::vector<int64_t> strides(tensor.entry.shape.size(), 1);
    for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * tensor.entry.shape[i];
    pickle.Text(tensor.entry.name)
        .Tensor(types.at(tensor.entry.dtype), key->second, elements,
                {0, tensor.entry.shape, strides});
  }
  // state_dict() hangs its metadata on the map.
  pickle.Raw("u}").Text("_metadata").Raw("}sb");
  if (stream) return StreamBytes(pickle.Finish(), storages);
  ZipBytes archive;
  archive.Add({"archive/data.pkl", pickle.Finish()}).Add({"archive/byteorder", "little"});
  for (const StreamStorage& storage : storages) {
    archive.Add({"archive/data/" + storage.key, storage.bytes});
  }
  return archive.Add({"archive/version", "3\n"}).Finish(/*long_end=*/true);
}

inline void PutFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// Writes config.json and the weights of a form into an existing directory.
inline void WritePublished(const nlohmann::json& form, bool stream, const std::string& directory) {
  PutFile(directory + "/config.json", form["config"].dump(2) + "\n");
  const nlohmann::json& config = form["config"];
  const int layers = config.value("n_layer", config.value("num_hidden_layers", 0));
  nlohmann::json weight_map;
  bool safe = false;
  for (const auto& [name, rows] : form["files"].items()) {
    const std::vector<PublishedTensor> tensors = PublishedTensors(rows, layers);
    for (const PublishedTensor& tensor : tensors) weight_map[tensor.entry.name] = name;
    safe = absl::EndsWith(name, ".safetensors");
    if (!safe) {
      PutFile(absl::StrCat(directory, "/", name), TorchBytes(tensors, stream));
      continue;
    }
    std::vector<TensorEntry> entries;
    std::string bytes;
    for (const PublishedTensor& tensor : tensors) {
      entries.push_back(tensor.entry);
      bytes += tensor.bytes;
    }
    PutFile(absl::StrCat(directory, "/", name), SafetensorsHeader(&entries, "pt") + bytes);
  }
  if (form["files"].size() < 2) return;
  const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}};
  PutFile(
      absl::StrCat(directory, safe ? "/model.safetensors" : "/pytorch_model.bin", ".index.json"),
      index.dump(2) + "\n");
}

}  // namespace tercio::checkpoint
