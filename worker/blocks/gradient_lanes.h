// The gradient buffers of one rank: where each lane is summed, and when two sums become one
// (plan/lanes.h). Weight gradients are written through Accumulate only, so that no operation needs
// to know of lanes. Where ranks keep sums of their shards only (plan/state_shards.h), a lane is
// summed over ranks when it is complete, and nothing is merged here.
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
#include "plan/model_tensors.h"
#include "plan/packed_units.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/weights.h"
#include "worker/engine/arena.h"

namespace tercio::blocks {

class GradientLanes {
 public:
  // kWhole: sums of lanes, merged. kRounds: each lane alone, in a buffer of all gradients;
  // kBuckets: in one of a bucket, or two in turns.
  enum class Kind { kWhole, kRounds, kBuckets };
  static Kind KindOf(const v1::RankPlan& plan) {
    if (!plan::DividesGradients(plan.layout())) return Kind::kWhole;
    return plan::MicroBatchesAreRounds(plan.layout(), plan.lanes()) ? Kind::kBuckets
                                                                    : Kind::kRounds;
  }

  // The buffers of the memory table. `format`: each lane's sum is rounded to it before it is added
  // to others; where ranks sum lanes of their shards only, that is done as they are sent
  // (worker/engine/packed_exchange.h).
  GradientLanes(engine::Arena& arena, const v1::RankPlan& plan, const plan::StageTensors& tensors,
                int64_t sequences_per_rank, kernels::BlockFormat format)
      : kind_(KindOf(plan)),
        micro_batch_(plan.layout().micro_batch()),
        sequences_per_rank_(sequences_per_rank),
        lanes_per_rank_(plan::LanesPerDataRank(plan.lanes(), plan.layout().data())) {
    for (const v1::BucketRange& bucket : plan.stage().buckets()) {
      bucket_begins_.push_back(bucket.begin());
    }
    std::sort(bucket_begins_.begin(), bucket_begins_.end());
    if (kind_ != Kind::kWhole) {
      for (const char* name : {"gradients.0", "gradients.1"}) {
        // A stage of which all is frozen has an empty one.
        if (arena.Bytes(name) == 0 && !whole_.empty()) continue;
        whole_.push_back(arena.Floats(name));
        whole_elements_.push_back(arena.Bytes(name) / static_cast<int64_t>(sizeof(float)));
      }
      return;
    }
    for (const plan::StageTensor& entry : tensors.tensors) {
      if (entry.frozen) continue;
      const kernels::BlockFormat of_tensor = plan::FormatOfTensor(entry, format);
      if (of_tensor == kernels::BlockFormat::kNone) continue;
      rounded_.push_back({entry.gradient_offset, entry.elements, of_tensor});
    }
    buffers_ = plan::LaneBuffersOf(micro_batch_, sequences_per_rank_, lanes_per_rank_);
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
  // each that is not frozen is merged when its lane is complete. REQUIRES: these lie in one bucket
  // (plan/buckets.h).
  void Assign(int micro_batch, std::initializer_list<WeightRef> tensors, kernels::Ops& ops,
              Write write) {
    const int64_t first = FirstOf(tensors);
    if (kind_ == Kind::kBuckets && first >= 0) {
      if (bucket_ < 0) bucket_ = first;
      // A bucket is written as a whole before the next one.
      TERCIO_CHECK_EQ(bucket_, first);
    }
    for (const plan::LaneSegment& segment : plan::SegmentsOfMicroBatch(
             micro_batch, micro_batch_, sequences_per_rank_, lanes_per_rank_)) {
      if (kind_ != Kind::kWhole) {
        write(segment, At(first), !segment.starts_lane);
        continue;
      }
      plan::LaneLevel level = plan::LevelOf(buffers_, segment.lane);
      write(segment, At(level, first), !segment.starts_lane);
      if (!segment.completes_lane) continue;
      for (const WeightRef& tensor : tensors) {
        if (tensor.has_gradient()) Round(tensor, At(level, first), ops);
      }
      for (int i = 0; i < plan::MergesAfterLane(segment.lane); ++i) {
        const plan::LaneLevel below = plan::LevelBelow(level);
        for (const WeightRef& tensor : tensors) {
          if (!tensor.has_gradient()) continue;
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
               if (accumulate || !tensor.has_gradient()) continue;
               ops.Zero(tensor.GradientIn(gradients), tensor.elements);
             }
             write(segment, gradients);
           });
  }

  // The sum over all lanes of this rank, once the last micro-batch is through. REQUIRES: kWhole.
  float* result() const { return whole_.front(); }

  Kind kind() const { return kind_; }
  // The sum of the lane in progress of the bucket that begins at element `first` of the stage.
  // REQUIRES: not kWhole.
  Gradients At(int64_t first) const {
    return {whole_[place_], kind_ == Kind::kBuckets ? first : 0};
  }
  // The buffer in which a bucket is, of places(), and those after it the next bucket.
  size_t place() const { return place_; }
  size_t places() const { return whole_.size(); }
  void NextPlace() {
    if (kind_ != Kind::kBuckets) return;
    place_ = (place_ + 1) % whole_.size();
    bucket_ = -1;
  }
  int64_t BucketOf(int64_t gradient) const {
    return *(std::upper_bound(bucket_begins_.begin(), bucket_begins_.end(), gradient) - 1);
  }

 private:
  struct RoundedTensor {
    int64_t gradient;
    int64_t elements;
    kernels::BlockFormat format;
  };

  // Rounds the sum of a lane, tensor by tensor: `joined` may be several.
  void Round(const WeightRef& joined, const Gradients& gradients, kernels::Ops& ops) const {
    const int64_t end = joined.gradient + joined.elements;
    auto tensor = std::lower_bound(
        rounded_.begin(), rounded_.end(), joined.gradient,
        [](const RoundedTensor& entry, int64_t at) { return entry.gradient < at; });
    for (; tensor != rounded_.end() && tensor->gradient < end; ++tensor) {
      float* const values = gradients.data + (tensor->gradient - gradients.first);
      ops.RoundBlocks(values, values, tensor->elements, tensor->format);
    }
  }

  // The first gradient element of the tensors' bucket.
  int64_t FirstOf(std::initializer_list<WeightRef> tensors) const {
    int64_t first = -1;
    if (shared_.empty() && kind_ != Kind::kBuckets) return first;
    for (const WeightRef& tensor : tensors) {
      if (!tensor.has_gradient()) continue;
      if (first < 0) first = BucketOf(tensor.gradient);
      // The memory table has room for those of one bucket.
      const int64_t room = kind_ == Kind::kBuckets ? whole_elements_[place_] : shared_elements_;
      TERCIO_CHECK_GE(tensor.gradient, first);
      TERCIO_CHECK_LE(tensor.gradient + tensor.elements, first + room);
    }
    return first;
  }

  Gradients At(plan::LaneLevel level, int64_t first) const {
    if (level.shared < 0) return {whole_[static_cast<size_t>(level.whole)], 0};
    return {shared_[static_cast<size_t>(level.shared)], first};
  }

  const Kind kind_;
  std::vector<RoundedTensor> rounded_;  // ascending
  plan::LaneBuffers buffers_;
  size_t place_ = 0;
  int64_t bucket_ = -1;                 // that is being written; -1: none yet. Of kBuckets
  std::vector<int64_t> bucket_begins_;  // ascending
  std::vector<float*> whole_;
  std::vector<int64_t> whole_elements_;  // of kRounds and kBuckets
  std::vector<float*> shared_;
  int64_t shared_elements_ = 0;
  int micro_batch_;
  int64_t sequences_per_rank_;
  int lanes_per_rank_;
};

}  // namespace tercio::blocks
