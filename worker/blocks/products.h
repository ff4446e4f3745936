// The products of a stage's layers (model::Product), on the device: in the job's precision, or, if
// the job has FP8 and the sizes allow it, with factors of 8 bits (docs/numerics.md): inputs and
// weights are E4M3, gradients of outputs E5M2. Results are of the same formats either way. In jobs
// without FP8 all calls go to the operations (kernels/ops.h) as they are.
//
// Owns the history that scales follow from (fp8_scaling.h); 8-bit weights, factors, scales and the
// largest magnitudes of a step lie in the arena. A factor lives until the next one of its kind: one
// product follows another, in stream order. Weights are rounded once a step, activations and
// gradients where they are multiplied, or, if a chain of operations (kernels::Chain) makes them, at
// its end, so that a backend can do it in the same pass. The bits are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "plan/fp8.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/blocks/quantized_weights.h"
#include "worker/blocks/weights.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::blocks {

// A product of the stage: layers ascending, in each the order of its declaration.
using ProductId = int;

class Products {
 public:
  // `parameters`: the weights that the model reads. `lanes`: those of this rank.
  Products(const plan::StageShape& shape, const plan::StageUnits& units,
           kernels::ConstValues parameters, int lanes, engine::Arena& arena,
           device::Stream& stream);

  // The first product of a layer of the stage.
  ProductId FirstOfLayer(size_t layer) const { return first_of_layer_[layer]; }
  // Called once for each product, before the first pass.
  void SetWeight(ProductId product, WeightRef weight) { At(product).weight = weight; }
  const model::Product& DeclarationOf(ProductId product) const { return At(product).declared; }

  // Where weights are quantised. Called once, before the first pass; without FP8 only.
  void SetQuantizedWeights(QuantizedWeights weights) { quantized_.emplace(std::move(weights)); }

  // Called before micro-batches: from now on uses the scales of previous steps and the present
  // values of the weights. For a step, largest magnitudes are forgotten, too.
  void BeginPass();
  void BeginStep();
  // After a step's micro-batches, collectively: learns the largest magnitudes of all ranks of both
  // groups. They are known when the stream is synchronized, which is when RecordStep may be called.
  void EndStep(collective::Communicator& tensor, collective::Communicator& data);
  void RecordStep();
  // The weights that the model reads have changed since BeginPass.
  void WeightsChanged() { weights_changed_ = true; }

  // Whether a step enqueues the same operations as the next one will: not as long as a factor is
  // scaled by its own values.
  bool RepeatsItself() const;

  // Has no layers in jobs without FP8.
  Fp8Scaling& scaling() { return scaling_; }

  // In a step, the magnitudes of the factors count for later scales.
  void Forward(ProductId product, const kernels::MatmulArgs& args);
  // The same for a chain of operations that begins with the product.
  void ForwardChain(ProductId product, const kernels::Chain& chain);
  // Runs a chain without a product, the result of which is the input of `reader`: all that its next
  // Forward multiplies, unless parts of it are on other ranks, or it is multiplied in pieces.
  void MakeInput(ProductId reader, kernels::Chain chain);
  // Both: the chain begins with the product of `product`, and ends with the input of `reader`.
  void ForwardAndMakeInput(ProductId product, ProductId reader, const kernels::Chain& chain);

  // The gradients of a product, of all rows that the three calls name: first this one,
  void BeginBackward(ProductId product, kernels::ConstValues dy, int64_t rows);
  // then weight gradients, which together cover the rows (those of a call begin with `row`); of
  // frozen weights without dw,
  void BackwardWeight(ProductId product, const kernels::MatmulBackwardWeightArgs& args,
                      int64_t row);
  // then input gradients.
  void BackwardInput(ProductId product, const kernels::MatmulBackwardInputArgs& args, int64_t row);
  // The same for a chain that begins with the input gradient of `product` and makes the gradient of
  // `reader`, of all rows: what its BeginBackward comes with.
  void BackwardAndMakeGradient(ProductId product, ProductId reader, kernels::Chain chain);

 private:
  // Values that have been rounded to 8 bits already, for a product.
  struct Rounded {
    ProductId reader;
    const std::byte* values;
    int64_t rows;
  };
  static bool Holds(const std::optional<Rounded>& rounded, ProductId reader,
                    kernels::ConstValues values, int64_t rows) {
    return rounded && rounded->reader == reader && rounded->values == values.data() &&
           rounded->rows == rows;
  }

  static int64_t Slot(ProductId product, plan::Fp8Role role) {
    return plan::Fp8Slot(product, role);
  }
  kernels::Scale* ScaleOf(ProductId product, plan::Fp8Role role) const {
    return scales_ + Slot(product, role);
  }
  kernels::Scale* WeightScaleOf(ProductId product) const { return weight_scales_ + product; }
  bool Knows(ProductId product, plan::Fp8Role role) const {
    return scaling_.Knows(static_cast<int>(Slot(product, role)));
  }
  void QuantizeWeights();
  kernels::QuantizeArgs RoundingOf(ProductId product, plan::Fp8Role role, kernels::ConstValues x,
                                   int64_t rows, int64_t columns);
  kernels::ScaledMatmulArgs ScaledForward(ProductId product, const kernels::MatmulArgs& args);
  kernels::ScaledMatmulArgs ScaledBackward(ProductId product,
                                           const kernels::MatmulBackwardInputArgs& args,
                                           int64_t row) const;
  // The chain with the product that it is computed by.
  kernels::Chain WithProductOf(ProductId product, const kernels::Chain& chain);
  // The two copies of a weight in eight bits.
  enum class WeightCopy { kPlain, kTransposed };
  kernels::Values WeightOf(ProductId product, WeightCopy copy) const;
  // Computes the scale of a slot without history from these values.
  void ScaleUnknown(ProductId product, plan::Fp8Role role, kernels::ConstValues x, int64_t count);

  // The product or its input gradient, whose weight is then where it can be read.
  template <typename Args>
  Args WithWeight(ProductId product, Args args) {
    const WeightRef& weight = At(product).weight;
    if (weight.is_quantized()) args.w = quantized_->Dequantize(weight);
    return args;
  }

  struct Entry {
    model::Product declared;
    WeightRef weight;
    plan::Fp8Weight fp8;
  };
  Entry& At(ProductId product) { return entries_[static_cast<size_t>(product)]; }
  const Entry& At(ProductId product) const { return entries_[static_cast<size_t>(product)]; }
  bool TakesFp8(ProductId product) const { return plan::TakesFp8(shape_, At(product).declared); }

  const plan::StageShape shape_;
  const int lanes_;
  std::vector<Entry> entries_;
  std::vector<ProductId> first_of_layer_;
  const kernels::ConstValues parameters_;
  device::Stream& stream_;
  kernels::Ops& ops_;
  Fp8Scaling scaling_;
  std::optional<QuantizedWeights> quantized_;
  bool weights_changed_ = true;
  std::vector<float> learned_;  // largest magnitudes of a step, of all ranks
  // Only with FP8:
  std::byte* eight_bit_weights_ = nullptr;
  kernels::Values input_;
  kernels::Values gradient_;
  kernels::Values turned_gradient_;
  std::optional<Rounded> rounded_input_;     // in input_
  std::optional<Rounded> rounded_gradient_;  // in gradient_ and turned_gradient_
  kernels::Scale* scales_ = nullptr;
  kernels::Scale* weight_scales_ = nullptr;
  float* largest_ = nullptr;
  float* tensor_largest_ = nullptr;
  float* all_largest_ = nullptr;
};

}  // namespace tercio::blocks
