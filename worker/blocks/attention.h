// Self-attention (model/blocks/attention.h), executed.
#pragma once

#include "model/blocks/attention.h"
#include "worker/blocks/adapters.h"
#include "worker/blocks/block.h"

namespace tercio::blocks {

class Attention : public Block {
 public:
  Attention(const model::AttentionOptions& options, const WeightFinder& weights, int layer,
            int stream, ProductId first, const Tools& tools);

  ProductId reader() const override { return qkv_product_; }
  WeightRef output_bias() const override { return output_bias_; }
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
  using Fields = model::AttentionFields;
  // Rotates queries and keys by their positions; kBack: their gradients.
  enum class Rotation { kForward, kBack };
  void Rotate(const Pass& pass, kernels::Values qkv, int64_t first_position, int64_t rows,
              Rotation direction);
  // Norms of the heads of queries and keys, of `raw` into `qkv`, which may be one.
  void NormHeads(const Pass& pass, const Frame& frame, kernels::ConstValues raw,
                 kernels::Values qkv);
  void BackwardHeadNorms(const Pass& pass, const Frame& frame, GradientLanes& lanes);
  // Without sizes of the batch, lengths and dropout.
  kernels::AttentionArgs ArgsOf(kernels::Values qkv, kernels::Values out, float* lse) const;
  // Attention of the batch's parts: their rows of query, key and value, in the scratch, join those
  // of the slot.
  void AttendParts(const Pass& pass, const Frame& frame);
  // The same with pages: in one call for all parts.
  void AttendPages(const Pass& pass, const Frame& frame);
  kernels::Dropout DropoutOf(const Pass& pass) const;
  // For sequences of `tokens`.
  kernels::AttentionBias BiasOf(int64_t tokens) const;
  // Gradients of queries, keys and values of some sequences; `dbias` may be null.
  void BackwardSequences(const Pass& pass, const Frame& frame, int64_t first, int64_t count,
                         float* dbias);

  const model::AttentionOptions options_;
  const model::AttentionWidths at_;
  const Tools& tools_;
  const int layer_;
  const int stream_;
  const ProductId qkv_product_;
  const ProductId output_product_;
  const WeightRef qkv_, qkv_bias_;         // query, key and value as one matrix
  const WeightRef query_norm_, key_norm_;  // (head dimension)
  const WeightRef output_, output_bias_;
  const WeightRef relative_bias_;  // (heads, buckets)
  Adapters qkv_adapters_, output_adapters_;
  const kernels::Values qkv_gradient_;     // (rows, qkv)
  const kernels::Values result_gradient_;  // (rows, queries)
  const float* rotary_;                    // cosines and sines of every position
  const int32_t* buckets_;                 // of all distances between positions of the stream
  float* scratch_;
};

}  // namespace tercio::blocks
