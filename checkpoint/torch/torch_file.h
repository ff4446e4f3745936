// A file written by torch.save: weights of Hugging Face directories (pytorch_model.bin) and
// Megatron-LM's checkpoints (model_optim_rng.pt).
//
// Two containers are read: a zip archive of stored entries (since torch 1.6), and the older stream
// of pickles with the storages behind them. The pickle is read by a machine of our own that builds
// tensors, plain containers and, as data, the objects that training scripts keep beside their
// weights (namespaces and enums of arguments, states of random number generators). Any other class
// or function is refused by name.
//
// The file is mapped and not trusted: every offset, size and stride is checked before use, and
// memory is bounded by a small multiple of the pickle's size.
//
// Threads: immutable; any number of threads may read.
// Errors: NOT_FOUND and others of a file that cannot be opened; DATA_LOSS for one that is truncated
// or damaged; INVALID_ARGUMENT for what is refused: a class or function (named), a compressed
// archive, big-endian numbers, a dtype that is not known, a file that is none of torch's. Each
// names the file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "common/file.h"

namespace tercio::checkpoint {

class TorchFile {
 public:
  static absl::StatusOr<std::unique_ptr<TorchFile>> Open(const std::string& path);
  ~TorchFile();

  // What was saved, for the weights of a model a map of names and tensors.
  const PickleValue& root() const;
  const std::string& path() const;
  std::string_view content() const;  // the whole file, of which tensors are views

 private:
  struct Impl;
  explicit TorchFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tercio::checkpoint
