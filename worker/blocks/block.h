// A block of a layer (model/blocks/), executed: from the rows that the norm before it has made to
// its branch, which the layer adds to the residual stream; and back.
//
// A block writes its fields in the frame that it is given, its scratch, and gradients of its
// weights; all work goes to the stream of its operations. One instance exists for each layer.
#pragma once

#include <memory>
#include <string>

#include "kernels/ops.h"
#include "model/options.h"
#include "plan/stage_units.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/pass.h"
#include "worker/blocks/products.h"
#include "worker/blocks/tensor_group.h"
#include "worker/blocks/weights.h"
#include "worker/engine/arena.h"

namespace tercio::blocks {

// What blocks work with; all of it outlives them.
struct Tools {
  const plan::StageShape& shape;
  kernels::Ops& ops;
  TensorGroup& tensor;
  Products& products;
  kernels::ConstValues parameters;  // the weights that the model reads
  DropoutSource dropout;
  engine::Arena& arena;

  kernels::Values Values(const std::string& name) const {
    return arena.ValuesOf(name, shape.precision);
  }
  // Scratch that a block declares.
  kernels::Values Scratch(const char* name) const;
};

// What Forward's result is for: the last product, or, where it is computed again, the backward
// pass.
enum class After { kOutput, kBackward };

class Block {
 public:
  virtual ~Block() = default;

  // The product that reads x.
  virtual ProductId reader() const = 0;
  // Is added after the branch's sum over tensor ranks.
  virtual WeightRef output_bias() const = 0;

  // x (rows x hidden): all rows. Computes everything that the last product reads.
  virtual void Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                       After after) = 0;
  // The last product: rows of the piece of this rank's part of the branch (rows x hidden).
  virtual void Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
                      kernels::Values branch) = 0;
  // Makes again the fields that are kept unless that is cheap.
  virtual void Restore(const Pass& pass, const Frame& frame) = 0;

  // In this order. From the gradient of the branch (all rows) to that of the first product's
  // result, and the gradients of all weights but the first product's;
  virtual void BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                              GradientLanes& lanes) = 0;
  // gradients of the first product's weights;
  virtual void BackwardFirstWeight(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                                   GradientLanes& lanes) = 0;
  // this rank's part of the gradient of x (rows x hidden), written or added.
  virtual void BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx,
                             bool accumulate) = 0;
};

// `weights`: of the block. `layer`: of the model, which keys its dropout. `stream`: the layer's.
// `first`: its products.
std::unique_ptr<Block> MakeBlock(const model::BlockOptions& options, const WeightFinder& weights,
                                 int layer, int stream, ProductId first, const Tools& tools);

// dw = dy^T x, per lane, of `rows`, which are those of the micro-batch.
void BackwardWeight(const MicroBatch& batch, const PassRows& rows, ProductId product,
                    WeightRef weight, WeightRef bias, kernels::ConstValues dy,
                    kernels::ConstValues x, int64_t n, int64_t k, const Tools& tools,
                    GradientLanes& lanes);

}  // namespace tercio::blocks
