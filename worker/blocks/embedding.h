// The first unit of a model: rows of the tables of tokens, positions and token types, their norm
// where the model has one, and dropout. The token table is cut over tensor ranks by its rows.
#pragma once

#include <optional>

#include "absl/types/span.h"
#include "model/options.h"
#include "worker/blocks/block.h"
#include "worker/blocks/norm.h"

namespace tercio::blocks {

class Embedding {
 public:
  // Where a slot keeps what the norm reads: the sum (local rows x hidden), means and rstds. Unused
  // without a norm.
  struct Kept {
    kernels::Values sum;
    float* mean;
    float* rstd;
  };

  Embedding(const model::EmbeddingOptions& options, const WeightFinder& weights,
            const Tools& tools);

  // One stream; `out`: local rows x hidden.
  void Forward(const Pass& pass, const Kept& kept, kernels::Values out);

  // A stream, and the gradient of its Forward's result, which is overwritten.
  struct Part {
    const Pass& pass;
    kernels::Values flow;
  };
  // All streams of a micro-batch.
  void Backward(absl::Span<const Part> parts, const Kept& kept, GradientLanes& lanes);

 private:
  static const int32_t* TypesAt(const MicroBatch& batch, int64_t row) {
    return batch.types == nullptr ? nullptr : batch.types + row;
  }
  static const int32_t* PositionsAt(const MicroBatch& batch, int64_t row) {
    return batch.positions == nullptr ? nullptr : batch.positions + row;
  }
  // The row of a sequence's first token in the table of positions.
  int64_t FirstPosition() const { return options_.first_position * options_.hidden; }
  kernels::Dropout DropoutOf(const Pass& pass, int64_t first_row) const;
  void AddPositions(const Pass& pass, kernels::Values sum);
  static const int32_t* InputsOf(const Pass& pass) {
    return pass.stream == 0 ? pass.batch.inputs : pass.batch.decoder_inputs;
  }
  void BackwardRows(const Pass& pass, const Kept& kept, kernels::Values flow, GradientLanes& lanes);
  void BackwardPositions(const Pass& pass, kernels::Values flow, GradientLanes& lanes);

  const model::EmbeddingOptions options_;
  const Tools& tools_;
  const float scale_;  // of the token's row
  const int64_t vocabulary_begin_;
  const WeightRef token_, position_, type_;
  const std::optional<NormLayer> norm_;
  const kernels::Values all_rows_;  // (rows, hidden): where not all of them stay here
};

}  // namespace tercio::blocks
