// What becomes of a stage's gradients after the backward pass has written them: sums over data
// ranks, bucket by bucket beside the pass, over the parts of sequences, and of both uses of a tied
// table; then the squares of their norm. Where data ranks divide the state (plan/state_shards.h),
// each has the sums of its own shard only; where they divide gradients, these are summed over ranks
// lane by lane, and lanes are added as in a binary counter, on the shard.
//
// Threads: that of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/ops.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/communicators.h"
#include "worker/engine/exchange_vector.h"
#include "worker/engine/packed_exchange.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/shared_gradients.h"
#include "worker/engine/step_trace.h"
#include "worker/engine/tied_gradients.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class GradientRounds {
 public:
  // Sums over data ranks run on the second stream. All of it outlives the object.
  struct Streams {
    device::Stream& compute;
    device::Stream& communication;
    device::Event& bucket_ready;
    // One for each place of the gradients of a bucket (GradientLanes::place).
    std::array<device::Event*, 2> summed;
  };
  GradientRounds(const v1::JobSpec& spec, const v1::RankPlan& plan, const plan::StageShape& shape,
                 const plan::StageTensors& tensors, const plan::RankShards& shards,
                 blocks::GradientLanes& lanes, PackedExchange& packed, Arena& arena,
                 const Communicators& communicators, PipelineLinks& links, Streams streams,
                 StepTrace& trace, progress::Whereabouts& where);

  // Before the backward pass of a micro-batch. The stream waits for buffers that are being summed.
  void BeginBackward(int micro_batch);
  // The gradients of a layer are complete in a round (plan/program.h): starts the sum over data
  // ranks of its bucket (BucketRange, by ready_after_layer), while the pass continues.
  void Reduce(int layer, int round);

  // The gradients, or those of the shard, are complete where the stream is after this.
  void Finish();
  // Summed gradients, at ShardPart::sum_offset. REQUIRES: Finish.
  const float* sums() const { return sums_.front(); }

  // Enqueues this rank's part of the norm: data ranks have the same gradients, and divide them.
  // REQUIRES: Finish, and counts of zero in `exchange`.
  void MeasureSquares(const ExchangeVector& exchange);

 private:
  void ReduceBuckets(int layer);
  void ReduceUnits(int layer, int round);
  void AddToSums(const plan::StateUnit& unit, const float* sum, int round);
  void SumOverReplicas(const plan::StateUnit& unit);
  int MicroBatchesPerRound() const { return plan_.layout().micro_batches() / rounds_; }
  // Runs `wait`, which makes the compute stream wait for sums.
  void Waited(absl::FunctionRef<void()> wait);
  void SumOverSequenceParts();
  std::pair<int64_t, int64_t> MeasuredPart(size_t tensor) const;

  const v1::TrainingSpec& training_;
  const v1::RankPlan& plan_;
  const plan::StageTensors& tensors_;
  const plan::RankShards& shards_;
  const bool sequence_parallel_;
  blocks::GradientLanes& lanes_;
  PackedExchange& packed_;
  const int rounds_;
  // Levels of the counter of rounds (plan::SumLevels); where gradients are not divided, the one of
  // the lanes.
  std::vector<float*> sums_;
  const Communicators& communicators_;
  PipelineLinks& links_;
  const Streams streams_;
  StepTrace& trace_;
  progress::Whereabouts& where_;
  const TiedGradients tied_;
  const SharedGradients shared_;
  float* const data_scratch_;
  float* const tensor_scratch_;
  std::vector<kernels::SquaredTensor> squares_;  // kept, so that a step allocates nothing
};

}  // namespace tercio::engine
