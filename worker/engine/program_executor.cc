#include "worker/engine/program_executor.h"

#include "common/check.h"

namespace tercio::engine {

using blocks::MicroBatch;
using plan::ProgramStep;
using Kind = ProgramStep::Kind;

void ProgramExecutor::Run(const ProgramStep& step, int64_t number) {
  RunStep(step, BatchOf(step, number));
}

void ProgramExecutor::Evaluate(const ProgramStep& step) {
  MicroBatch batch = BatchOf(step, 0);
  batch.training = false;
  RunStep(step, batch);
}

void ProgramExecutor::RunStep(const ProgramStep& step, const MicroBatch& batch) {
  const auto measure = [&](const char* name, absl::FunctionRef<void()> work) {
    Measure(name, batch.index, batch.chunk, work);
  };
  const auto flow = [&] { return FlowOf(step); };
  PipelineLinks& links = parts_.links;
  switch (step.kind) {
    case Kind::kReceiveActivation:
      return parts_.streams.Receive(batch);
    case Kind::kBeginForward:
      Enter(progress::Phase::kForward, "forward", batch);
      measure("wait activation", [&] { parts_.streams.Wait(batch.slot); });
      return BeginPass("forward", batch);
    case Kind::kForward:
      parts_.gather.AwaitUnit(step.unit);
      return parts_.model.ForwardUnit(batch, step.unit);
    case Kind::kEndForward:
      return EndPass("forward", batch);
    case Kind::kSendActivation:
      return measure("send activation", [&] { parts_.streams.Send(batch); });
    case Kind::kReceiveGradient:
      return ReceiveGradient(step, batch);
    case Kind::kBeginBackward:
      Enter(progress::Phase::kBackward, "backward", batch);
      measure("wait gradient", [&] {
        links.WaitReceive(PipelineLinks::kGradient, step.flow);
        // The last stage receives no gradient that would have waited for this buffer.
        links.WaitSend(PipelineLinks::kGradient, step.flow);
      });
      BeginPass("backward", batch);
      return parts_.rounds.BeginBackward(batch.index);
    case Kind::kBackward:
      parts_.gather.AwaitUnit(step.unit);
      return parts_.model.BackwardUnit(batch, step.unit, flow(), parts_.batch.LossesAt(batch),
                                       parts_.lanes);
    case Kind::kEndBackward:
      return EndPass("backward", batch);
    case Kind::kSendGradient:
      return measure("send gradient", [&] {
        links.Send(PipelineLinks::kGradient, step.flow, flow().data(), FlowBytes(batch),
                   PreviousStage(plan_));
      });
    case Kind::kGather:
      return parts_.gather.GatherLayer(static_cast<size_t>(step.unit), step.kept);
    case Kind::kReduce:
      return parts_.rounds.Reduce(LayerOf(step.unit), step.round);
    case Kind::kFinish:
    case Kind::kJudge:
    case Kind::kFetch:
    case Kind::kUpdate:
    case Kind::kPublish:
      TERCIO_CHECK(false);
  }
}

// An evaluation says where it is by itself.
void ProgramExecutor::Enter(progress::Phase phase, const char* name, const MicroBatch& batch) {
  if (batch.training) parts_.where.BeginAction(phase, name, batch.index);
}

void ProgramExecutor::BeginPass(const char* name, const MicroBatch& batch) {
  pass_.emplace(parts_.compute, name, batch.index);
  if (!parts_.trace.on()) return;
  parts_.compute.Synchronize().IgnoreError();
  pass_start_ = StepTrace::Now();
}

void ProgramExecutor::EndPass(const char* name, const MicroBatch& batch) {
  if (parts_.trace.on()) {
    parts_.compute.Synchronize().IgnoreError();
    parts_.trace.Add(
        {name, batch.index, batch.chunk, pass_start_, StepTrace::Now() - pass_start_, false});
  }
  pass_.reset();
}

void ProgramExecutor::Measure(const char* name, int micro_batch, int chunk,
                              absl::FunctionRef<void()> work) {
  const device::Range range(parts_.compute, name, micro_batch);
  if (!parts_.trace.on()) return work();
  parts_.compute.Synchronize().IgnoreError();
  parts_.trace.Measure(name, micro_batch, chunk, [&] {
    work();
    parts_.compute.Synchronize().IgnoreError();
  });
}

void ProgramExecutor::ReceiveGradient(const ProgramStep& step, const MicroBatch& batch) {
  Enter(progress::Phase::kBackward, "backward", batch);
  parts_.links.WaitSend(PipelineLinks::kGradient, step.flow);
  parts_.links.Receive(PipelineLinks::kGradient, step.flow, FlowOf(step).data(), FlowBytes(batch),
                       NextStage(plan_));
}

int ProgramExecutor::LayerOf(int unit) const {
  if (unit == plan::kEmbeddingUnit) return -1;
  const auto& layers = plan_.stage().layers();
  return unit < layers.size() ? layers.at(unit) : parts_.model.model_layers();
}

int64_t ProgramExecutor::FlowBytes(const MicroBatch& batch) const {
  int64_t rows = 0;
  for (int stream = 0; stream < parts_.model.streams(); ++stream) {
    rows += parts_.model.LocalRowsOf(batch, stream);
  }
  return rows * shape_.hidden * shape_.precision.bytes();
}

}  // namespace tercio::engine
