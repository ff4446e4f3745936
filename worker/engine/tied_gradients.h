// The gradient of a tied embedding: that of the lookup and that of the head are summed on their
// own, and added once, on both stages that hold the table; where data ranks divide the state, each
// adds its own part.
//
// Threads: that of the engine.
#pragma once

#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/engine/pipeline_links.h"

namespace tercio::engine {

class TiedGradients {
 public:
  // `received`: memory for the other stage's part, where there is one. `tensors` outlive it.
  // Without `is_tied` there is nothing to add.
  TiedGradients(const v1::RankPlan& plan, const plan::StageTensors& tensors,
                const plan::RankShards& shards, bool is_tied, float* received);

  // Whether they are added before the sum over data ranks (plan::JoinsTiedGradientsFirst), as soon
  // as the lookup's is complete: the plan's buckets then leave out the head's.
  bool comes_first() const { return comes_first_; }
  // Whether the gradient at this place is the head's, and part of another one by then.
  bool IsJoinedFirst(int64_t gradient_offset) const {
    return comes_first_ && gradient_offset == head_->gradient_offset;
  }

  // Enqueues the addition for a stage's `gradients` (ShardPart::sum_offset), with the exchange
  // between first and last stage. Does nothing where the stage has no tied table.
  void Join(float* gradients, PipelineLinks& links, device::Stream& stream) const;

 private:
  const plan::StageTensor* lookup_ = nullptr;
  const plan::StageTensor* head_ = nullptr;
  const int stages_;
  float* const received_;
  bool comes_first_ = false;
  // What of the two uses is added.
  plan::ShardPart lookup_part_;
  plan::ShardPart head_part_;
};

}  // namespace tercio::engine
