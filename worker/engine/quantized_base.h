// The matrices of a stage that are kept as codes of few bits (plan::QuantizedTensor): how they are
// made of a model's weights, and how they are saved and loaded again.
//
// Weights are quantised piece by piece as they arrive, and never there as a whole. The scales of a
// matrix wait on the host until its last piece has come, 1/16 byte for each weight; tensor ranks
// then learn those of the others, for the mean of all scales, and the groups of 256 that cross the
// ranks' parts, are the whole matrix's. So codes depend on no layout.
//
// Threads: that of the engine. Loading the last piece of a matrix that tensor ranks cut is
// collective over these: all load their matrices in the order of `ValueSlices`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/state_slices.h"

namespace tercio::engine {

class QuantizedBase {
 public:
  // The arguments outlive it.
  QuantizedBase(const plan::StageTensors& tensors, const v1::RankPlan& plan, Arena& arena,
                device::Stream& stream, collective::Communicator& tensor_group);

  // This rank's part of each matrix as the model has it: what Load takes.
  const std::vector<v1::TensorSlice>& ValueSlices() const { return value_slices_; }
  // Values [first, first + values.size()) of a slice, row by row; those of a slice come in order.
  // INVALID_ARGUMENT: they do not, are no whole blocks, or not finite.
  absl::Status Load(size_t slice, int64_t first, absl::Span<const float> values);

  // Quantises what the seed makes of all matrices. Not collective: every rank computes the whole.
  absl::Status Initialize(uint64_t seed);

  // What checkpoints have of them: codes, codes of scales, and groups of each. They refer to this.
  void AddParts(StateParts* parts);

 private:
  friend class BasePart;

  struct Pending {
    size_t slice = 0;
    int64_t loaded = 0;         // elements
    std::vector<float> scales;  // of the blocks so far
  };

  bool IsCut(const plan::QuantizedTensor& tensor) const;
  absl::Status Complete(const plan::QuantizedTensor& tensor, const std::vector<float>& mine);
  absl::Status WriteScales(const plan::QuantizedTensor& tensor, absl::Span<const float> mine,
                           absl::Span<const float> whole);
  absl::StatusOr<std::vector<float>> ScalesOfAll(const plan::QuantizedTensor& tensor,
                                                 const std::vector<float>& mine);
  absl::Status QuantizeRows(const plan::QuantizedTensor& tensor, int64_t first,
                            absl::Span<const float> values, std::vector<float>* scales);

  const plan::StageTensors& tensors_;
  const v1::RankPlan& plan_;
  device::Stream& stream_;
  collective::Communicator& tensor_group_;
  std::byte* base_ = nullptr;
  float* scratch_ = nullptr;
  int64_t scratch_elements_ = 0;
  std::vector<v1::TensorSlice> value_slices_;
  Pending pending_;
};

}  // namespace tercio::engine
