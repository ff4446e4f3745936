#include "worker/engine/teacher.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/teacher_memory.h"

namespace tercio::engine {

Teacher::Teacher(const v1::JobSpec& job, const v1::RankPlan& plan, Parts parts)
    : job_(plan::TeacherJob(job)),
      plan_(plan::TeacherPlan(job, plan)),
      parts_(parts),
      arena_(parts.arena.Part(plan_.stage().memory())),
      shape_(plan::ShapeOfStage(job_, plan_.layout(), plan_.placement().pipeline_index())),
      tensors_(plan::TensorsOfStage(job_, plan_.layout(), plan_.placement().pipeline_index())),
      shards_(plan::ShardsOfRank(job_, plan_, tensors_)),
      model_(job_, plan_, shards_.of_model, arena_, parts.compute, parts.communicators.tensor()),
      links_(parts.communicators.pipeline(), parts.compute),
      streams_(plan_, shape_, model_, links_),
      program_(plan::EvaluationProgram(
          plan::ShapeOfProgram(job_, plan_.layout(), plan_.placement().pipeline_index()))),
      store_(tensors_, shards_, arena_),
      weights_(SlicesToLoad(tensors_, plan_, store_, /*parts=*/{})),
      outputs_(arena_.ValuesOf(plan::kTeacherOutputs, shape_.precision)) {
  for (const StateSlice& state : weights_) needed_.push_back(state.slice);
  // Rows that pad the vocabulary are loaded from nowhere.
  const std::string weights = plan::WeightsBuffer(job_, plan_.layout());
  parts_.compute.SetZero(arena_.Get<std::byte>(weights), arena_.Bytes(weights));
}

void Teacher::Run(const RankBatch& batch) {
  for (const plan::ProgramStep& step : program_) {
    blocks::MicroBatch micro_batch = batch.At(/*step=*/0, step.micro_batch, step.chunk, step.slot);
    micro_batch.training = false;
    RunStep(step, micro_batch);
  }
  // The student's messages use the same buffers' numbers.
  links_.WaitAll();
}

void Teacher::RunStep(const plan::ProgramStep& step, const blocks::MicroBatch& batch) {
  using Kinds = plan::ProgramStep::Kind;
  switch (step.kind) {
    case Kinds::kReceiveActivation:
      return streams_.Receive(batch);
    case Kinds::kBeginForward:
      parts_.where.BeginAction(progress::Phase::kForward, "teacher", batch.index);
      return streams_.Wait(batch.slot);
    case Kinds::kForward:
      return model_.ForwardUnit(batch, step.unit);
    case Kinds::kEndForward:
      if (!model_.IsLast(batch)) return;
      return parts_.compute.ops().Copy(OutputsOf(batch.index), model_.HeadInput(batch),
                                       shape_.head_stream().rows * shape_.hidden);
    case Kinds::kSendActivation:
      return streams_.Send(batch);
    case Kinds::kReceiveGradient:
    case Kinds::kBeginBackward:
    case Kinds::kBackward:
    case Kinds::kEndBackward:
    case Kinds::kSendGradient:
    case Kinds::kGather:
    case Kinds::kReduce:
    case Kinds::kFinish:
    case Kinds::kJudge:
    case Kinds::kFetch:
    case Kinds::kUpdate:
    case Kinds::kPublish:
      // Only the forward pass of a model that is there as a whole was planned.
      TERCIO_CHECK(false);
  }
}

kernels::ConstValues Teacher::Of(const blocks::Pass& pass, const blocks::HeadChunk& chunk) {
  TERCIO_CHECK(model_.language_head() != nullptr);
  return model_.language_head()->LogitsOf(pass, OutputsOf(pass.batch.index), chunk);
}

absl::Status Teacher::Load(int64_t slice_index, int64_t first, absl::Span<const float> values) {
  const StateSlice& state = weights_.at(static_cast<size_t>(slice_index));
  const auto count = static_cast<int64_t>(values.size());
  if (first < 0 || count > state.elements || first > state.elements - count) {
    return absl::InvalidArgumentError(absl::StrCat("the teacher's tensor ", state.slice.tensor(),
                                                   ": got ", count, " values from ", first,
                                                   ", but it has ", state.elements));
  }
  const kernels::Values place = state.values + first;
  const auto* const from = reinterpret_cast<const std::byte*>(values.data());
  if (from != place.data()) parts_.staged.FromHost(place, values.data(), count);
  return parts_.compute.Synchronize();
}

std::shared_ptr<float> Teacher::LoadPlace(int64_t slice_index) {
  const StateSlice& state = weights_.at(static_cast<size_t>(slice_index));
  if (state.values.format() != kernels::Format::kFloat32) return nullptr;
  return arena_.OnHost(state.values.floats());
}

}  // namespace tercio::engine
