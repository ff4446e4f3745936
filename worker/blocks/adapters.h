// The adapters of a product (model/adapters.h), executed: what they change in its inputs and
// results, and the gradients of their tensors. A product without adapters has none of these, and
// every call does nothing.
//
//   forward    x' = Input(x), y = product(x'), Forward(x, y)
//   backward   BackwardOutput(dy), gradients of the product, BackwardInput(dx)
//
// Writes its field in the frame that it is given, scratch, and gradients of its tensors; all work
// goes to the stream of its operations. `rows` are those of the product: the pass's, or those of
// its memory; pieces count from their first.
//
// Where the model has no adapters, the parts of a forward pass may choose some (chosen_adapter.h):
// their rows are changed in the same places.
#pragma once

#include <cstdint>
#include <vector>

#include "model/description.h"
#include "model/options.h"
#include "worker/blocks/adapter_tensors.h"
#include "worker/blocks/block.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/pass.h"
#include "worker/blocks/products.h"
#include "worker/blocks/weights.h"

namespace tercio::blocks {

class Adapters {
 public:
  // `weights`: of the block. `layer`: of the model.
  Adapters(const model::AdapterOptions& options, ProductId product, const WeightFinder& weights,
           int layer, const Tools& tools);

  bool empty() const { return parts_.empty(); }

  // Whether Forward changes anything in this pass.
  bool ChangesOutput(const Pass& pass) const;

  // What the product multiplies, of a piece (piece x inputs): x, or scratch.
  kernels::ConstValues Input(const Pass& pass, const plan::RowPiece& piece, kernels::ConstValues x);
  // Changes the product's result (piece x outputs). x: as the block has it (piece x inputs).
  // `frame`: the block's.
  void Forward(const Pass& pass, const PassRows& rows, const Frame& frame,
               const plan::RowPiece& piece, kernels::ConstValues x, kernels::Values y);

  // From the gradient of the result (all rows x outputs) to that of the product's, in place, where
  // outputs are scaled; gradients of A, B and factors of outputs go to `lanes`.
  void BackwardOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                      kernels::ConstValues x, kernels::Values dy, GradientLanes& lanes);
  // The same for a product that is cut by columns, whose results are not scaled.
  void BackwardOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                      kernels::ConstValues x, kernels::ConstValues dy, GradientLanes& lanes);
  // From the gradient of the product's input to that of x, of a piece, in place. REQUIRES:
  // BackwardOutput was called since another product's adapters were; where inputs are scaled, the
  // piece is all rows.
  void BackwardInput(const Pass& pass, const PassRows& rows, const plan::RowPiece& piece,
                     kernels::ConstValues x, kernels::Values dx, GradientLanes* lanes);

 private:
  struct Part : AdapterTensors {
    int64_t first_kept = 0;  // elements of a row in the field, of the parts before
    uint32_t site = 0;
  };
  bool IsLowRank() const { return options_.kind == model::AdapterKind::kLowRank; }
  bool ScalesInput() const { return !IsLowRank() && product_.summed == model::Summed::kForward; }
  bool Drops(const Pass& pass) const { return pass.batch.training && options_.dropout > 0; }
  // dropout(x) in scratch, or x itself.
  kernels::ConstValues Dropped(const Pass& pass, const PassRows& rows, const Part& part,
                               const plan::RowPiece& piece, kernels::ConstValues x);
  kernels::Dropout DropoutOf(const Pass& pass, const PassRows& rows, const Part& part,
                             int64_t first_row) const;
  // Whether the part is all of the product's result.
  bool IsWhole(const Part& part) const { return part.outputs == product_.outputs; }
  // What the part keeps, in the block's frame; and the gradient of A x, in scratch.
  kernels::Values KeptOf(const PassRows& rows, const Frame& frame, const Part& part) const;
  kernels::Values GradientOf(const PassRows& rows, const Part& part) const;
  void ForwardPart(const Pass& pass, const PassRows& rows, const Frame& frame, const Part& part,
                   const plan::RowPiece& piece, kernels::ConstValues x, kernels::Values y);
  // The same of the adapters that rows choose.
  kernels::ConstValues ChosenInput(const Pass& pass, const plan::RowPiece& piece,
                                   kernels::ConstValues x) const;
  void ForwardChosen(const Pass& pass, const plan::RowPiece& piece, kernels::ConstValues x,
                     kernels::Values y) const;
  void BackwardLowRank(const Pass& pass, const PassRows& rows, const Frame& frame, const Part& part,
                       kernels::ConstValues x, kernels::ConstValues dy, GradientLanes& lanes);
  void BackwardScaledOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                            const Part& part, kernels::Values dy, GradientLanes& lanes);
  void BackwardScaledInput(const Pass& pass, const PassRows& rows, const Part& part,
                           kernels::ConstValues x, kernels::Values dx, GradientLanes& lanes);
  // Adds the sums of the columns of `products` (rows x columns) to the gradient of factors.
  void SumFactors(const Pass& pass, const PassRows& rows, const WeightRef& factors,
                  kernels::ConstValues products, int64_t columns, GradientLanes& lanes);

  const model::AdapterOptions options_;
  const ProductId id_;
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
