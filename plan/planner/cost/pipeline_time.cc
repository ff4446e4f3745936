#include "plan/planner/cost/pipeline_time.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::plan::cost {
namespace {

constexpr double kNotYet = -1;

// Groups of micro-batches (one for each stage) after which a pipeline repeats itself.
constexpr int kGroupsUntilSteady = 4;

std::vector<double> NumbersOf(const PipelineCost& cost) {
  std::vector<double> numbers = {cost.transfer, cost.overlaps_transfers ? 1.0 : 0.0,
                                 cost.sharing.devices,
                                 static_cast<double>(cost.sharing.ranks_of_stage),
                                 static_cast<double>(cost.sharing.ranks_of_node)};
  numbers.insert(numbers.end(), cost.transfers.begin(), cost.transfers.end());
  for (const PassSeconds& place : cost.places) {
    numbers.push_back(place.forward);
    numbers.push_back(place.backward);
  }
  return numbers;
}

// Seconds of messages between each stage and the next one.
std::vector<double> TransfersOf(const PipelineCost& cost, size_t stages) {
  if (cost.transfers.empty()) return std::vector<double>(stages, cost.transfer);
  TERCIO_CHECK_EQ(cost.transfers.size(), stages);
  return cost.transfers;
}

// The stage whose boundary with the next one a message crosses that is sent at a place.
size_t BoundaryOf(size_t place, bool forward, size_t stages) {
  return (forward ? place : place - 1) % stages;
}

}  // namespace

PipelineWalk::PipelineWalk(const ScheduleShape& shape) : shape_(shape) {
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<Pass>& passes = stages_.emplace_back();
    for (const StagePass& pass : PassesOfStage(shape, stage)) {
      passes.push_back({pass.chunk * shape.stages + stage, pass.micro_batch, pass.forward});
    }
  }
}

// Passes on devices that stages share: from one event, a pass that ends or a message that arrives,
// to the next one all stages that have something to do make progress, each at its part of a device.
class PipelineWalk::Shared {
 public:
  Shared(const PipelineWalk& walk, const PipelineCost& cost)
      : walk_(walk),
        cost_(cost),
        stages_(walk.stages_.size()),
        places_(cost.places.size()),
        micro_batches_(static_cast<size_t>(walk.shape_.micro_batches)),
        transfers_(TransfersOf(cost, stages_)),
        activation_(places_ * micro_batches_, kNotYet),
        gradient_(places_ * micro_batches_, kNotYet),
        states_(stages_) {
    for (size_t i = 0; i < micro_batches_; ++i) {
      activation_[i] = 0;
      gradient_[(places_ - 1) * micro_batches_ + i] = 0;
    }
  }

  PipelineTime Get() {
    PipelineTime time;
    time.stage_ends.assign(stages_, 0);
    double now = 0;
    while (Advance(&now)) {
      for (size_t stage = 0; stage < stages_; ++stage) {
        State& state = states_[stage];
        if (!state.runs || state.left > kLeast) continue;
        EndPass(walk_.stages_[stage][state.at], now);
        state.runs = false;
        ++state.at;
        time.stage_ends[stage] = now;
      }
    }
    for (size_t stage = 0; stage < stages_; ++stage) {
      TERCIO_CHECK_EQ(states_[stage].at, walk_.stages_[stage].size());
      time.seconds = std::max(time.seconds, time.stage_ends[stage]);
    }
    return time;
  }

 private:
  static constexpr double kLeast = 1e-12;  // seconds of work that count as none

  struct State {
    size_t at = 0;  // the pass that is computed, or the next one
    bool runs = false;
    double left = 0;  // of its work, in seconds of a whole device
  };

  size_t NodeOf(size_t stage) const {
    return stage * static_cast<size_t>(cost_.sharing.ranks_of_stage) /
           static_cast<size_t>(std::max(1, cost_.sharing.ranks_of_node));
  }

