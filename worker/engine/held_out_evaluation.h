// The evaluation of held-out samples by the ranks of a job in its layout, without dropout.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/sample_source.h"
#include "plan/memory_map.h"
#include "plan/program.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/engine/class_outcomes.h"
#include "worker/engine/communicators.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/program_executor.h"
#include "worker/engine/rank_batch.h"
#include "worker/engine/stage_model.h"
#include "worker/engine/teacher.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class HeldOutEvaluation {
 public:
  // The arguments outlive it. `teacher`: null where none is learnt from.
  HeldOutEvaluation(const v1::JobSpec& spec, const v1::RankPlan& plan,
                    const plan::StageShape& shape, data::SampleSource& source, StageModel& model,
                    RankBatch& batch, ProgramExecutor& executor, PipelineLinks& links,
                    const Communicators& communicators, device::Stream& stream,
                    progress::Whereabouts& where, Teacher* teacher);

  // TrainingEngine::Evaluate.
  absl::StatusOr<v1::Evaluation> Run(data::HeldOut set);

  // Reads a sequence of a global batch.
  using ReadSequence = absl::FunctionRef<void(int64_t sequence, data::Sample* out)>;
  // The forward pass of a global batch: all ranks learn the sums of its sequences. `what`: for
  // places of ranks. REQUIRES: the model's weights are there.
  absl::Status Score(const char* what, ReadSequence read);
  // kto's estimate over the first `samples` of a global batch, whose losses are then compared with
  // it (plan::DivergenceOf). REQUIRES: as Score.
  absl::Status MeasureDivergence(ReadSequence read, int64_t samples);

 private:
  absl::Status RunBatch(data::HeldOut set, int64_t first_sample, int64_t samples,
                        ExchangeVector::Totals* totals, v1::Evaluation* result);
  void RunProgram(const char* what);

  const v1::JobSpec& spec_;
  const v1::RankPlan& plan_;
  const plan::StageShape& shape_;
  data::SampleSource& source_;
  StageModel& model_;
  RankBatch& batch_;
  ProgramExecutor& executor_;
  const plan::Program program_;
  PipelineLinks& links_;
  const Communicators& communicators_;
  device::Stream& stream_;
  progress::Whereabouts& where_;
  Teacher* const teacher_;
  // Null where no classes are scored, and on ranks whose logits are not the ones that count.
  std::unique_ptr<ClassOutcomes> outcomes_;
};

}  // namespace tercio::engine
