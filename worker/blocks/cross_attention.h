// Attention to the rows of the model's first stream (model/blocks/cross_attention.h), executed.
//
// The gradient of those rows is added to that of the first stream, block after block: first summed
// over tensor ranks, so that the sums do not depend on where stages begin.
#pragma once

#include "model/blocks/cross_attention.h"
#include "worker/blocks/adapters.h"
#include "worker/blocks/block.h"

namespace tercio::blocks {

class CrossAttention : public Block {
 public:
  CrossAttention(const model::CrossAttentionOptions& options, const WeightFinder& weights,
                 int layer, ProductId first, const Tools& tools);

  ProductId reader() const override { return query_product_; }
  WeightRef output_bias() const override { return {}; }
  void Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x, After after) override;
  void Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
              kernels::Values branch) override;
  void Restore(const Pass&, const Frame&) override {}
  void BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                      GradientLanes& lanes) override;
  void BackwardFirstWeight(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                           GradientLanes& lanes) override;
  void BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx,
                     bool accumulate) override;

 private:
  using Fields = model::CrossAttentionFields;
  // Keys and values of the first stream.
  void MakeKeys(const Pass& pass, const Frame& frame);
  // Without sizes of the batch, lengths and dropout.
  kernels::AttentionArgs ArgsOf(const Pass& pass, const Frame& frame) const;
  void AttendParts(const Pass& pass, const Frame& frame);
  kernels::Dropout DropoutOf(const Pass& pass) const;
  void BackwardMemory(const Pass& pass, const Frame& frame, GradientLanes& lanes);

  const model::CrossAttentionOptions options_;
  const int64_t heads_;  // on this rank
  const int64_t width_;
  const Tools& tools_;
  const int layer_;
  const ProductId query_product_;
  const ProductId keys_product_;
  const ProductId output_product_;
  const WeightRef query_;
  const WeightRef keys_;  // key and value as one matrix
  const WeightRef output_;
  Adapters query_adapters_, keys_adapters_, output_adapters_;
  const kernels::Values query_gradient_;   // (rows, width)
  const kernels::Values result_gradient_;  // (rows, width)
  const kernels::Values keys_gradient_;    // (rows of the first stream, 2 width)
  const kernels::Values memory_gradient_;  // (rows of the first stream, hidden)
  float* scratch_;
};

}  // namespace tercio::blocks
