// The gradient of a tied embedding: that of the lookup and that of the head are summed on their
// own, and added once, on both stages that hold the table.
//
// Threads: that of the engine.
#pragma once

#include "plan/model_tensors.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/engine/pipeline_links.h"

namespace tercio::engine {

class TiedGradients {
 public:
  // `received`: memory for the other stage's part, where there is one. `tensors` outlive it.
  // Without `is_tied` there is nothing to add.
  TiedGradients(const v1::RankPlan& plan, const plan::StageTensors& tensors, bool is_tied,
                float* received);

  // Whether they are added before the sum over data ranks (plan::JoinsTiedGradientsFirst), as soon
  // as the lookup's is complete: the plan's buckets then leave out the head's.
  bool comes_first() const { return comes_first_; }

  // Enqueues the addition for a stage's `gradients`, with the exchange between first and last
  // stage. Does nothing where the stage has no tied table.
  void Join(float* gradients, PipelineLinks& links, device::Stream& stream) const;

 private:
  const plan::StageTensor* lookup_ = nullptr;
  const plan::StageTensor* head_ = nullptr;
  const int stages_;
  float* const received_;
  bool comes_first_ = false;
};

}  // namespace tercio::engine
