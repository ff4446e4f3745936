#include "worker/blocks/adapter_tensors.h"

#include <string>
#include <vector>

namespace tercio::blocks {
namespace {

// The tensors of several weights, which lie behind each other, as one; empty where there are none.
WeightRef Joined(const WeightFinder& weights, const std::vector<std::string>& names,
                 const char* kind) {
  WeightRef joined;
  for (const std::string& name : names) {
    const WeightRef part = weights.Find(name + kind);
    if (joined.elements == 0) {
      joined = part;
    } else {
      joined.elements += part.elements;
    }
  }
  return joined;
}

}  // namespace

AdapterTensors FindAdapterTensors(const model::AdaptedPart& part, const WeightFinder& weights) {
  return {.a = weights.Find(part.name + model::kLoraA),
          .b = Joined(weights, part.weights, model::kLoraB),
          .factors = Joined(weights, part.weights, model::kIa3),
          .first_output = part.first_output,
          .outputs = part.outputs};
}

void AddLowRank(const LowRankArgs& args, kernels::Ops& ops) {
  ops.Matmul({.x = args.x,
              .w = args.a,
              .bias = nullptr,
              .y = args.kept,
              .m = args.rows,
              .n = args.rank,
              .k = args.inputs});
  // Scaled here, where it is smallest; the gradient of B reads it so.
  ops.Scale(args.kept, args.scale, args.rows * args.rank);
  const bool whole = args.outputs == args.stride;
  ops.Matmul({.x = args.kept,
              .w = args.b,
              .bias = nullptr,
              .y = whole ? args.y : args.output,
              .m = args.rows,
              .n = args.outputs,
              .k = args.rank,
              .accumulate = whole});
  if (whole) return;
  ops.Columns({.from = args.output,
               .from_stride = args.outputs,
               .to = args.y + args.first,
               .to_stride = args.stride,
               .rows = args.rows,
               .columns = args.outputs,
               .accumulate = true});
}

void ScaleOutput(const ScaleOutputArgs& args, kernels::Ops& ops) {
  const kernels::Values of_part = args.y + args.first;
  ops.Columns({.from = of_part,
               .from_stride = args.stride,
               .to = args.kept,
               .to_stride = args.outputs,
               .rows = args.rows,
               .columns = args.outputs});
  ops.Columns({.from = args.kept,
               .from_stride = args.outputs,
               .to = of_part,
               .to_stride = args.stride,
               .rows = args.rows,
               .columns = args.outputs,
               .times = args.factors});
}

void ScaleInput(kernels::ConstValues x, kernels::ConstValues factors, kernels::Values scaled,
                int64_t rows, int64_t inputs, kernels::Ops& ops) {
  ops.Columns({.from = x,
               .from_stride = inputs,
               .to = scaled,
               .to_stride = inputs,
               .rows = rows,
               .columns = inputs,
               .times = factors});
}

}  // namespace tercio::blocks
