// The tensors of an adapter beside a part of a product, and what they do to the product's result:
// the same arithmetic, to the bit, whether a model has one adapter or its rows choose among
// several.
//
// All work goes to the stream of the operations.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "model/description.h"
#include "worker/blocks/weights.h"

namespace tercio::blocks {

struct AdapterTensors {
  WeightRef a;        // (rank, inputs)
  WeightRef b;        // (outputs, rank)
  WeightRef factors;  // (outputs), or (inputs)
  int64_t first_output = 0;
  int64_t outputs = 0;
};
// `weights`: of the block.
AdapterTensors FindAdapterTensors(const model::AdaptedPart& part, const WeightFinder& weights);

// y += scale * (x A^T) B^T, in columns [first, first + outputs) of y.
struct LowRankArgs {
  kernels::ConstValues x;  // (rows, inputs)
  kernels::ConstValues a;  // (rank, inputs)
  kernels::ConstValues b;  // (outputs, rank)
  kernels::Values y;       // (rows, stride)
  kernels::Values kept;    // (rows, rank): scale * x A^T
  kernels::Values output;  // (rows, outputs), scratch; unused where the columns are all of y
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t rank = 0;
  int64_t outputs = 0;
  int64_t first = 0;
  int64_t stride = 0;
  float scale = 1;
};
void AddLowRank(const LowRankArgs& args, kernels::Ops& ops);

// Multiplies columns [first, first + outputs) of y with factors.
struct ScaleOutputArgs {
  kernels::Values y;             // (rows, stride)
  kernels::ConstValues factors;  // (outputs)
  kernels::Values kept;          // (rows, outputs): the columns as they were
  int64_t rows = 0;
  int64_t outputs = 0;
  int64_t first = 0;
  int64_t stride = 0;
};
void ScaleOutput(const ScaleOutputArgs& args, kernels::Ops& ops);

// scaled (rows x inputs) = x times factors (inputs).
void ScaleInput(kernels::ConstValues x, kernels::ConstValues factors, kernels::Values scaled,
                int64_t rows, int64_t inputs, kernels::Ops& ops);

}  // namespace tercio::blocks
