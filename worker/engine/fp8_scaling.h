// By how much the factors of FP8 products are scaled: delayed scaling (Micikevicius et al. 2022;
// "DelayedScaling" of NVIDIA's Transformer Engine). A factor's scale follows from the largest
// magnitudes that it had in the last kFp8History steps, so that it is known before the factor is.
// Nothing is kept of weights: they are known. Pure.
//
// 16 steps: enough that a factor whose larger values come every few steps keeps room for them, and
// few enough that one outlier takes the smallest numbers' bits for a moment only. Scales are powers
// of two, so values may grow by up to two from one step to the next; what grows more becomes the
// largest number until the step after.
//
// All ranks of a stage record the same numbers and so have the same scales; they lie in
// checkpoints, a tensor for each layer. A factor of which nothing is known yet is scaled by its own
// values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/values.h"
#include "plan/fp8.h"

namespace tercio {

// The logical tensor of a checkpoint that holds what is known of a layer (of the model): for each
// of kFp8SlotsOfLayer the magnitudes, newest first, zeros behind them.
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
  // Scales of every slot; 1 where nothing is known.
  std::vector<kernels::Scale> Scales() const;

  // The largest magnitudes of a step: `ranks` times those of all slots, of one rank each. A slot in
  // which one is not finite stays as it is.
  void Record(absl::Span<const float> largest);

  // A layer's part, kFp8StateOfLayer numbers. INVALID_ARGUMENT where they are no magnitudes.
  absl::Span<const float> state(int layer) const;
  absl::Status Restore(int layer, absl::Span<const float> state);

 private:
  absl::Span<const float> HistoryOf(int slot) const {
    return absl::MakeConstSpan(history_).subspan(static_cast<size_t>(slot * plan::kFp8History),
                                                 plan::kFp8History);
  }

  std::vector<float> history_;  // (slots, kFp8History)
};

}  // namespace tercio
