#include "plan/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::plan {
namespace {

// A gradient lives in one of two buffers, received into and sent from in place.
constexpr int kGradientBuffers = 2;

constexpr double kForwardTime = 1;
constexpr double kBackwardTime = 2;

struct Work {
  bool forward;
  int micro_batch;
};

std::vector<Work> WorkOfStage(ScheduleKind kind, int stages, int stage, int micro_batches) {
  std::vector<Work> work;
  const int warm_up =
      kind == ScheduleKind::kGpipe ? micro_batches : std::min(stages - stage - 1, micro_batches);
  for (int m = 0; m < warm_up; ++m) work.push_back({true, m});
  for (int m = warm_up; m < micro_batches; ++m) {
    work.push_back({true, m});
    work.push_back({false, m - warm_up});
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) work.push_back({false, m});
  return work;
}

// Builds one stage's list: the work in its order, and before it the receives that have become
// possible.
class StageList {
 public:
  StageList(ScheduleKind kind, int stages, int stage, int micro_batches)
      : work_(WorkOfStage(kind, stages, stage, micro_batches)),
        slots_(ActivationSlots(kind, stages, stage, micro_batches)),
        has_previous_(stage > 0),
        has_next_(stage + 1 < stages),
        micro_batches_(micro_batches) {}

  std::vector<v1::Action> Build() {
    for (const Work& work : work_) {
      PostReceives(work);
      Add(work.forward ? v1::ACTION_KIND_FORWARD : v1::ACTION_KIND_BACKWARD, work.micro_batch);
      if (work.forward) {
        forwards_done_ = work.micro_batch + 1;
        if (has_next_) Add(v1::ACTION_KIND_SEND_ACTIVATION, work.micro_batch);
      } else {
        backwards_done_ = work.micro_batch + 1;
        if (has_previous_) Add(v1::ACTION_KIND_SEND_GRADIENT, work.micro_batch);
      }
    }
    Add(v1::ACTION_KIND_REDUCE_GRADIENTS, 0);
    Add(v1::ACTION_KIND_OPTIMIZER_STEP, 0);
    return std::move(actions_);
  }

 private:
  // At most one micro-batch ahead of the work, and only into a free slot or buffer.
  void PostReceives(const Work& next) {
    while (has_previous_ && activations_posted_ < micro_batches_ &&
           activations_posted_ < backwards_done_ + slots_ &&
           activations_posted_ <= forwards_done_ + 1) {
      Add(v1::ACTION_KIND_RECEIVE_ACTIVATION, activations_posted_++);
    }
    if (next.forward) return;
    while (has_next_ && gradients_posted_ < micro_batches_ &&
           gradients_posted_ < backwards_done_ + kGradientBuffers) {
      Add(v1::ACTION_KIND_RECEIVE_GRADIENT, gradients_posted_++);
    }
  }

  void Add(v1::ActionKind kind, int micro_batch) {
    v1::Action action;
    action.set_kind(kind);
    action.set_micro_batch(micro_batch);
    action.set_slot(micro_batch % slots_);
    actions_.push_back(action);
  }

  std::vector<Work> work_;
  int slots_;
  bool has_previous_;
  bool has_next_;
  int micro_batches_;
  int forwards_done_ = 0;
  int backwards_done_ = 0;
  int activations_posted_ = 0;
  int gradients_posted_ = 0;
  std::vector<v1::Action> actions_;
};

// Plays all lists against each other. A message arrives when its send has been executed and its
// receive posted; sends and receives cost nothing.
class Simulation {
 public:
  Simulation(const std::vector<std::vector<v1::Action>>& stages, int micro_batches)
      : stages_(stages), micro_batches_(micro_batches), at_(stages.size()), time_(stages.size()) {
    report_.max_in_flight.assign(stages.size(), 0);
    slot_owner_.resize(stages.size());
    posted_.resize(stages.size());
    forwards_.resize(stages.size());
    backwards_.resize(stages.size());
  }

