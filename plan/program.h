// What a rank does in a step, as data: the actions of its pipeline stage (plan/schedule.h), with
// passes taken apart into units (the embedding, each layer, the head), and with what becomes of
// weights and gradients beside them: when a layer's weights are gathered, when the gradients of a
// unit are summed over data ranks. Pure. The trainer walks it, the plan counts the bytes of it, and
// CheckProgram proves what must hold.
//
// Steps stand in the order in which the host enqueues them. That one waits for another on the
// device is not in the list: it follows from what they touch (worker/engine/weight_gather.h,
// gradient_rounds.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// A unit of a stage: one of its layers, counted on the stage from 0, or
inline constexpr int kEmbeddingUnit = -1;
// or the head, whose number is that of the stage's layers.

struct ProgramStep {
  enum class Kind {
    // Messages and passes, as the actions have them.
    kReceiveActivation,
    kBeginForward,  // waits for the message
    kForward,       // computes a unit
    kEndForward,
    kSendActivation,
    kReceiveGradient,
    kBeginBackward,  // waits for the message
    kBackward,       // computes a unit's gradients
    kEndBackward,
    kSendGradient,
    kGather,  // puts a layer's weights into its place
    kReduce,  // sums a unit's gradients of a round over data ranks
    kFinish,  // waits for sums over data ranks; the other sums follow
    kUpdate,
  };
  Kind kind;
  int micro_batch = 0;
  int chunk = 0;
  int slot = 0;       // the activations
  int flow = 0;       // the gradients between stages
  int unit = 0;       // what kForward, kBackward, kGather and kReduce work on
  int round = 0;      // kReduce: which one
  bool kept = false;  // kGather: from neighbours that keep the layer
};

// What decides a stage's program beside its actions.
struct ProgramShape {
  int layers = 1;  // on the stage
  int chunks = 1;
  bool first = true;  // has the embedding
  bool last = true;   // has the head
  int micro_batches = 1;
  int rounds = 1;        // RoundsOf
  bool reduces = false;  // there are other data ranks
  int places = 0;        // for gathered layers, each in its number modulo this; 0: none is gathered
  bool keeps = false;    // SecondaryRanks

  int head() const { return layers; }
};
ProgramShape ShapeOfProgram(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// One training step. `actions`: those of the stage.
using Program = std::vector<ProgramStep>;
Program TrainingProgram(const ProgramShape& shape, const std::vector<v1::Action>& actions);

// A global batch forward only, micro-batch after micro-batch through slot 0.
Program EvaluationProgram(const ProgramShape& shape);

// Proves that units are computed with their weights in place, each once in each micro-batch, in the
// order of the model and back; that a kept layer was gathered before; and that the gradients of
// each unit are summed once in each round, in ascending order, after its last backward pass in it
// and before they are written again. INTERNAL names the step.
absl::Status CheckProgram(const ProgramShape& shape, const Program& program);

// "forward layers.3, micro-batch 2"
std::string TextOf(const ProgramShape& shape, const ProgramStep& step);

}  // namespace tercio::plan
