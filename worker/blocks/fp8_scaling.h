// The scales of the factors of FP8 products: delayed scaling (Micikevicius et al. 2022;
// "DelayedScaling" of NVIDIA's Transformer Engine). A factor's scale follows from the largest
// magnitudes that it had in the last kFp8History steps, so that it is known before the factor is.
// No history is kept for weights, which are known. Pure.
//
// 16 steps: enough that a factor whose larger values come every few steps keeps room for them, and
// few enough that one outlier costs the smallest numbers their bits for a short time only. Scales
// are powers of two, so values may grow by up to two from one step to the next; values that grow
// more are clipped to the largest number until the step after.
//
// All ranks of a stage record the same numbers and so have the same scales; they are stored in
// checkpoints, a tensor for each layer. A factor without history is scaled by its own values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/values.h"
#include "plan/fp8.h"

namespace tercio::blocks {

// The logical tensor of a checkpoint that holds the history of a layer (of the model): for each of
// kFp8SlotsOfLayer the magnitudes, newest first, zeros after them.
inline constexpr char kFp8TensorPrefix[] = "training.fp8.layers.";
std::string Fp8Tensor(int model_layer);

class Fp8Scaling {
 public:
  // `layers`: of the stage. Slots are numbered layer by layer.
  explicit Fp8Scaling(int layers)
      : history_(static_cast<size_t>(layers * plan::kFp8StateOfLayer)) {}

  int slots() const { return static_cast<int>(history_.size()) / plan::kFp8History; }

  // Whether the slot's scale follows from earlier steps.
  bool Knows(int slot) const;
  // Scales of every slot; 1 for slots without history.
  std::vector<kernels::Scale> Scales() const;

  // Records the largest magnitudes of a step: `ranks` times those of all slots, of one rank each. A
  // slot in which one is not finite stays as it is.
  void Record(absl::Span<const float> largest);

  // A layer's part, kFp8StateOfLayer numbers. INVALID_ARGUMENT if they are not magnitudes.
  absl::Span<const float> state(int layer) const;
  absl::Status Restore(int layer, absl::Span<const float> state);

 private:
  absl::Span<const float> HistoryOf(int slot) const {
    return absl::MakeConstSpan(history_).subspan(static_cast<size_t>(slot * plan::kFp8History),
                                                 plan::kFp8History);
  }

  std::vector<float> history_;  // (slots, kFp8History)
};

}  // namespace tercio::blocks
