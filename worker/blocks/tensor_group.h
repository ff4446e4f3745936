// The exchanges of a stage's rows between its tensor ranks (Shoeybi et al. 2019, section 3; with
// parts of the rows on each rank: Korthikanti et al. 2022).
#pragma once

#include <optional>

#include "absl/functional/function_ref.h"
#include "plan/stage_units.h"
#include "worker/blocks/pass.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/progress/whereabouts.h"

namespace tercio::blocks {

// A stream for sums over tensor ranks that run beside products (parallelism.tensor_overlap).
struct OverlappedSums {
  device::Stream* stream;
  device::Event* product_done;
  progress::Whereabouts* where;
};

class TensorGroup {
 public:
  // Without `beside` nothing overlaps.
  TensorGroup(const plan::StageShape& shape, int index, engine::Arena& arena,
              device::Stream& stream, collective::Communicator& group,
              std::optional<OverlappedSums> beside);

  int index() const { return index_; }
  // Whether ranks hold parts of the residual stream's rows.
  bool divides_rows() const { return shape_.sequence_parallel; }
  // Where rows are divided, gradients of whole tensors are summed over tensor ranks later: of those
  // that every rank computes alike, one rank gives all.
  bool gives_whole_tensors() const { return !divides_rows() || index_ == 0; }
  collective::Communicator& communicator() { return group_; }
  float* scratch() { return scratch_; }

  // Sums all rows (rows x hidden), which are rounded, over tensor ranks; returns this rank's part:
  // `partial` itself, or a buffer that is valid until the next call.
  kernels::Values SumRows(const PassRows& pass, kernels::Values partial);
  // Sums the rows of `partial` that `multiply` writes, like SumRows; in pieces, so that one is
  // summed while the next is computed.
  kernels::Values SumProduct(const PassRows& pass, kernels::Values partial,
                             absl::FunctionRef<void(const plan::RowPiece& piece)> multiply);
  // All rows, from every tensor rank's part; valid until the next call.
  kernels::ConstValues GatherRows(const PassRows& pass, kernels::ConstValues local);

 private:
  const plan::StageShape& shape_;
  const int index_;
  device::Stream& stream_;
  collective::Communicator& group_;
  const std::optional<OverlappedSums> overlapped_;
  kernels::Values gathered_;
  kernels::Values local_sum_;
  float* scratch_;
};

}  // namespace tercio::blocks
