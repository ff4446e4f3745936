#include "plan/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "common/check.h"

namespace tercio::plan {
namespace {

// A gradient lives in one of two buffers, received into and sent from in place.
constexpr int kGradientBuffers = 2;

using Work = StagePass;

// The k-th forward (or backward) of any stage: micro-batches in groups of `stages`, each group
// through all chunks.
Work WorkAt(const ScheduleShape& shape, bool forward, int k) {
  if (shape.chunks == 1) return {forward, k, 0};
  const int group = k / (shape.stages * shape.chunks);
  const int within = k % (shape.stages * shape.chunks);
  const int chunk = within / shape.stages;
  // The backward pass goes through the chunks in reverse, as it does through the layers.
  return {forward, group * shape.stages + within % shape.stages,
          forward ? chunk : shape.chunks - 1 - chunk};
}

// Forwards before the first backward.
int WarmUp(const ScheduleShape& shape, int stage) {
  // gpipe runs all forwards first; the others as few as keep the last stage busy.
  const int all = shape.micro_batches * shape.chunks;
  if (shape.kind == v1::PIPELINE_SCHEDULE_GPIPE) return all;
  if (shape.chunks == 1) return std::min(shape.stages - stage - 1, all);
  // With one group only there is nothing to interleave before all forwards are done.
  if (shape.micro_batches == shape.stages) return all;
  // Narayanan et al. 2021, section 2.2.2: two for each later stage, and all chunks but the last.
  return std::min((shape.stages - stage - 1) * 2 + (shape.chunks - 1) * shape.stages, all);
}

// Builds one stage's list: the work in its order, and before it the receives that have become
// possible.
class StageList {
 public:
  StageList(const ScheduleShape& shape, int stage)
      // The number of slots follows from the order of the
      // work, so that the lists fit the memory map.
      : shape_(shape), stage_(stage), slots_(ActivationSlots(shape, stage)) {
    for (const Work& work : PassesOfStage(shape, stage)) {
      work_.push_back(work);
      (work.forward ? forwards_ : backwards_).push_back(work);
    }
    for (int slot = 0; slot < slots_; ++slot) free_.insert(slot);
  }

  std::vector<v1::Action> Build() {
    for (const Work& work : work_) {
      // Receives are posted before the work: the message may travel while the stage computes.
      PostActivations();
      if (!work.forward) PostGradients();
      if (work.forward) {
        if (!ReceivesActivation(work)) TakeSlot(work);
        Add(v1::ACTION_KIND_FORWARD, work);
        ++forwards_done_;
        // A send follows its work at once, since the next stage may be waiting for it.
        if (!IsEnd(work)) Add(v1::ACTION_KIND_SEND_ACTIVATION, work);
      } else {
        Add(v1::ACTION_KIND_BACKWARD, work);
        if (ReceivesActivation(work)) Add(v1::ACTION_KIND_SEND_GRADIENT, work);
        ++backwards_done_;
        // The slot is given back only after the backward
        // pass, which reads what the forward pass left.
        free_.insert(slot_of_.at({work.micro_batch, work.chunk}));
      }
    }
    Add(v1::ACTION_KIND_REDUCE_GRADIENTS, {});
    Add(v1::ACTION_KIND_OPTIMIZER_STEP, {});
    return std::move(actions_);
  }

 private:
  bool ReceivesActivation(const Work& work) const { return stage_ > 0 || work.chunk > 0; }
  bool IsEnd(const Work& work) const {
    return stage_ + 1 == shape_.stages && work.chunk + 1 == shape_.chunks;
  }

  // At most one forward ahead of the work, and only into a free slot; one slot is kept for the next
  // forward where that needs one without a message.
  void PostActivations() {
    while (activations_posted_ < static_cast<int>(forwards_.size()) &&
           activations_posted_ <= forwards_done_ + 1) {
      const Work& next = forwards_[static_cast<size_t>(activations_posted_)];
      if (ReceivesActivation(next)) {
        if (free_.size() < SlotsBefore(activations_posted_) + 1) return;
        TakeSlot(next);
        Add(v1::ACTION_KIND_RECEIVE_ACTIVATION, next);
      } else if (activations_posted_ > forwards_done_) {
        return;
      }
      ++activations_posted_;
    }
  }

