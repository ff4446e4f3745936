#include "plan/planner/cost/pipeline_time.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::plan::cost {
namespace {

constexpr double kNotYet = -1;

// Groups of micro-batches (one for each stage) after which a pipeline repeats itself.
constexpr int kGroupsUntilSteady = 4;

std::vector<double> NumbersOf(const PipelineCost& cost) {
  std::vector<double> numbers = {cost.transfer, cost.overlaps_transfers ? 1.0 : 0.0};
  for (const PassSeconds& place : cost.places) {
    numbers.push_back(place.forward);
    numbers.push_back(place.backward);
  }
  return numbers;
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

template <typename Factor, typename See>
PipelineTime PipelineWalk::PlayWith(const PipelineCost& cost, const Factor& factor,
                                    const See& see) const {
  const auto stages = static_cast<size_t>(shape_.stages);
  const size_t places = stages * static_cast<size_t>(std::max(1, shape_.chunks));
  const auto micro_batches = static_cast<size_t>(shape_.micro_batches);
  TERCIO_CHECK_EQ(cost.places.size(), places);
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
          const double arrives = now + cost.transfer;
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
