#include "worker/blocks/quantized_weights.h"

#include "common/check.h"

namespace tercio::blocks {

BlockPlace PlaceOfBlocks(const plan::QuantizedTensor& tensor, int tensor_degree, int tensor_index) {
  // Its rows are no token ids, which alone are padded.
  const plan::TensorShard shard = plan::ShardOfRank(tensor.tensor, tensor_degree, tensor_index, 0);
  const int64_t stride = tensor.tensor.columns / kernels::kBaseBlock;
  return {.first = shard.row_begin * stride + shard.column_begin / kernels::kBaseBlock,
          .stride = stride};
}

QuantizedWeights::QuantizedWeights(const plan::StageTensors& tensors, int tensor_degree,
                                   int tensor_index, const plan::Precision& precision,
                                   engine::Arena& arena, device::Stream& stream)
    : tensors_(tensors),
      tensor_degree_(tensor_degree),
      tensor_index_(tensor_index),
      ops_(stream.ops()) {
  // Tables of jobs without such weights lack the buffers.
  if (tensors.quantized.empty()) return;
  codes_ = arena.Get<std::byte>(plan::kBaseBuffer);
  scratch_ = arena.ValuesOf(plan::kDequantizedBuffer, precision);
}

kernels::ConstValues QuantizedWeights::Dequantize(const WeightRef& weight) {
  TERCIO_CHECK(weight.is_quantized());
  if (there_ == weight.quantized) return scratch_;
  there_ = weight.quantized;
  kernels::Values to = scratch_;
  for (int i = 0; i < weight.quantized_count; ++i) {
    const plan::QuantizedTensor& tensor =
        tensors_.quantized[static_cast<size_t>(weight.quantized + i)];
    const BlockPlace place = PlaceOfBlocks(tensor, tensor_degree_, tensor_index_);
    ops_.DequantizeBlocks({.to = to,
                           .codes = codes_ + tensor.codes,
                           .scales = codes_ + tensor.scales,
                           .groups = reinterpret_cast<const float*>(codes_ + tensor.groups),
                           .rows = tensor.rows,
                           .columns = tensor.columns,
                           .first = place.first,
                           .stride = place.stride,
                           .format = tensors_.base_format});
    to += tensor.elements();
  }
  return scratch_;
}

}  // namespace tercio::blocks
