// The gradient buffers of one rank: where each lane is summed, and when two sums become one
// (plan/lanes.h). Weight gradients are written through Accumulate only, so that no operation needs
// to know of lanes.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/ops.h"
#include "plan/lanes.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/weights.h"
#include "worker/engine/arena.h"

namespace tercio::blocks {

class GradientLanes {
 public:
  // The buffers of the memory table (plan::LaneBuffersOf). `buckets`: those of the stage.
  GradientLanes(engine::Arena& arena,
                const google::protobuf::RepeatedPtrField<v1::BucketRange>& buckets, int micro_batch,
                int64_t sequences_per_rank, int lanes_per_rank)
      : buffers_(plan::LaneBuffersOf(micro_batch, sequences_per_rank, lanes_per_rank)),
        micro_batch_(micro_batch),
        sequences_per_rank_(sequences_per_rank),
        lanes_per_rank_(lanes_per_rank) {
    for (const v1::BucketRange& bucket : buckets) bucket_begins_.push_back(bucket.begin());
    std::sort(bucket_begins_.begin(), bucket_begins_.end());
    for (int i = 0; i < buffers_.whole; ++i) {
      whole_.push_back(arena.Floats(absl::StrCat("gradients.", i)));
    }
    for (int i = 0; i < buffers_.shared; ++i) {
      const std::string name = absl::StrCat("gradients.shared.", i);
      shared_.push_back(arena.Floats(name));
      shared_elements_ = arena.Bytes(name) / static_cast<int64_t>(sizeof(float));
    }
  }

  // write(segment, gradients, accumulate): adds the segment's part to `gradients`, or overwrites it
  // if accumulate is false.
  using Write = absl::FunctionRef<void(const plan::LaneSegment&, const Gradients& gradients,
                                       bool accumulate)>;

  // Calls `write` for the segments of a micro-batch in order. `tensors` are all that it writes;
  // each is merged when its lane is complete. REQUIRES: they lie in one bucket (plan/buckets.h).
  void Assign(int micro_batch, std::initializer_list<WeightRef> tensors, kernels::Ops& ops,
              Write write) {
    const int64_t first = FirstOf(tensors);
    for (const plan::LaneSegment& segment : plan::SegmentsOfMicroBatch(
             micro_batch, micro_batch_, sequences_per_rank_, lanes_per_rank_)) {
      plan::LaneLevel level = plan::LevelOf(buffers_, segment.lane);
      write(segment, At(level, first), !segment.starts_lane);
      if (!segment.completes_lane) continue;
      for (int i = 0; i < plan::MergesAfterLane(segment.lane); ++i) {
        const plan::LaneLevel below = plan::LevelBelow(level);
        for (const WeightRef& tensor : tensors) {
          if (tensor.elements == 0) continue;
          ops.Add(tensor.GradientIn(At(below, first)), tensor.GradientIn(At(level, first)),
                  tensor.elements);
        }
        level = below;
      }
    }
  }

  // Like Assign, for operations that can only add: the tensors are zeroed where a lane starts.
  void Accumulate(
      int micro_batch, std::initializer_list<WeightRef> tensors, kernels::Ops& ops,
      absl::FunctionRef<void(const plan::LaneSegment&, const Gradients& gradients)> write) {
    Assign(micro_batch, tensors, ops,
           [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
             for (const WeightRef& tensor : tensors) {
               if (accumulate || tensor.elements == 0) continue;
               ops.Zero(tensor.GradientIn(gradients), tensor.elements);
             }
             write(segment, gradients);
           });
  }

  // The sum over all lanes of this rank, once the last micro-batch is through.
  float* result() const { return whole_.front(); }

 private:
  // The first gradient element of the tensors' bucket.
  int64_t FirstOf(std::initializer_list<WeightRef> tensors) const {
    int64_t first = -1;
    if (shared_.empty()) return first;
    for (const WeightRef& tensor : tensors) {
      if (tensor.elements == 0) continue;
      if (first < 0) {
        first =
            *(std::upper_bound(bucket_begins_.begin(), bucket_begins_.end(), tensor.gradient) - 1);
      }
      // The memory table has room for those of one bucket.
      TERCIO_CHECK_GE(tensor.gradient, first);
      TERCIO_CHECK_LE(tensor.gradient + tensor.elements, first + shared_elements_);
    }
    return first;
  }

  Gradients At(plan::LaneLevel level, int64_t first) const {
    if (level.shared < 0) return {whole_[static_cast<size_t>(level.whole)], 0};
    return {shared_[static_cast<size_t>(level.shared)], first};
  }

  plan::LaneBuffers buffers_;
  std::vector<int64_t> bucket_begins_;  // ascending
  std::vector<float*> whole_;
  std::vector<float*> shared_;
  int64_t shared_elements_ = 0;
  int micro_batch_;
  int64_t sequences_per_rank_;
  int lanes_per_rank_;
};

}  // namespace tercio::blocks
