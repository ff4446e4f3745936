// The scale of fp16's loss gradient: as large as the gradients' range allows, found by trial
// (Micikevicius et al. 2018). Pure.
//
// A step whose gradients overflow uses up one of kHysteresis chances; with none left it halves the
// scale. kWindow steps in a row without overflow double the scale and restore all chances; nothing
// else does. These are the rules and constants of Megatron-LM.
#pragma once

#include <cstdint>

namespace tercio::engine {

class LossScaler {
 public:
  static constexpr double kInitialScale = 4294967296.0;
  static constexpr double kLeastScale = 1;
  static constexpr double kGrowth = 2;
  static constexpr double kBackoff = 0.5;
  static constexpr int kWindow = 1000;
  static constexpr int kHysteresis = 2;

  LossScaler() = default;
  LossScaler(double scale, int good_steps, int chances)
      : scale_(scale), good_steps_(good_steps), chances_(chances) {}

  double scale() const { return scale_; }
  int good_steps() const { return good_steps_; }  // in a row, since the scale last grew
  int chances() const { return chances_; }        // may be negative

  // A smaller scale would be needed, but there is none.
  bool exhausted() const { return scale_ <= kLeastScale && chances_ <= 0; }

  // Takes the outcome of a step, that of its gradients.
  enum class Outcome { kFinite, kOverflow };
  void Update(Outcome outcome);

 private:
  double scale_ = kInitialScale;
  int good_steps_ = 0;
  int chances_ = kHysteresis;
};

}  // namespace tercio::engine
