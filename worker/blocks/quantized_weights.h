// The weights of products that are kept as codes of few bits (plan::QuantizedTensor): the values of
// one product at a time, in scratch of the arena, as the job's precision has them.
//
// Threads: that of the engine. Work is enqueued on the stream, in whose order the values are those
// of the last product that was asked for.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "plan/precision.h"
#include "worker/blocks/weights.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::blocks {

class QuantizedWeights {
 public:
  // `tensor_index`: of this rank. `tensors` and the arena outlive it.
  QuantizedWeights(const plan::StageTensors& tensors, int tensor_degree, int tensor_index,
                   const plan::Precision& precision, engine::Arena& arena, device::Stream& stream);

  // REQUIRES: weight.is_quantized().
  kernels::ConstValues Dequantize(const WeightRef& weight);
  // The scratch holds no weights any more, or a recorded sequence of operations begins.
  void Forget() { there_ = -1; }

 private:
  const plan::StageTensors& tensors_;
  const int tensor_degree_;
  const int tensor_index_;
  const std::byte* codes_ = nullptr;
  kernels::Values scratch_;
  kernels::Ops& ops_;
  int there_ = -1;  // the first tensor of the product whose weights the scratch holds
};

// The place of the part of a quantised matrix that a tensor rank has: the number of its first block
// in the whole matrix, and blocks of a whole row.
struct BlockPlace {
  int64_t first;
  int64_t stride;
};
BlockPlace PlaceOfBlocks(const plan::QuantizedTensor& tensor, int tensor_degree, int tensor_index);

}  // namespace tercio::blocks
