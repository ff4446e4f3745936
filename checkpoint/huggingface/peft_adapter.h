// The directory of an adapter as peft saves it: adapter_config.json and adapter_model.safetensors.
// What the weights hold decides which parts of the model have an adapter; the configuration gives
// rank, scale and dropout.
//
// Read are adapters of LoRA in all layers of a model, with one rank and scale, and modules that are
// saved whole (modules_to_save). The file is not trusted: every offset, shape, dtype and name is
// checked before use.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND for a missing file; DATA_LOSS for a damaged one; INVALID_ARGUMENT for an
// adapter of another model, and for what this version does not support.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/stored_place.h"
#include "common/file.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// Whether the directory holds an adapter of peft.
bool IsPeftAdapter(const std::string& directory);

// The directory that adapter_config.json names as the adapter's model: as it is, or from the
// adapter's directory. NOT_FOUND where it names none of this machine (a model of a hub, nothing).
absl::StatusOr<std::string> DirectoryOfPeftBase(const std::string& directory);

// The targets (model/adapters.h) whose modules in transformers' model have this path, or end with
// it behind a dot, as peft finds them: "q_proj". Empty: there are none.
std::vector<std::string> TargetsOfModules(const v1::ModelSpec& model, const std::string& name);

// Where the tokenizer of the model in `directory` is: there, or, of an adapter that comes without
// one, where its model is.
std::string TokenizerDirectoryOf(const std::string& directory);

class PeftAdapter {
 public:
  // `base`: the model that it is for; its own adapter, if it has one, does not count.
  static absl::StatusOr<std::unique_ptr<PeftAdapter>> Open(const std::string& directory,
                                                           const v1::ModelSpec& base);

  // Without `from`.
  const v1::AdapterSpec& spec() const { return spec_; }

  // Null: the adapter has no such tensor.
  const StoredPlace* Find(const std::string& tensor) const;

 private:
  class Loader;

  std::shared_ptr<const MappedFile> file_;
  v1::AdapterSpec spec_;
  std::map<std::string, StoredPlace> places_;  // by canonical names
};

}  // namespace tercio::checkpoint
