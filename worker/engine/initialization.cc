#include "worker/engine/initialization.h"

#include <cmath>

#include "kernels/random.h"

namespace tercio::engine {

std::vector<float> InitialValues(const plan::LogicalTensor& tensor, const v1::RankPlan& plan,
                                 uint64_t seed) {
  const plan::TensorShard shard = plan::ShardOfRank(
      tensor, plan.layout().tensor(), plan.placement().tensor_index(), plan.padded_vocabulary());
  const float constant = tensor.initialization == plan::Initialization::kOnes ? 1.0f : 0.0f;
  std::vector<float> values(static_cast<size_t>(shard.local_rows * shard.local_columns), constant);
  // The deviations are GPT-2's (Radford et al. 2019): products that
  // add to the residual stream, two in each layer, start smaller.
  double deviation = 0.02;
  switch (tensor.initialization) {
    case plan::Initialization::kZeros:
    case plan::Initialization::kOnes:
      return values;
    case plan::Initialization::kResidualNormal:
      deviation /= std::sqrt(2.0 * model::LayersOf(plan.model()));
      break;
    case plan::Initialization::kNormal:
    case plan::Initialization::kUniform:
      break;
  }
  // Numbers are keyed by their place in the whole tensor, so that every layout starts alike.
  for (int64_t row = shard.row_begin; row < shard.row_end; ++row) {
    float* const out = values.data() + (row - shard.row_begin) * shard.local_columns;
    if (tensor.initialization == plan::Initialization::kUniform) {
      // Kaiming's bound for the slope of a leaky ReLU that peft names, sqrt(5).
      kernels::UniformRow(
          {.seed = seed,
           .tensor = tensor.key,
           .row = row,
           .column_begin = shard.column_begin,
           .count = shard.local_columns,
           .bound = static_cast<float>(1 / std::sqrt(static_cast<double>(tensor.columns))),
           .out = out});
      continue;
    }
    kernels::NormalRow({.seed = seed,
                        .tensor = tensor.key,
                        .row = row,
                        .column_begin = shard.column_begin,
                        .count = shard.local_columns,
                        .standard_deviation = static_cast<float>(deviation),
                        .out = out});
  }
  return values;
}

}  // namespace tercio::engine
