// The adapters of a product (model/adapters.h), executed: y += scale * B (A dropout(x)) for the
// parts of its outputs that have one, and the gradients of A, B and x. A product without adapters
// has none of these and does nothing.
//
// Writes its field in the frame that it is given, scratch, and gradients of A and B; all work goes
// to the stream of its operations.
#pragma once

#include <cstdint>
#include <vector>

#include "model/description.h"
#include "model/options.h"
#include "worker/blocks/block.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/pass.h"
#include "worker/blocks/products.h"
#include "worker/blocks/weights.h"

namespace tercio::blocks {

class Adapters {
 public:
  // `weights`: of the block. `layer`: of the model.
  Adapters(const model::LowRankOptions& options, ProductId product, const WeightFinder& weights,
           int layer, const Tools& tools);

  bool empty() const { return parts_.empty(); }

  // Adds to the product's result. x and y begin with the first row of the piece (rows x inputs,
  // rows x outputs); `frame`: the block's.
  void Forward(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
               kernels::ConstValues x, kernels::Values y);
  // Gradients of A and B from that of the product's result (all rows x outputs), which stays as it
  // is. x: as in Forward, all rows.
  void BackwardWeights(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                       kernels::ConstValues dy, GradientLanes& lanes);
  // Adds to the gradient of x (piece x inputs), which begins with the first row of the piece.
  // REQUIRES: BackwardWeights was called since another product's adapters were.
  void BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx);

 private:
  struct Part {
    WeightRef a;  // (rank, inputs)
    WeightRef b;  // (outputs, rank)
    int64_t first_output;
    int64_t outputs;
    uint32_t site;
  };
  bool Drops(const Pass& pass) const { return pass.batch.training && options_.dropout > 0; }
  // dropout(x) in scratch, or x itself.
  kernels::ConstValues InputOf(const Pass& pass, const Part& part, const plan::RowPiece& piece,
                               kernels::ConstValues x);
  kernels::Dropout DropoutOf(const Pass& pass, const Part& part, int64_t first_row) const;
  // Whether the part is all of the product's result.
  bool IsWhole(const Part& part) const { return part.outputs == product_.outputs; }
  // A x of a part (rows x rank), in the block's frame.
  kernels::Values KeptOf(const Pass& pass, const Frame& frame, size_t part) const;
  kernels::Values GradientOf(const Pass& pass, size_t part) const;

  const model::LowRankOptions options_;
  const model::Product product_;
  const int layer_;
  const Tools& tools_;
  const int64_t first_channel_;  // of the inputs of this rank, as dropout counts them
  std::vector<Part> parts_;
  kernels::Values input_;     // (rows, inputs)
  kernels::Values output_;    // (rows, outputs of the largest part)
  kernels::Values gradient_;  // of A x of all parts, one behind the other: (rows, rank) each
};

}  // namespace tercio::blocks
