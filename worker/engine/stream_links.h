// The activations of a micro-batch between neighbouring chunks: one message for each stream of the
// model, one slot after the other.
#pragma once

#include "plan/stage_units.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/micro_batch.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/stage_model.h"

namespace tercio::engine {

class StreamLinks {
 public:
  // The arguments outlive it.
  StreamLinks(const v1::RankPlan& plan, const plan::StageShape& shape, const StageModel& model,
              PipelineLinks& links)
      : plan_(plan), shape_(shape), model_(model), links_(links) {}

  // Starts messages into the chunk's inputs, or from its outputs.
  void Receive(const blocks::MicroBatch& batch);
  void Send(const blocks::MicroBatch& batch);
  // In stream order: the slot's inputs have arrived, and its outputs may be written.
  void Wait(int slot);

 private:
  int BufferOf(int slot, int stream) const { return slot * model_.streams() + stream; }
  int64_t BytesOf(const blocks::MicroBatch& batch, int stream) const {
    return model_.LocalRowsOf(batch, stream) * shape_.hidden * shape_.precision.bytes();
  }

  const v1::RankPlan& plan_;
  const plan::StageShape& shape_;
  const StageModel& model_;
  PipelineLinks& links_;
};

}  // namespace tercio::engine
