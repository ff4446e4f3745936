#include "worker/blocks/norm.h"

namespace tercio::blocks {

void NormLayer::Backward(const Pass& pass, kernels::ConstValues dy, kernels::ConstValues x,
                         const float* mean, const float* rstd, kernels::Values dx, Change change,
                         kernels::Ops& ops, GradientLanes& lanes) const {
  lanes.Accumulate(pass.batch.index, {weight_, bias_}, ops,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const LocalRows part = LocalPart(pass, segment);
                     if (part.count == 0) return;
                     const int64_t at = part.begin * columns_;
                     ops.LayerNormBackward({.dy = dy + at,
                                            .x = x + at,
                                            .weight = weight_.In(parameters_),
                                            .mean = mean + part.begin,
                                            .rstd = rstd + part.begin,
                                            .dx = dx + at,
                                            .dweight = weight_.GradientIn(gradients),
                                            .dbias = bias_.GradientIn(gradients),
                                            .rows = part.count,
                                            .columns = columns_,
                                            .rows_per_leaf = pass.tokens,
                                            .accumulate = change == Change::kAdd,
                                            .rms = options_.rms,
                                            .unit_offset = options_.unit_offset});
                   });
}

}  // namespace tercio::blocks