  // Slots that forwards before this one will take without a message.
  size_t SlotsBefore(int forward) const {
    size_t count = 0;
    for (int k = forwards_done_; k < forward; ++k) {
      count += ReceivesActivation(forwards_[static_cast<size_t>(k)]) ? 0 : 1;
    }
    return count;
  }

  void PostGradients() {
    while (gradients_posted_ < static_cast<int>(backwards_.size()) &&
           gradients_posted_ < backwards_done_ + kGradientBuffers) {
      const Work& next = backwards_[static_cast<size_t>(gradients_posted_)];
      // A gradient may arrive only where its forward has been.
      if (!slot_of_.contains({next.micro_batch, next.chunk})) return;
      if (!IsEnd(next)) Add(v1::ACTION_KIND_RECEIVE_GRADIENT, next);
      ++gradients_posted_;
    }
  }

  void TakeSlot(const Work& work) {
    TERCIO_CHECK(!free_.empty());
    slot_of_[{work.micro_batch, work.chunk}] = *free_.begin();
    free_.erase(free_.begin());
  }

  // The buffer is the stage's own affair; its parity follows the order of the
  // backwards, so that two gradients that are alive never share one.
  int FlowOf(const Work& work) const {
    const int group = shape_.stages * shape_.chunks;
    const int k = shape_.chunks == 1 ? work.micro_batch
                                     : work.micro_batch / shape_.stages * group +
                                           (shape_.chunks - 1 - work.chunk) * shape_.stages +
                                           work.micro_batch % shape_.stages;
    return k % kGradientBuffers;
  }

  void Add(v1::ActionKind kind, const Work& work) {
    v1::Action action;
    action.set_kind(kind);
    action.set_micro_batch(work.micro_batch);
    action.set_chunk(work.chunk);
    action.set_flow(FlowOf(work));
    if (const auto slot = slot_of_.find({work.micro_batch, work.chunk}); slot != slot_of_.end()) {
      action.set_slot(slot->second);
    }
    actions_.push_back(action);
  }

  ScheduleShape shape_;
  int stage_;
  int slots_;
  std::vector<Work> work_;
  std::vector<Work> forwards_;
  std::vector<Work> backwards_;
  std::set<int> free_;
  std::map<std::pair<int, int>, int> slot_of_;  // (micro-batch, chunk)
  int forwards_done_ = 0;
  int backwards_done_ = 0;
  int activations_posted_ = 0;
  int gradients_posted_ = 0;
  std::vector<v1::Action> actions_;
};

}  // namespace

ScheduleShape ShapeOfSchedule(const v1::Layout& layout) {
  // Callers have checked the name (BuildPlan).
  ScheduleShape shape;
  shape.kind = layout.schedule();
  shape.stages = layout.pipeline();
  shape.micro_batches = layout.micro_batches();
  shape.chunks = std::max(1, layout.virtual_pipeline());
  return shape;
}

std::vector<StagePass> PassesOfStage(const ScheduleShape& shape, int stage) {
  TERCIO_CHECK(stage >= 0 && stage < shape.stages && shape.micro_batches >= 1);
  TERCIO_CHECK(shape.chunks == 1 || shape.micro_batches % shape.stages == 0);
  const int all = shape.micro_batches * shape.chunks;
  const int warm_up = WarmUp(shape, stage);
  std::vector<StagePass> work;
  work.reserve(2 * static_cast<size_t>(all));
  for (int k = 0; k < warm_up; ++k) work.push_back(WorkAt(shape, true, k));
  for (int k = warm_up; k < all; ++k) {
    work.push_back(WorkAt(shape, true, k));
    work.push_back(WorkAt(shape, false, k - warm_up));
  }
  for (int k = all - warm_up; k < all; ++k) work.push_back(WorkAt(shape, false, k));
  return work;
}

std::vector<v1::Action> StageActions(const ScheduleShape& shape, int stage) {
  return StageList(shape, stage).Build();
}

// The trainer allocates this many; StageList aborts where it would need one more.
int ActivationSlots(const ScheduleShape& shape, int stage) {
  // Behind the warm-up each forward is followed by a backward.
  return std::min(WarmUp(shape, stage) + 1, shape.micro_batches * shape.chunks);
}

}  // namespace tercio::plan
