// Where the weights of a model come from: a committed checkpoint, a Hugging Face directory, or a
// Megatron-LM checkpoint.
// Trainers, generation and exporters ask for slices and know no file format.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND for a tensor that the source lacks, INVALID_ARGUMENT for another shape, or a
// slice outside of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// What of a checkpoint is compared when it is opened.
enum class DigestCheck { kNone, kEveryByte };

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const v1::ModelSpec& model() const = 0;

  // The tokenizer as checkpoints hold it (tokenizer/tokenizer.h); NOT_FOUND when there is none.
  virtual absl::StatusOr<std::string> TokenizerJson() const = 0;

  virtual bool Has(const std::string& tensor) const = 0;

  // Writes the slice's values row-major to `out`, which has room for all of them.
  virtual absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const = 0;

  // What people should know who use these weights for `model`: tensors that it has no use for,
  // numbers that are rounded.
  virtual std::vector<std::string> NotesFor(const v1::ModelSpec& /*model*/) const { return {}; }
};

// Opens a checkpoint (manifest.json), or a Hugging Face directory (config.json), Megatron-LM
// checkpoint (checkpoint/megatron/directory.h) or adapter of peft with the model that it names
// (adapter_config.json), which have no digests. NOT_FOUND when it is none of them, DATA_LOSS when
// it is damaged, INVALID_ARGUMENT for a model that Tercio does not support.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenWeightSource(const std::string& directory,
                                                               DigestCheck check);

// OK when a model can start from the source's weights: the same sizes, but a context that may be
// shorter, and of a bert another task, whose own tensors the source need not have
// (plan::BelongsToTask). FAILED_PRECONDITION names the first difference.
absl::Status CheckStartsFrom(const v1::ModelSpec& model, const v1::ModelSpec& source);

// NotesFor, and the tensors of the model that the source lacks.
std::vector<std::string> NotesAbout(const WeightSource& source, const v1::ModelSpec& model);

// Whether a job's first attempt can start from `model.from`, with data of this many token ids: the
// directory is there, undamaged, and holds this model. Every message names the directory, and so do
// the notes that are the answer.
absl::StatusOr<std::vector<std::string>> CheckInitialWeights(const v1::ModelSpec& model,
                                                             int32_t data_vocabulary);

// ReadSlice for a model whose context may be shorter than the source's: it has the first rows of
// the position table.
absl::Status ReadSliceFor(const WeightSource& source, v1::TensorSlice slice, float* out);

// Parts of at most `most_elements` values each, which one after the other are the values of the
// slice row-major. REQUIRES: most_elements >= 1. Pure.
std::vector<v1::TensorSlice> DivideSlice(const v1::TensorSlice& slice, int64_t most_elements);

}  // namespace tercio::checkpoint
