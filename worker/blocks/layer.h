// A layer of a model (model/layer.h), executed: its blocks, and the residual stream between them.
//
// An addition to the residual stream and the norm that reads its result are one call, so that a
// backend can do both in one pass. That norm may be the next unit's: hence a layer is told what
// follows it, and says with what it begins.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/layer.h"
#include "worker/blocks/block.h"
#include "worker/blocks/norm.h"

namespace tercio::blocks {

// What is computed from a new value of the residual stream, in the same call: the norm of it, if
// there is one, for the product that reads the result, if there is one.
struct Continuation {
  std::optional<kernels::LayerNormArgs> norm;
  std::optional<ProductId> reader;
};

class Layer {
 public:
  // What becomes of the gradient of the layer's input: nothing where all before it is frozen.
  enum class Input { kTakesGradient, kIgnoresGradient };
  // `weights`: of the layer. `model_layer` keys its dropout. `first`: its products.
  Layer(const model::Layer& declared, const model::LayerDescription& description,
        const WeightFinder& weights, int model_layer, ProductId first, Input input,
        const Tools& tools);

  // What the layer computes first from its input, which is in its frame.
  Continuation Entry(const Pass& pass, const Frame& frame) const;

  // After the entry: from the input to `output` (local rows x hidden), then what follows.
  void Forward(const Pass& pass, const Frame& frame, kernels::Values output,
               const Continuation& next);
  // Makes the fields again that Forward did not keep.
  void Restore(const Pass& pass, const Frame& frame);
  // `flow` (local rows x hidden): the gradient of the output becomes that of the input, unless it
  // is ignored.
  void Backward(const Pass& pass, const Frame& frame, kernels::Values flow, GradientLanes& lanes);

 private:
  struct Branch {
    std::unique_ptr<Block> block;
    std::optional<NormLayer> norm;
    std::optional<NormLayer> result_norm;
    uint32_t dropout_site;
    model::BranchPlaces at;
    bool has_gradients;       // of the block or the norm of its result
    bool norm_has_gradients;  // that it reads through
  };
  struct Sublayer {
    std::vector<Branch> branches;
    std::optional<NormLayer> sum_norm;
    model::SublayerPlaces at;
  };

  bool IsLast(size_t sublayer) const { return sublayer + 1 == sublayers_.size(); }
  // The norm of x before a branch.
  kernels::LayerNormArgs NormOf(const Pass& pass, const Frame& frame, const Sublayer& sublayer,
                                const Branch& branch) const;
  Continuation EntryOf(const Pass& pass, const Frame& frame, size_t sublayer) const;
  void Compute(const Pass& pass, const Frame& frame, const Sublayer& sublayer, size_t branch,
               After after);
  // x' of a branch: the rows that are here.
  kernels::ConstValues InputOf(const Frame& frame, const Sublayer& sublayer,
                               const Branch& branch) const;
  void ForwardSublayer(const Pass& pass, const Frame& frame, size_t sublayer,
                       kernels::Values output, const Continuation& next);
  // The result of a branch, of the local rows, after its sum and its norm.
  kernels::ConstValues ResultOf(const Pass& pass, const Frame& frame, const Branch& branch);
  void RestoreAll(const Pass& pass, const Frame& frame);
  void RestoreCheap(const Pass& pass, const Frame& frame);

  void BackwardSublayer(const Pass& pass, const Frame& frame, size_t sublayer, kernels::Values flow,
                        GradientLanes& lanes);
  void BackwardWeights(const Pass& pass, const Frame& frame, const Sublayer& sublayer,
                       const Branch& branch, kernels::ConstValues dsum, GradientLanes& lanes);
  // Adds to the flow what comes through the branch.
  void BackwardInput(const Pass& pass, const Frame& frame, const Sublayer& sublayer, size_t branch,
                     kernels::Values flow, GradientLanes& lanes);
  // The gradient of a branch (all rows) from that of the sum it was added to.
  kernels::ConstValues BackwardSum(const Pass& pass, const Frame& frame, const Branch& branch,
                                   kernels::ConstValues dsum, GradientLanes& lanes);
  void RunContinuation(kernels::Chain chain, const Continuation& next);

  const Tools& tools_;
  const int model_layer_;
  std::vector<Sublayer> sublayers_;
  size_t backward_end_ = 0;                // the first sublayer that has a backward pass
  bool stops_at_branches_ = false;         // the gradient of its input is not needed
  const kernels::Values branch_;           // (rows, hidden)
  const kernels::Values branch_gradient_;  // (local rows, hidden), with dropout
  const kernels::Values norm_gradient_;    // (rows, hidden)
  kernels::Values sum_gradient_;           // (local rows, hidden), where branches are parallel
  kernels::Values result_gradient_;        // (local rows, hidden), where results have norms
};

}  // namespace tercio::blocks
