#include "worker/engine/loss_scaler.h"

#include <algorithm>

namespace tercio::engine {

void LossScaler::Update(Outcome outcome) {
  if (outcome == Outcome::kOverflow) {
    good_steps_ = 0;
    // A single overflow is often an accident of its batch.
    if (--chances_ <= 0) scale_ = std::max(scale_ * kBackoff, kLeastScale);
    return;
  }
  if (++good_steps_ < kWindow) return;
  good_steps_ = 0;
  chances_ = kHysteresis;
  // There is no upper bound: a scale that is too large overflows and is halved again.
  scale_ *= kGrowth;
}

}  // namespace tercio::engine
