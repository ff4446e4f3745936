#include "worker/blocks/tensor_group.h"

namespace tercio::blocks {

TensorGroup::TensorGroup(const plan::StageShape& shape, int index, engine::Arena& arena,
                         device::Stream& stream, collective::Communicator& group,
                         std::optional<OverlappedSums> beside)
    : shape_(shape),
      index_(index),
      stream_(stream),
      group_(group),
      overlapped_(beside),
      gathered_(arena.ValuesOf("workspace.gathered", shape.precision)),
      local_sum_(arena.ValuesOf("workspace.local_sum", shape.precision)),
      scratch_(arena.Floats("tensor_scratch")) {}

kernels::Values TensorGroup::SumRows(const PassRows& pass, kernels::Values partial) {
  if (!shape_.sequence_parallel) {
    group_.AllReduceSum(stream_, partial, pass.rows * shape_.hidden, collective::SumOrder::kRanks,
                        scratch_);
    return partial;
  }
  group_.ReduceScatterSum(stream_, partial, local_sum_, pass.local_rows * shape_.hidden, scratch_);
  return local_sum_;
}

kernels::Values TensorGroup::SumProduct(
    const PassRows& pass, kernels::Values partial,
    absl::FunctionRef<void(const plan::RowPiece& piece)> multiply) {
  if (!overlapped_.has_value() || shape_.tensor_overlap == 1) {
    multiply({0, pass.rows});
    return SumRows(pass, partial);
  }
  for (const plan::RowPiece& piece : plan::PiecesOfRows(pass.rows, shape_.tensor_overlap)) {
    multiply(piece);
    stream_.Record(*overlapped_->product_done);
    overlapped_->stream->Wait(*overlapped_->product_done);
    group_.AllReduceSum(*overlapped_->stream, partial + piece.first * shape_.hidden,
                        piece.count * shape_.hidden, collective::SumOrder::kRanks, scratch_);
  }
  const progress::Whereabouts::Join join(*overlapped_->where, group_.group());
  stream_.Join(*overlapped_->stream);
  return partial;
}

kernels::ConstValues TensorGroup::GatherRows(const PassRows& pass, kernels::ConstValues local) {
  if (!shape_.sequence_parallel) return local;
  group_.AllGather(stream_, local, gathered_, pass.local_rows * shape_.hidden);
  return gathered_;
}

}  // namespace tercio::blocks
