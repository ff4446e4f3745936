// A norm over rows of the residual stream, with the places of its weights.
#pragma once

#include "kernels/ops.h"
#include "model/options.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/pass.h"
#include "worker/blocks/weights.h"

namespace tercio::blocks {

class NormLayer {
 public:
  // `weights`: where the norm's name is found. `parameters`: the weights that the model reads.
  NormLayer(const model::Norm& norm, int64_t columns, const WeightFinder& weights,
            kernels::ConstValues parameters)
      : options_(norm.options),
        columns_(columns),
        weight_(weights.Find(norm.name + ".weight")),
        bias_(weights.Find(norm.name + ".bias")),
        parameters_(parameters) {}

  // y, mean and rstd of the local rows of x.
  kernels::LayerNormArgs Args(const Pass& pass, kernels::ConstValues x, kernels::Values y,
                              float* mean, float* rstd) const {
    return {.x = x,
            .weight = weight_.In(parameters_),
            .bias = bias_.In(parameters_),
            .y = y,
            .mean = mean,
            .rstd = rstd,
            .rows = pass.local_rows,
            .columns = columns_,
            .eps = options_.eps,
            .rms = options_.rms,
            .unit_offset = options_.unit_offset};
  }

  // What becomes of dx, which may be dy where it is replaced.
  enum class Change { kReplace, kAdd };
  void Backward(const Pass& pass, kernels::ConstValues dy, kernels::ConstValues x,
                const float* mean, const float* rstd, kernels::Values dx, Change change,
                kernels::Ops& ops, GradientLanes& lanes) const;

 private:
  model::NormOptions options_;
  int64_t columns_;
  WeightRef weight_;
  WeightRef bias_;
  kernels::ConstValues parameters_;
};

}  // namespace tercio::blocks
