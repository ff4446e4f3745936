// The gradients of tensors that several layers share. Each layer sums its own (worker/blocks); here
// they are added in the order of layers, whatever stages these are on: the sums travel once along
// the pipeline, chunk after chunk, and the result goes back to all stages.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/engine/pipeline_links.h"

namespace tercio::engine {

class SharedGradients {
 public:
  // `sums`: memory for the sums of all shared tensors. The arguments outlive it.
  SharedGradients(const v1::JobSpec& job, const v1::RankPlan& plan,
                  const plan::StageTensors& tensors, const plan::RankShards& shards, float* sums);

  // Enqueues the additions for a stage's `gradients` (ShardPart::sum_offset): afterwards the entry
  // that has the stage's parameter has the sum, or the shard's part of it. Does nothing where no
  // tensor is shared.
  void Join(float* gradients, PipelineLinks& links, device::Stream& stream) const;

 private:
  struct Use {
    int64_t sum;       // place in the sums, of the shard's part
    int64_t gradient;  // place in the stage's gradients
    int64_t elements;
    int chunk;
    bool own_parameter;
  };

  // What comes from the chunk before, with the gradients of the chunk's layers, goes to the next.
  void AddChunk(int chunk, float* gradients, PipelineLinks& links, device::Stream& stream) const;
  void SpreadBack(PipelineLinks& links) const;

  const v1::RankPlan& plan_;
  float* const sums_;
  int64_t elements_ = 0;  // of all sums
  std::vector<Use> uses_;
};

}  // namespace tercio::engine
