// The files of a Hugging Face directory that hold weights, whatever their format:
// model.safetensors, the files that model.safetensors.index.json names, pytorch_model.bin, or the
// files that pytorch_model.bin.index.json names; the first of these that is there, as in
// transformers.
//
// Files are mapped. A tensor of torch whose numbers do not lie one after the other is copied to
// memory; all copies together are never larger than the files.
//
// Threads: immutable once opened.
// Errors: NOT_FOUND for a missing file; DATA_LOSS for a damaged one, and for an index that does not
// match its files; INVALID_ARGUMENT for what a file of torch must not hold
// (checkpoint/torch/torch_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

inline constexpr char kHuggingFaceFile[] = "model.safetensors";
inline constexpr char kHuggingFaceIndex[] = "model.safetensors.index.json";
inline constexpr char kTorchFile[] = "pytorch_model.bin";
inline constexpr char kTorchIndex[] = "pytorch_model.bin.index.json";

struct StoredTensor {
  std::string name;
  std::string dtype;  // as safetensors names it
  std::vector<int64_t> shape;
  std::string_view bytes;  // row-major
  bool repeats = false;    // elements share memory, so that there are no bytes for all of them
};

struct WeightFile {
  std::string name;         // in its directory
  std::string_view header;  // the header of safetensors; empty for a file of torch
  std::vector<StoredTensor> tensors;
  std::shared_ptr<const void> memory;  // what the views are of

  bool is_torch() const { return header.empty(); }
};

// `model` tells which tensors an index may list without a file that holds them: buffers, which
// carry no information.
absl::StatusOr<std::vector<WeightFile>> OpenWeightFiles(const std::string& directory,
                                                        const v1::ModelSpec& model);

// The name of the first, second, ... of some safetensors files of one model.
std::string ShardName(size_t number, size_t count);

// The text of model.safetensors.index.json: the size of all tensors, and the file of each.
std::string WeightIndex(int64_t total_bytes, const std::map<std::string, std::string>& weight_map);

}  // namespace tercio::checkpoint