  absl::StatusOr<ScheduleReport> Run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        while (at_[stage] < stages_[stage].size() && Ready(stage, stages_[stage][at_[stage]])) {
          if (absl::Status status = Execute(stage, stages_[stage][at_[stage]]); !status.ok()) {
            return status;
          }
          ++at_[stage];
          moved = true;
        }
      }
    }
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      if (at_[stage] < stages_[stage].size()) return Fault(stage, "deadlock");
      if (forwards_[stage] != micro_batches_ || backwards_[stage] != micro_batches_) {
        return Fault(stage, "not every micro-batch was run");
      }
    }
    const double ideal = (kForwardTime + kBackwardTime) * micro_batches_;
    const double end = *std::max_element(time_.begin(), time_.end());
    report_.bubble_ratio = (end - ideal) / ideal;
    return report_;
  }

 private:
  using Message = std::pair<size_t, int>;  // receiving stage, micro-batch

  bool Ready(size_t stage, const v1::Action& action) const {
    const Message message{stage, action.micro_batch()};
    switch (action.kind()) {
      case v1::ACTION_KIND_FORWARD:
        return stage == 0 || activation_sent_.contains(message);
      case v1::ACTION_KIND_BACKWARD:
        return stage + 1 == stages_.size() || gradient_sent_.contains(message);
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        // The buffer's earlier gradient must have left: its receiver must have posted.
        return stage == 0 || action.micro_batch() < kGradientBuffers ||
               posted_[stage - 1].contains(
                   {v1::ACTION_KIND_RECEIVE_GRADIENT, action.micro_batch() - kGradientBuffers});
      default:
        return true;
    }
  }

  absl::Status Execute(size_t stage, const v1::Action& action) {
    const int m = action.micro_batch();
    const Message message{stage, m};
    switch (action.kind()) {
      case v1::ACTION_KIND_RECEIVE_ACTIVATION:
        posted_[stage].insert({action.kind(), m});
        return TakeSlot(stage, action);
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        posted_[stage].insert({action.kind(), m});
        return absl::OkStatus();
      case v1::ACTION_KIND_FORWARD:
        if (m != forwards_[stage]++) return Fault(stage, "forward out of order");
        if (stage == 0) {
          if (absl::Status status = TakeSlot(stage, action); !status.ok()) return status;
        } else {
          if (!posted_[stage].contains({v1::ACTION_KIND_RECEIVE_ACTIVATION, m})) {
            return Fault(stage, "forward without a receive");
          }
          time_[stage] = std::max(time_[stage], activation_sent_.at(message));
        }
        time_[stage] += kForwardTime;
        report_.max_in_flight[stage] =
            std::max(report_.max_in_flight[stage], forwards_[stage] - backwards_[stage]);
        return absl::OkStatus();
      case v1::ACTION_KIND_SEND_ACTIVATION:
        if (m >= forwards_[stage]) return Fault(stage, "activation sent before its forward");
        activation_sent_[{stage + 1, m}] = time_[stage];
        return absl::OkStatus();
      case v1::ACTION_KIND_BACKWARD:
        if (m != backwards_[stage]++) return Fault(stage, "backward out of order");
        if (m >= forwards_[stage]) return Fault(stage, "backward before forward");
        if (stage + 1 < stages_.size()) {
          if (!posted_[stage].contains({v1::ACTION_KIND_RECEIVE_GRADIENT, m})) {
            return Fault(stage, "backward without a receive");
          }
          time_[stage] = std::max(time_[stage], gradient_sent_.at(message));
        }
        time_[stage] += kBackwardTime;
        slot_owner_[stage].erase(action.slot());
        return absl::OkStatus();
      case v1::ACTION_KIND_SEND_GRADIENT:
        if (m >= backwards_[stage]) return Fault(stage, "gradient sent before its backward");
        gradient_sent_[{stage - 1, m}] = time_[stage];
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  absl::Status TakeSlot(size_t stage, const v1::Action& action) {
    if (!slot_owner_[stage].emplace(action.slot(), action.micro_batch()).second) {
      return Fault(stage, "slot taken twice");
    }
    return absl::OkStatus();
  }

  absl::Status Fault(size_t stage, const std::string& what) const {
    std::string where = "the end";
    if (at_[stage] < stages_[stage].size()) {
      const v1::Action& action = stages_[stage][at_[stage]];
      where = absl::StrCat(v1::ActionKind_Name(action.kind()), " ", action.micro_batch());
    }
    return absl::InternalError(absl::StrCat("schedule: ", what, " in stage ", stage, " at action ",
                                            at_[stage], " (", where, ")"));
  }

  const std::vector<std::vector<v1::Action>>& stages_;
  int micro_batches_;
  std::vector<size_t> at_;
  std::vector<double> time_;
  std::vector<std::map<int, int>> slot_owner_;
  std::vector<std::set<std::pair<v1::ActionKind, int>>> posted_;
  std::vector<int> forwards_;
  std::vector<int> backwards_;
  std::map<Message, double> activation_sent_;
  std::map<Message, double> gradient_sent_;
  ScheduleReport report_;
};

}  // namespace

absl::StatusOr<ScheduleKind> ParseScheduleKind(std::string_view name) {
  if (name == "gpipe") return ScheduleKind::kGpipe;
  if (name == "1f1b") return ScheduleKind::kOneForwardOneBackward;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown pipeline schedule '", std::string(name), "': use gpipe or 1f1b"));
}

std::vector<v1::Action> StageActions(ScheduleKind kind, int stages, int stage, int micro_batches) {
  TERCIO_CHECK(stage >= 0 && stage < stages && micro_batches >= 1);
  return StageList(kind, stages, stage, micro_batches).Build();
}

int ActivationSlots(ScheduleKind kind, int stages, int stage, int micro_batches) {
  return kind == ScheduleKind::kGpipe ? micro_batches : std::min(stages - stage, micro_batches);
}

absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<std::vector<v1::Action>>& stages,
                                             int micro_batches) {
  return Simulation(stages, micro_batches).Run();
}

}  // namespace tercio::plan
