// Models with adapters as sources of weights: a base with the adapter of a directory beside it, and
// the model that has an adapter's products in its weights.
//
// Threads: const methods from any thread.
// Errors: those of the sources that they read.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/weight_source.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// `base` with the adapter in `directory` (checkpoint/huggingface/peft_adapter.h). INVALID_ARGUMENT
// where the base has an adapter already. With kEveryByte, FAILED_PRECONDITION for an adapter that
// names other weights (checkpoint/base_digest.h).
absl::StatusOr<std::unique_ptr<WeightSource>> WithAdapter(std::unique_ptr<WeightSource> base,
                                                          const std::string& directory,
                                                          DigestCheck check);

// The same for a base that several adapters share, and that outlives the source: the adapter in
// `directory` is one of peft, or that of a checkpoint. INVALID_ARGUMENT for a checkpoint without
// adapter; FAILED_PRECONDITION for one whose base has other sizes or other weights.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenAdapterOf(const WeightSource& base,
                                                            const std::string& directory);

// What a job starts from: model.from, with adapter.from where it has one.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenInitialSource(const v1::ModelSpec& model,
                                                                DigestCheck check);

// The same model without adapters: each weight W that has one is W + scale * B A, computed in
// double precision and rounded once.
class MergedWeights : public WeightSource {
 public:
  // Reads all of the adapter; `adapted` must outlive it. REQUIRES: adapted.model() has an adapter.
  static absl::StatusOr<std::unique_ptr<MergedWeights>> Of(const WeightSource& adapted);

  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override { return adapted_.TokenizerJson(); }
  bool Has(const std::string& tensor) const override;
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;

 private:
  // What changes a weight or bias (outputs x inputs); what is empty changes nothing.
  struct Change {
    int64_t inputs = 1;
    std::vector<float> a;           // (rank, inputs)
    std::vector<float> b;           // (outputs, rank)
    std::vector<float> of_rows;     // (outputs)
    std::vector<float> of_columns;  // (inputs)
  };
  class Builder;
  explicit MergedWeights(const WeightSource& adapted) : adapted_(adapted) {}

  const WeightSource& adapted_;
  v1::ModelSpec model_;
  double scale_ = 1;
  int64_t rank_ = 0;
  std::map<std::string, Change> changes_;  // by the tensor
};

}  // namespace tercio::checkpoint
