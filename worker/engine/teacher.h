// The teacher of a job (plan/distillation.h) on one rank: its slice of the teacher's model, and
// what that makes of the micro-batches of a global batch. The last stage keeps what the teacher's
// head reads, and asks the head for logits chunk by chunk, as the student's does.
//
// Threads: that of the engine.
#pragma once

#include <memory>
#include <vector>

#include "plan/distillation.h"
#include "plan/model_tensors.h"
#include "plan/program.h"
#include "plan/stage_units.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/teacher_logits.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/communicators.h"
#include "worker/engine/load_target.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/rank_batch.h"
#include "worker/engine/stage_model.h"
#include "worker/engine/staged_copy.h"
#include "worker/engine/state_slices.h"
#include "worker/engine/state_store.h"
#include "worker/engine/stream_links.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class Teacher : public blocks::TeacherLogits, public LoadTarget {
 public:
  // What the student's engine has, which outlives the teacher. `arena`: of the whole rank.
  struct Parts {
    Arena& arena;
    const Communicators& communicators;
    device::Stream& compute;
    StagedCopy& staged;
    progress::Whereabouts& where;
  };
  // `job` and `plan`: of the student. REQUIRES: plan::HasTeacher(job.training()).
  Teacher(const v1::JobSpec& job, const v1::RankPlan& plan, Parts parts);

  // The forward passes of all micro-batches that `batch` has read, stage after stage. REQUIRES: the
  // weights are loaded. Collective.
  void Run(const RankBatch& batch);
  // Logits of a micro-batch of the last Run. REQUIRES: the last stage.
  kernels::ConstValues Of(const blocks::Pass& pass, const blocks::HeadChunk& chunk) override;

  const std::vector<v1::TensorSlice>& NeededSlices() const override { return needed_; }
  absl::Status Load(int64_t slice_index, int64_t first, absl::Span<const float> values) override;
  std::shared_ptr<float> LoadPlace(int64_t slice_index) override;

 private:
  void RunStep(const plan::ProgramStep& step, const blocks::MicroBatch& batch);
  // (rows, hidden) of a micro-batch.
  kernels::Values OutputsOf(int micro_batch) const {
    return outputs_ + int64_t{micro_batch} * shape_.head_stream().rows * shape_.hidden;
  }

  const v1::JobSpec job_;
  const v1::RankPlan plan_;
  const Parts parts_;
  Arena arena_;
  const plan::StageShape shape_;
  const plan::StageTensors tensors_;
  const plan::RankShards shards_;
  StageModel model_;
  PipelineLinks links_;
  StreamLinks streams_;
  const plan::Program program_;
  const StateStore store_;
  const std::vector<StateSlice> weights_;
  std::vector<v1::TensorSlice> needed_;
  const kernels::Values outputs_;  // (micro-batches, rows, hidden); last stage
};

}  // namespace tercio::engine
