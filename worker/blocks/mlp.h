// The feed-forward part (model/blocks/mlp.h), executed.
#pragma once

#include "model/blocks/mlp.h"
#include "worker/blocks/adapters.h"
#include "worker/blocks/block.h"

namespace tercio::blocks {

class Mlp : public Block {
 public:
  Mlp(const model::MlpOptions& options, const WeightFinder& weights, int layer, ProductId first,
      const Tools& tools);

  ProductId reader() const override { return up_product_; }
  WeightRef output_bias() const override { return down_bias_; }
  void Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x, After after) override;
  void Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
              kernels::Values branch) override;
  void Restore(const Pass& pass, const Frame& frame) override;
  void BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                      GradientLanes& lanes) override;
  void BackwardFirstWeight(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                           GradientLanes& lanes) override;
  void BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx,
                     bool accumulate) override;

 private:
  using Fields = model::MlpFields;
  kernels::Chain Activate(const Pass& pass, const Frame& frame) const;

  const model::MlpOptions options_;
  const Tools& tools_;
  const kernels::Activation function_;
  const int64_t width_;     // of this rank, behind the activation
  const int64_t up_width_;  // before it
  const ProductId up_product_;
  const ProductId down_product_;
  const WeightRef up_, up_bias_;  // in a gated MLP, gate and up as one matrix
  const WeightRef down_, down_bias_;
  Adapters up_adapters_, down_adapters_;
  const kernels::Values up_gradient_;    // (rows, up width)
  const kernels::Values gate_gradient_;  // (rows, width), where it cannot be made in place
};

}  // namespace tercio::blocks
