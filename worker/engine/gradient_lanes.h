// The gradient buffers of one rank: where each lane is summed, and when two sums become one
// (plan/lanes.h). Weight gradients are written through Accumulate only, so that no operation needs
// to know of lanes.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"
#include "plan/lanes.h"
#include "worker/engine/arena.h"
#include "worker/engine/stage_weights.h"

namespace tercio::engine {

class GradientLanes {
 public:
  // The gradient buffers of the memory table, in order.
  static std::vector<float*> BuffersIn(Arena& arena, int lanes_per_rank) {
    std::vector<float*> buffers;
    for (int i = 0; i < plan::GradientBuffers(lanes_per_rank); ++i) {
      buffers.push_back(arena.Floats("gradients." + std::to_string(i)));
    }
    return buffers;
  }

  // buffers: those of BuffersIn.
  GradientLanes(std::vector<float*> buffers, int micro_batch, int64_t sequences_per_rank,
                int lanes_per_rank)
      : buffers_(std::move(buffers)),
        micro_batch_(micro_batch),
        sequences_per_rank_(sequences_per_rank),
        lanes_per_rank_(lanes_per_rank) {}

  // write(segment, gradients, accumulate): adds the segment's part to `gradients`, or overwrites it
  // if accumulate is false.
  using Write =
      absl::FunctionRef<void(const plan::LaneSegment&, float* gradients, bool accumulate)>;

  // Calls `write` for the segments of a micro-batch in order. `tensors` are all that it writes;
  // each is merged when its lane is complete.
  void Assign(int micro_batch, std::initializer_list<WeightRef> tensors, kernels::Ops& ops,
              Write write) {
    for (const plan::LaneSegment& segment : plan::SegmentsOfMicroBatch(
             micro_batch, micro_batch_, sequences_per_rank_, lanes_per_rank_)) {
      const int top = plan::AccumulationBuffer(segment.lane);
      write(segment, buffers_[static_cast<size_t>(top)], !segment.starts_lane);
      if (!segment.completes_lane) continue;
      for (int i = 0; i < plan::MergesAfterLane(segment.lane); ++i) {
        float* into = buffers_[static_cast<size_t>(top - 1 - i)];
        const float* from = buffers_[static_cast<size_t>(top - i)];
        for (const WeightRef& tensor : tensors) {
          if (tensor.elements == 0) continue;
          ops.Add(into + tensor.gradient, from + tensor.gradient, tensor.elements);
        }
      }
    }
  }

  // Like Assign, for operations that can only add: the tensors are zeroed where a lane starts.
  void Accumulate(int micro_batch, std::initializer_list<WeightRef> tensors, kernels::Ops& ops,
                  absl::FunctionRef<void(const plan::LaneSegment&, float* gradients)> write) {
    Assign(micro_batch, tensors, ops,
           [&](const plan::LaneSegment& segment, float* gradients, bool accumulate) {
             for (const WeightRef& tensor : tensors) {
               if (accumulate || tensor.elements == 0) continue;
               ops.Zero(gradients + tensor.gradient, tensor.elements);
             }
             write(segment, gradients);
           });
  }

  // The sum over all lanes of this rank, once the last micro-batch is through.
  float* result() const { return buffers_.front(); }

 private:
  std::vector<float*> buffers_;
  int micro_batch_;
  int64_t sequences_per_rank_;
  int lanes_per_rank_;
};

}  // namespace tercio::engine
