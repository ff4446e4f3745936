// Walks the steps of a program (plan/program.h): hands passes to the model, messages to the
// pipeline's links, weights to WeightGather and gradients to GradientRounds. What it enqueues waits
// on the device for what it reads, and reports where the rank is.
//
// Threads: that of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "kernels/values.h"
#include "plan/memory_map.h"
#include "plan/program.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/gradient_rounds.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/rank_batch.h"
#include "worker/engine/stage_model.h"
#include "worker/engine/step_trace.h"
#include "worker/engine/stream_links.h"
#include "worker/engine/weight_gather.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class ProgramExecutor {
 public:
  // Buffers of gradients between stages; see plan/schedule.h.
  static constexpr int kGradientFlows = 2;

  struct Parts {
    StageModel& model;
    RankBatch& batch;
    StreamLinks& streams;
    PipelineLinks& links;
    blocks::GradientLanes& lanes;
    GradientRounds& rounds;
    WeightGather& gather;
    device::Stream& compute;
    StepTrace& trace;
    progress::Whereabouts& where;
  };
  // `flows`: those of one stage are the first one. All of it outlives the object.
  ProgramExecutor(const v1::RankPlan& plan, const plan::StageShape& shape,
                  std::array<kernels::Values, kGradientFlows> flows, Parts parts)
      : plan_(plan), shape_(shape), flows_(flows), parts_(parts) {}

  // Enqueues a step of the training step `number`. REQUIRES: it is before kFinish; that and what
  // follows are the engine's.
  void Run(const plan::ProgramStep& step, int64_t number);

  // Enqueues a step of an evaluation: without dropout.
  void Evaluate(const plan::ProgramStep& step);
  blocks::MicroBatch BatchOf(const plan::ProgramStep& step, int64_t number) const {
    return parts_.batch.At(number, step.micro_batch, step.chunk, step.slot);
  }

  // Measures `work` for profilers and the trace. While a step is traced, waits for a device that
  // works later; its errors stay in the stream.
  void Measure(const char* name, int micro_batch, int chunk, absl::FunctionRef<void()> work);

 private:
  void RunStep(const plan::ProgramStep& step, const blocks::MicroBatch& batch);
  void Enter(progress::Phase phase, const char* name, const blocks::MicroBatch& batch);
  void BeginPass(const char* name, const blocks::MicroBatch& batch);
  void EndPass(const char* name, const blocks::MicroBatch& batch);
  void ReceiveGradient(const plan::ProgramStep& step, const blocks::MicroBatch& batch);
  // The number that plan::BucketRange.ready_after_layer has for the unit.
  int LayerOf(int unit) const;
  kernels::Values FlowOf(const plan::ProgramStep& step) const {
    // With one stage only the first buffer exists.
    return plan_.layout().pipeline() == 1 ? flows_[0] : flows_[static_cast<size_t>(step.flow)];
  }
  // Bytes of the gradients of all streams.
  int64_t FlowBytes(const blocks::MicroBatch& batch) const;

  const v1::RankPlan& plan_;
  const plan::StageShape& shape_;
  const std::array<kernels::Values, kGradientFlows> flows_;
  const Parts parts_;
  std::optional<device::Range> pass_;
  double pass_start_ = 0;
};

}  // namespace tercio::engine