  // The part of a device that each rank of the stage has.
  double RateOf(size_t stage) const {
    const Sharing& sharing = cost_.sharing;
    int ranks = sharing.ranks_of_node;  // where a stage has whole nodes
    if (sharing.ranks_of_stage < sharing.ranks_of_node) {
      ranks = 0;
      for (size_t other = 0; other < stages_; ++other) {
        if (states_[other].runs && NodeOf(other) == NodeOf(stage)) ranks += sharing.ranks_of_stage;
      }
    }
    return std::min(1.0, sharing.devices / std::max(1, ranks));
  }

  double& ReadyAt(const Pass& pass) {
    return (pass.forward ? activation_
                         : gradient_)[static_cast<size_t>(pass.place) * micro_batches_ +
                                      static_cast<size_t>(pass.micro_batch)];
  }

  // Begins what can begin, and moves to the next event. False: all is done.
  bool Advance(double* now) {
    double next = -1;
    const auto at_most = [&](double when) {
      if (next < 0 || when < next) next = when;
    };
    for (size_t stage = 0; stage < stages_; ++stage) {
      State& state = states_[stage];
      if (state.runs || state.at == walk_.stages_[stage].size()) continue;
      const Pass& pass = walk_.stages_[stage][state.at];
      const double ready = ReadyAt(pass);
      if (ready == kNotYet) continue;
      if (ready > *now + kLeast) {
        at_most(ready);
        continue;
      }
      const PassSeconds& seconds = cost_.places[static_cast<size_t>(pass.place)];
      state.runs = true;
      state.left = pass.forward ? seconds.forward : seconds.backward;
    }
    std::vector<double> rates(stages_, 0);
    for (size_t stage = 0; stage < stages_; ++stage) {
      if (!states_[stage].runs) continue;
      rates[stage] = RateOf(stage);
      at_most(*now + states_[stage].left / rates[stage]);
    }
    if (next < 0) return false;
    for (size_t stage = 0; stage < stages_; ++stage) {
      states_[stage].left -= (next - *now) * rates[stage];
    }
    *now = next;
    return true;
  }

  void EndPass(const Pass& pass, double now) {
    const auto place = static_cast<size_t>(pass.place);
    if (pass.forward ? place + 1 == places_ : place == 0) return;
    Pass next = pass;
    next.place += pass.forward ? 1 : -1;
    ReadyAt(next) = now + transfers_[BoundaryOf(place, pass.forward, stages_)];
  }

  const PipelineWalk& walk_;
  const PipelineCost& cost_;
  const size_t stages_;
  const size_t places_;
  const size_t micro_batches_;
  const std::vector<double> transfers_;
  // When what a pass reads is there.
  std::vector<double> activation_;
  std::vector<double> gradient_;
  std::vector<State> states_;
};

PipelineTime PipelineWalk::PlayShared(const PipelineCost& cost) const {
  return Shared(*this, cost).Get();
}

