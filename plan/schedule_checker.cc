// The simulation behind CheckSchedule.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "plan/schedule.h"

namespace tercio::plan {
namespace {

// A backward pass has twice the products of a forward pass.
constexpr double kForwardTime = 1;
constexpr double kBackwardTime = 2;

// A place along the model and what passes through it: (chunk * stages + stage, micro-batch).
using Item = std::pair<int, int>;

// Plays all lists against each other. A message arrives when its send has been executed and its
// receive posted; sends and receives cost nothing.
class Simulation {
 public:
  Simulation(const std::vector<std::vector<v1::Action>>& stages, const ScheduleShape& shape)
      : stages_(stages), shape_(shape), state_(stages.size()) {
    report_.max_in_flight.assign(stages.size(), 0);
  }

  absl::StatusOr<ScheduleReport> Run() {
    // Stages are played in turn until none can move: the result does not
    // depend on the order, since an action that is ready stays ready.
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t stage = 0; stage < stages_.size(); ++stage) {
        while (state_[stage].at < stages_[stage].size() &&
               Ready(stage, stages_[stage][state_[stage].at])) {
          const v1::Action& action = stages_[stage][state_[stage].at];
          if (absl::Status status = Execute(stage, action); !status.ok()) return status;
          ++state_[stage].at;
          moved = true;
        }
      }
    }
    return Finish();
  }

 private:
  struct Stage {
    size_t at = 0;  // next action
    double time = 0;
    std::map<int, Item> slot_owner;
    std::set<Item> activations_posted, gradients_posted;
    std::map<int, int> forwards, backwards;  // done, by chunk
    std::map<int, Item> flow_sent;           // by buffer: the gradient that left it last
    int in_flight = 0;
  };

  int Place(size_t stage, const v1::Action& action) const {
    return action.chunk() * shape_.stages + static_cast<int>(stage);
  }
  int LastPlace() const { return shape_.stages * shape_.chunks - 1; }

  bool Ready(size_t stage, const v1::Action& action) const {
    const int place = Place(stage, action);
    const Item item{place, action.micro_batch()};
    // Only what waits for another stage is asked here; the rest is checked when it is executed.
    switch (action.kind()) {
      case v1::ACTION_KIND_FORWARD:
        return place == 0 || activation_sent_.contains(item);
      case v1::ACTION_KIND_BACKWARD:
        return (place == LastPlace() || gradient_sent_.contains(item)) && Free(stage, action);
      // A receive may write into a buffer only after what was sent from it has left.
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        return Free(stage, action);
      default:
        return true;
    }
  }

  // The buffer's earlier gradient must have left: its receiver must have posted.
  bool Free(size_t stage, const v1::Action& action) const {
    const auto sent = state_[stage].flow_sent.find(action.flow());
    if (sent == state_[stage].flow_sent.end()) return true;
    const auto [place, micro_batch] = sent->second;  // where it goes
    return state_[static_cast<size_t>(place % shape_.stages)].gradients_posted.contains(
        {place, micro_batch});
  }

