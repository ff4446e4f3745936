// A Hugging Face directory as a source of weights: config.json, and the files that
// checkpoint/huggingface/weight_files.h finds. Numbers become fp32 as they are read.
//
// Names may be those of older versions of transformers, with and without the prefix of the model.
// Tensors of other tasks than the one that config.json names are there, too, if the files have
// them; of this task those that a job would have to initialise may be missing.
//
// The files are not trusted: every offset, shape, dtype and name is checked before use, and nothing
// is allocated for a tensor that the files have no bytes for. A file that shrinks while it is
// mapped ends the process (SIGBUS), as with any mapping.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND for a missing file; DATA_LOSS for a damaged one, and for a tensor that is
// missing, of an unknown name, misshapen or given twice; INVALID_ARGUMENT for what this version
// does not support (a dtype, an architecture, a class in a pickle). Tensors are named, at most a
// few of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/faults.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/stored_place.h"
#include "checkpoint/huggingface/weight_files.h"
#include "checkpoint/weight_source.h"

namespace tercio::checkpoint {

class HuggingFaceModel : public WeightSource {
 public:
  static absl::StatusOr<std::unique_ptr<HuggingFaceModel>> Open(const std::string& directory);

  const v1::ModelSpec& model() const override { return model_; }
  // NOT_FOUND: its tokenizer has another form.
  absl::StatusOr<std::string> TokenizerJson() const override;
  bool Has(const std::string& tensor) const override { return places_.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;

  std::vector<std::string> NotesFor(const v1::ModelSpec& model) const override;

  const std::vector<WeightFile>& files() const { return files_; }
  // Whether the tensor of this name in a file gives weights.
  bool GivesWeights(const std::string& stored) const { return canonical_.contains(stored); }

 private:
  // Tensors of the files by their suffix.
  using Found = std::map<std::string, const StoredTensor*, std::less<>>;

  absl::Status PlaceTensors();
  Found FindTensors(TensorFaults* faults) const;
  const StoredTensor* FindOrCopy(const Found& found, const std::string& suffix) const;
  void Place(const HuggingFaceTensor& tensor, const StoredTensor& stored, TensorFaults* faults);
  void CheckOthers(const Found& found, TensorFaults* faults);
  bool MayLack(const HuggingFaceTensor& tensor) const;
  bool HasStored(std::string_view name) const;

  std::string directory_;
  v1::ModelSpec model_;
  bool base_ = false;  // without the tensors of a task
  std::vector<WeightFile> files_;
  std::map<std::string, StoredPlace> places_;
  std::map<std::string, std::string> canonical_;  // name in a file -> the first canonical tensor
  std::vector<std::string> other_heads_;          // names in the files
  std::string rounded_;                           // a tensor whose numbers are rounded
};

}  // namespace tercio::checkpoint