template <typename Factor, typename See>
PipelineTime PipelineWalk::PlayWith(const PipelineCost& cost, const Factor& factor,
                                    const See& see) const {
  const auto stages = static_cast<size_t>(shape_.stages);
  const size_t places = stages * static_cast<size_t>(std::max(1, shape_.chunks));
  const auto micro_batches = static_cast<size_t>(shape_.micro_batches);
  TERCIO_CHECK_EQ(cost.places.size(), places);
  const std::vector<double> transfers = TransfersOf(cost, stages);
  // When what a pass reads is there.
  std::vector<double> activation(places * micro_batches, kNotYet);
  std::vector<double> gradient(places * micro_batches, kNotYet);
  for (size_t i = 0; i < micro_batches; ++i) {
    activation[i] = 0;
    gradient[(places - 1) * micro_batches + i] = 0;
  }
  PipelineTime time;
  time.stage_ends.assign(stages, 0);
  std::vector<size_t> at(stages, 0);
  bool moved = true;
  // A pass that is ready stays ready, so that the order of stages does not matter.
  while (moved) {
    moved = false;
    for (size_t stage = 0; stage < stages; ++stage) {
      double& now = time.stage_ends[stage];
      while (at[stage] < stages_[stage].size()) {
        const Pass& pass = stages_[stage][at[stage]];
        const auto place = static_cast<size_t>(pass.place);
        const auto micro_batch = static_cast<size_t>(pass.micro_batch);
        const double ready =
            (pass.forward ? activation : gradient)[place * micro_batches + micro_batch];
        if (ready == kNotYet) break;
        const PassSeconds& seconds = cost.places[place];
        const double took =
            (pass.forward ? seconds.forward : seconds.backward) * factor(static_cast<int>(stage));
        const double free = now;
        now = std::max(now, ready) + took;
        const double ended = now;
        const bool sends = pass.forward ? place + 1 < places : place > 0;
        if (sends) {
          const double arrives = now + transfers[BoundaryOf(place, pass.forward, stages)];
          if (!cost.overlaps_transfers) now = arrives;
          const size_t next = pass.forward ? place + 1 : place - 1;
          (pass.forward ? activation : gradient)[next * micro_batches + micro_batch] = arrives;
        }
        see(pass, static_cast<int>(stage), free, ready, took, now - ended);
        ++at[stage];
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    TERCIO_CHECK_EQ(at[stage], stages_[stage].size());
    time.seconds = std::max(time.seconds, time.stage_ends[stage]);
  }
  return time;
}

PipelineTime PipelineWalk::Play(const PipelineCost& cost) const {
  if (cost.sharing.devices > 0) return PlayShared(cost);
  return PlayWith(
      cost, [](int) { return 1.0; }, [](const Pass&, int, double, double, double, double) {});
}

PipelineTime PipelineWalk::Play(const PipelineCost& cost, std::vector<PassSpan>* spans) const {
  const auto see = [&](const Pass& pass, int stage, double free, double ready, double seconds,
                       double sending) {
    spans->push_back({.stage = stage,
                      .chunk = pass.place / shape_.stages,
                      .micro_batch = pass.micro_batch,
                      .forward = pass.forward,
                      .free = free,
                      .ready = ready,
                      .begin = std::max(free, ready),
                      .seconds = seconds,
                      .sending = sending});
  };
  return PlayWith(
      cost, [](int) { return 1.0; }, see);
}

PipelineTime PipelineWalk::Play(const PipelineCost& cost,
                                absl::FunctionRef<double(int stage)> factor) const {
  return PlayWith(cost, factor, [](const Pass&, int, double, double, double, double) {});
}

const PipelineTime& PipelineWalks::Played(ScheduleShape shape, int micro_batches,
                                          const PipelineCost& cost) {
  shape.micro_batches = micro_batches;
  const Shape key = {static_cast<int>(shape.kind), shape.stages, shape.chunks, micro_batches};
  const auto [time, is_new] = times_.try_emplace(Key(key, NumbersOf(cost)));
  if (!is_new) return time->second;
  std::unique_ptr<PipelineWalk>& walk = walks_[key];
  if (walk == nullptr) walk = std::make_unique<PipelineWalk>(shape);
  ++played_;
  time->second = walk->Play(cost);
  return time->second;
}

PipelineTime PipelineWalks::Play(const ScheduleShape& shape, const PipelineCost& cost) {
  const int group = shape.stages;
  const int steady = kGroupsUntilSteady * group;
  // Whole groups are left out, so that the interleaved order stays the same.
  const int left_out = (shape.micro_batches - steady) / group;
  if (left_out <= 1) return Played(shape, shape.micro_batches, cost);
  const int played = shape.micro_batches - left_out * group;
  PipelineTime time = Played(shape, played, cost);
  const PipelineTime& before = Played(shape, played - group, cost);
  for (size_t stage = 0; stage < time.stage_ends.size(); ++stage) {
    time.stage_ends[stage] += left_out * (time.stage_ends[stage] - before.stage_ends[stage]);
  }
  time.seconds += left_out * (time.seconds - before.seconds);
  return time;
}

}  // namespace tercio::plan::cost
