// A teacher's largest logits of the rows that samples predict.
//
// Threads: one thread uses a pass at a time; it starts and ends others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/sample_source.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

// The predicted rows of a sample: of each the largest logits, the largest first, of equal ones the
// smaller id.
struct LargestLogits {
  std::vector<int32_t> ids;   // (rows, k)
  std::vector<float> logits;  // (rows, k)
};

// The k largest of a row. DATA_LOSS: one of them is not a number. REQUIRES: 1 <= k <= row.size().
absl::Status FindLargest(absl::Span<const float> row, int64_t k, int32_t* ids, float* logits);

class TeacherPass {
 public:
  // `context`: the most positions of a sample. Errors of WholeModel::Load; INVALID_ARGUMENT for a
  // model that does not predict each token from those before it, and for k above the vocabulary.
  static absl::StatusOr<std::unique_ptr<TeacherPass>> Load(const OpenedModel& opened, int threads,
                                                           int64_t context, int64_t k);

  const v1::ModelSpec& model() const { return model_->spec(); }
  // Samples of a call that uses the model well.
  int64_t samples_at_once() const { return model_->shape().sequences; }

  // `out` gets an entry for each sample. REQUIRES: at most samples_at_once(), not packed, with ids
  // of the vocabulary.
  absl::Status Run(absl::Span<const data::Sample> samples, std::vector<LargestLogits>* out);

 private:
  // A row that is predicted, in the rows of the pass and among those of its sample.
  struct Row {
    int64_t of_pass;
    size_t sample;
    int64_t of_sample;
  };

  TeacherPass(std::unique_ptr<WholeModel> model, int threads, int64_t k);
  // Computes the rows up to the last predicted one of each sample, and lists the latter.
  std::vector<Row> Forward(absl::Span<const data::Sample> samples);
  // Rows that follow each other, at most a chunk.
  absl::Status Keep(absl::Span<const Row> rows, std::vector<LargestLogits>* out);

  const std::unique_ptr<WholeModel> model_;
  const int threads_;
  const int64_t k_;
  int32_t* const inputs_;
};

}  // namespace tercio::inference
