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
#include "plan/stage_layers.h"
#include "plan/state_shards.h"
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
    kJudge,  // learns the norm of all gradients: whether the step is taken, and how they are scaled
    // The following only where it is taken.
    kFetch,    // reads a unit's optimizer state ahead
    kUpdate,   // the weights of a unit that are in this rank's shard
    kPublish,  // sends them to the other ranks, or makes what the model reads of them
  };
  Kind kind;
  int micro_batch = 0;
  int chunk = 0;
  int slot = 0;       // the activations
  int flow = 0;       // the gradients between stages
  int unit = 0;       // what is computed, gathered, summed, fetched, updated or published
  int round = 0;      // kReduce: which one
  bool kept = false;  // kGather: from neighbours that keep the layer
};

// By units of a stage's state (plan/state_shards.h): the program's unit that each is a part of.
std::vector<int> ProgramUnitsOf(const std::vector<StateUnit>& units);

// What decides a stage's program beside its actions.
struct ProgramShape {
  StageRuns runs;     // layers of each chunk
  bool first = true;  // has the embedding
  bool last = true;   // has the head
  int micro_batches = 1;
  int rounds = 1;        // RoundsOf
  bool reduces = false;  // there are other data ranks
  int places = 0;        // for gathered layers, each in its number modulo this; 0: none is gathered
  bool keeps = false;    // SecondaryRanks
  bool fetches = false;  // optimizer state is on disk
  // Units whose new weights become what the model reads by more than the update, and before they
  // are gathered for a pass; ascending.
  std::vector<int> published = {};
  // Numbers in the model of the stage's layers; empty: they are counted as on the stage.
  std::vector<int> layers = {};
  // The number in the model of the first layer with something to train, kEmbeddingUnit, or, where
  // that is the head, the number of all layers: units before it have no backward pass.
  int trained_from = kEmbeddingUnit;
  // Units without gradients, for all that they have is frozen; ascending.
  std::vector<int> untrained = {};

  int head() const { return runs.layers(); }
  bool IsTrained(int unit) const;
  bool HasBackward(int unit) const;
  // Whether the chunk before this one in the model takes the gradient of the chunk's input.
  bool PassesGradientOn(int chunk) const;
};
ProgramShape ShapeOfProgram(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// One training step. `actions`: those of the stage.
using Program = std::vector<ProgramStep>;
Program TrainingProgram(const ProgramShape& shape, const std::vector<v1::Action>& actions);

// A global batch forward only, micro-batch after micro-batch through slot 0.
Program EvaluationProgram(const ProgramShape& shape);

// Proves that units are computed with their weights in place, each once in each micro-batch, in the
// order of the model and, down to the first one that is trained, back; that a kept layer was
// gathered before; that the gradients of each unit that has some are summed once in each round, in
// ascending order, after its last backward pass in it and before they are written again; and that
// after the verdict each of these units is updated once, in the order in which it is read, fetched
// before and published behind where that is needed. INTERNAL names the step.
absl::Status CheckProgram(const ProgramShape& shape, const Program& program);

// "forward layers.3, micro-batch 2"
std::string TextOf(const ProgramShape& shape, const ProgramStep& step);

}  // namespace tercio::plan