  absl::Status Execute(size_t stage, const v1::Action& action) {
    Stage& s = state_[stage];
    const int place = Place(stage, action);
    const Item item{place, action.micro_batch()};
    switch (action.kind()) {
      case v1::ACTION_KIND_RECEIVE_ACTIVATION:
        s.activations_posted.insert(item);
        // The orders are compared at the end, since the sender may run ahead of the receiver.
        order_[{stage, true}].push_back(item);
        return TakeSlot(stage, action, item);
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        s.gradients_posted.insert(item);
        order_[{stage, false}].push_back(item);
        return absl::OkStatus();
      case v1::ACTION_KIND_FORWARD:
        return Forward(stage, action, item);
      case v1::ACTION_KIND_BACKWARD:
        return Backward(stage, action, item);
      case v1::ACTION_KIND_SEND_ACTIVATION:
        // A send before its work would send what is not computed yet.
        if (action.micro_batch() >= s.forwards[action.chunk()]) {
          return Fault(stage, "activation sent before its forward");
        }
        // The time of a send is that of its work: messages themselves cost nothing.
        activation_sent_[{place + 1, action.micro_batch()}] = s.time;
        sends_[{NextStage(stage), true}].push_back({place + 1, action.micro_batch()});
        return absl::OkStatus();
      case v1::ACTION_KIND_SEND_GRADIENT:
        if (action.micro_batch() >= s.backwards[action.chunk()]) {
          return Fault(stage, "gradient sent before its backward");
        }
        gradient_sent_[{place - 1, action.micro_batch()}] = s.time;
        sends_[{PreviousStage(stage), false}].push_back({place - 1, action.micro_batch()});
        s.flow_sent[action.flow()] = {place - 1, action.micro_batch()};
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Forward(size_t stage, const v1::Action& action, const Item& item) {
    Stage& s = state_[stage];
    // Ascending order in every schedule is what makes sums independent of it.
    if (action.micro_batch() != s.forwards[action.chunk()]++) {
      return Fault(stage, "forward out of order");
    }
    // The first place receives no message, whose receive would have taken the slot.
    if (item.first == 0) {
      if (absl::Status status = TakeSlot(stage, action, item); !status.ok()) return status;
    } else {
      if (!s.activations_posted.contains(item)) return Fault(stage, "forward without a receive");
      s.time = std::max(s.time, activation_sent_.at(item));
    }
    if (s.slot_owner[action.slot()] != item) return Fault(stage, "forward in another's slot");
    // A stage's time is divided among its chunks, which together are the whole stage.
    s.time += kForwardTime / shape_.chunks;
    report_.max_in_flight[stage] = std::max(report_.max_in_flight[stage], ++s.in_flight);
    return absl::OkStatus();
  }

  absl::Status Backward(size_t stage, const v1::Action& action, const Item& item) {
    Stage& s = state_[stage];
    if (action.micro_batch() != s.backwards[action.chunk()]++) {
      return Fault(stage, "backward out of order");
    }
    if (action.micro_batch() >= s.forwards[action.chunk()]) {
      return Fault(stage, "backward before forward");
    }
    if (item.first != LastPlace()) {
      if (!s.gradients_posted.contains(item)) return Fault(stage, "backward without a receive");
      s.time = std::max(s.time, gradient_sent_.at(item));
    }
    if (s.slot_owner[action.slot()] != item) return Fault(stage, "backward in another's slot");
    // The slot is free after the backward pass, which has read the last of what it holds.
    s.slot_owner.erase(action.slot());
    s.time += kBackwardTime / shape_.chunks;
    --s.in_flight;
    return absl::OkStatus();
  }

  absl::Status TakeSlot(size_t stage, const v1::Action& action, const Item& item) {
    if (!state_[stage].slot_owner.emplace(action.slot(), item).second) {
      return Fault(stage, "slot taken twice");
    }
    return absl::OkStatus();
  }

  size_t NextStage(size_t stage) const { return (stage + 1) % stages_.size(); }
  size_t PreviousStage(size_t stage) const { return (stage + stages_.size() - 1) % stages_.size(); }

  absl::StatusOr<ScheduleReport> Finish() {
    double end = 0;
    for (size_t stage = 0; stage < stages_.size(); ++stage) {
      // A stage that could not finish its list waits for a message that never comes.
      if (state_[stage].at < stages_[stage].size()) return Fault(stage, "deadlock");
      for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
        if (state_[stage].forwards[chunk] != shape_.micro_batches ||
            state_[stage].backwards[chunk] != shape_.micro_batches) {
          return Fault(stage, "not every micro-batch was run");
        }
      }
      // Messages of one direction between two stages are told apart by their order only.
      for (const bool activation : {true, false}) {
        if (order_[{stage, activation}] != sends_[{stage, activation}]) {
          return Fault(stage, "receives in a different order than the sends");
        }
      }
      end = std::max(end, state_[stage].time);
    }
    // The busiest stage without any wait would take this long.
    const double ideal = (kForwardTime + kBackwardTime) * shape_.micro_batches;
    report_.bubble_ratio = (end - ideal) / ideal;
    return report_;
  }

  absl::Status Fault(size_t stage, const std::string& what) const {
    // The position is part of the message, since lists have hundreds of actions.
    std::string where = "the end";
    const size_t at = state_[stage].at;
    if (at < stages_[stage].size()) {
      const v1::Action& action = stages_[stage][at];
      where = absl::StrCat(v1::ActionKind_Name(action.kind()), " ", action.micro_batch(), " chunk ",
                           action.chunk());
    }
    return absl::InternalError(
        absl::StrCat("schedule: ", what, " in stage ", stage, " at action ", at, " (", where, ")"));
  }

  const std::vector<std::vector<v1::Action>>& stages_;
  const ScheduleShape shape_;
  std::vector<Stage> state_;
  std::map<Item, double> activation_sent_;
  std::map<Item, double> gradient_sent_;
  // By receiving stage and direction: the items sent, and the items requested.
  std::map<std::pair<size_t, bool>, std::deque<Item>> sends_;
  std::map<std::pair<size_t, bool>, std::deque<Item>> order_;
  ScheduleReport report_;
};

}  // namespace

absl::StatusOr<ScheduleReport> CheckSchedule(const std::vector<std::vector<v1::Action>>& stages,
                                             const ScheduleShape& shape) {
  return Simulation(stages, shape).Run();
}

}  // namespace tercio::plan
