// The four linear parts of the layers of a stage, on the device: in the job's precision, or, if the
// job has FP8 and the sizes allow it, with factors of 8 bits (docs/numerics.md): inputs and weights
// are E4M3, gradients of outputs E5M2. Results are of the same formats either way. In jobs without
// FP8 all calls go to the operations (kernels/ops.h) as they are.
//
// Owns the history that scales follow from (fp8_scaling.h); 8-bit weights, factors, scales and the
// largest magnitudes of a step lie in the arena. A factor lives until the next one of its kind: one
// product follows another, in stream order. Weights are rounded once a step, activations and
// gradients where they are multiplied, or, if a chain of operations (kernels::Chain) makes them, at
// its end, so that a backend can do it in the same pass. The bits are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "plan/fp8.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/fp8_scaling.h"
#include "worker/engine/stage_weights.h"

namespace tercio::engine {

class LinearLayers {
 public:
  // `parameters`: the weights that the model reads. `lanes`: those of this rank.
  LinearLayers(const plan::StageShape& shape, const StageWeights& weights,
               kernels::ConstValues parameters, int lanes, Arena& arena, device::Stream& stream);

  struct Part {
    int layer;  // index in the stage
    plan::Linear linear;
  };

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
  void Forward(const Part& part, const kernels::MatmulArgs& args);
  // The same for a chain of operations that begins with the product.
  void ForwardChain(const Part& part, const kernels::Chain& chain);
  // Runs a chain without a product, the result of which is the input of `reader`: all that its next
  // Forward multiplies, unless parts of it are on other ranks, or it is multiplied in pieces.
  void MakeInput(const Part& reader, kernels::Chain chain);
  // Both: the chain begins with the product of `part`, and ends with the input of `reader`.
  void ForwardAndMakeInput(const Part& part, const Part& reader, const kernels::Chain& chain);

  // The gradients of a part, of all rows that the three calls name: first this one,
  void BeginBackward(const Part& part, kernels::ConstValues dy, int64_t rows);
  // then weight gradients, which together cover the rows (those of a call begin with `row`),
  void BackwardWeight(const Part& part, const kernels::MatmulBackwardWeightArgs& args, int64_t row);
  // then input gradients.
  void BackwardInput(const Part& part, const kernels::MatmulBackwardInputArgs& args, int64_t row);
  // The same for a chain that begins with the input gradient of `part` and makes the gradient of
  // `reader`, of all rows: what its BeginBackward comes with.
  void BackwardAndMakeGradient(const Part& part, const Part& reader, kernels::Chain chain);

 private:
  // Values that have been rounded to 8 bits already, for the products of a part.
  struct Rounded {
    Part reader;
    const std::byte* values;
    int64_t rows;
  };
  static bool Holds(const std::optional<Rounded>& rounded, const Part& reader,
                    kernels::ConstValues values, int64_t rows) {
    return rounded && rounded->reader.layer == reader.layer &&
           rounded->reader.linear == reader.linear && rounded->values == values.data() &&
           rounded->rows == rows;
  }

  static int64_t Slot(const Part& part, plan::Fp8Role role) {
    return int64_t{part.layer} * plan::kFp8SlotsOfLayer + plan::Fp8Slot(part.linear, role);
  }
  kernels::Scale* ScaleOf(const Part& part, plan::Fp8Role role) const {
    return scales_ + Slot(part, role);
  }
  kernels::Scale* WeightScaleOf(const Part& part) const {
    return weight_scales_ + part.layer * static_cast<int64_t>(plan::kLinears.size()) +
           static_cast<int64_t>(part.linear);
  }
  bool Knows(const Part& part, plan::Fp8Role role) const {
    return scaling_.Knows(static_cast<int>(Slot(part, role)));
  }
  void QuantizeWeights();
  kernels::QuantizeArgs RoundingOf(const Part& part, plan::Fp8Role role, kernels::ConstValues x,
                                   int64_t rows, int64_t columns);
  kernels::ScaledMatmulArgs ScaledForward(const Part& part, const kernels::MatmulArgs& args);
  kernels::ScaledMatmulArgs ScaledBackward(const Part& part,
                                           const kernels::MatmulBackwardInputArgs& args,
                                           int64_t row) const;
  // The chain with the product that it is computed by.
  kernels::Chain WithProductOf(const Part& part, const kernels::Chain& chain);
  // The two copies of a weight in eight bits.
  enum class WeightCopy { kPlain, kTransposed };
  kernels::Values WeightOf(const Part& part, WeightCopy copy) const;
  // Computes the scale of a slot without history from these values.
  void ScaleUnknown(const Part& part, plan::Fp8Role role, kernels::ConstValues x, int64_t count);

  const plan::StageShape shape_;
  const int lanes_;
  const StageWeights& weights_;
  const kernels::ConstValues parameters_;
  device::Stream& stream_;
  kernels::Ops& ops_;
  Fp8Scaling scaling_;
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

}  // namespace tercio::engine
