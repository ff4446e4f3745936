#include "worker/engine/weight_gather.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tercio::engine {

WeightGather::WeightGather(const plan::RankShards& shards, Weights weights, Groups groups,
                           PackedExchange& packed, Arena& arena, Streams streams, StepTrace& trace,
                           progress::Whereabouts& where)
    : shards_(shards),
      weights_(weights),
      groups_(groups),
      packed_(packed),
      arena_(arena),
      streams_(std::move(streams)),
      trace_(trace),
      where_(where) {
  for (const plan::StateUnit& unit : shards.units) {
    if (unit.stage_layer < 0) continue;
    layers_.resize(static_cast<size_t>(unit.stage_layer) + 1);
    layers_.back().push_back(&unit);
  }
  const std::vector<int> of_program = plan::ProgramUnitsOf(shards.units);
  if (!of_program.empty() && of_program.front() == plan::kEmbeddingUnit) first_layer_ = 1;
  for (size_t i = 0; i < of_program.size(); ++i) {
    runs_.resize(RunOf(of_program[i]) + 1);
    runs_.back().push_back(&shards.units[i]);
  }
}

size_t WeightGather::EventsOf(const plan::RankShards& shards) {
  if (shards.gathers_weights) return static_cast<size_t>(shards.places);
  const std::vector<int> of_program = plan::ProgramUnitsOf(shards.units);
  return of_program.empty() ? 0 : static_cast<size_t>(of_program.back() - of_program.front()) + 1;
}

void WeightGather::Begin() {
  if (!IsNeeded() || is_current_) return;
  BeginPublishing();
  for (size_t run = 0; run < runs_.size(); ++run) {
    Publish(static_cast<int>(run) - first_layer_, /*frozen=*/true);
  }
}

void WeightGather::BeginPublishing() {
  if (!IsNeeded()) return;
  is_current_ = true;
  under_way_ = true;
  awaited_ = 0;
}

void WeightGather::Publish(int unit, bool frozen) {
  const size_t run = RunOf(unit);
  const device::Range range(streams_.communication, "gather weights", unit);
  Follow();
  Traced(runs_[run].front()->name, [&] {
    for (const plan::StateUnit* each : runs_[run]) {
      // Further uses of a tensor read the same memory.
      if (each->own_parameter && each->stage_layer < 0 && (frozen || !each->frozen)) Gather(*each);
    }
  });
  if (!shards_.gathers_weights) streams_.communication.Record(*streams_.gathered[run]);
}

void WeightGather::Await() {
  if (!under_way_) return;
  Waited([this] { streams_.compute.Join(streams_.communication); });
  under_way_ = false;
}

void WeightGather::AwaitUpTo(size_t event) {
  event = std::min(event, streams_.gathered.size() - 1);
  if (!under_way_ || event < awaited_) return;
  // That of a unit which is not published is from before, so that it says nothing of those that
  // are.
  Waited([this, event] {
    for (; awaited_ <= event; ++awaited_) streams_.compute.Wait(*streams_.gathered[awaited_]);
  });
}

void WeightGather::Waited(absl::FunctionRef<void()> wait) {
  const progress::Whereabouts::Join join(where_, groups_.shard.group());
  const double start = StepTrace::Now();
  wait();
  where_.exchanges().AddWaited(progress::ExchangeClock::kGather, StepTrace::Now() - start);
}

void WeightGather::AwaitUnit(int unit) {
  if (!shards_.gathers_weights) {
    // A layer reads weights of the next one, or of the head, as well.
    return AwaitUpTo(unit == plan::kEmbeddingUnit ? 0 : RunOf(unit) + 1);
  }
  if (unit == plan::kEmbeddingUnit || unit >= static_cast<int>(layers_.size())) return;
  const auto place = static_cast<size_t>(unit % shards_.places);
  Waited([&] { streams_.compute.Wait(*streams_.gathered[place]); });
}

void WeightGather::GatherLayer(size_t layer, bool kept) {
  const size_t place = layer % static_cast<size_t>(shards_.places);
  const device::Range range(streams_.communication, "gather layer", static_cast<int64_t>(layer));
  // The layer that was in this place has been computed by then.
  Follow();
  Traced(layers_[layer].front()->name, [&] {
    for (const plan::StateUnit* unit : layers_[layer]) {
      kept ? GatherKept(*unit) : Gather(*unit);
      if (groups_.secondary != nullptr && !kept) Keep(*unit);
    }
  });
  streams_.communication.Record(*streams_.gathered[place]);
}

void WeightGather::Traced(const std::string& what, absl::FunctionRef<void()> enqueue) {
  device::Stream& stream = streams_.communication;
  if (!trace_.on() && !stream.RunsOnHost()) return enqueue();
  // Both callbacks run when the stream reaches them, which is after this function has returned.
  auto start = std::make_shared<double>(0);
  stream.RunOnHost([start] {
    *start = StepTrace::Now();
    return absl::OkStatus();
  });
  enqueue();
  stream.RunOnHost([this, name = absl::StrCat("gather ", what), start, traced = trace_.on()] {
    const double seconds = StepTrace::Now() - *start;
    where_.exchanges().AddTaken(progress::ExchangeClock::kGather, seconds);
    if (traced) trace_.Add({name, 0, 0, *start, seconds, true});
    return absl::OkStatus();
  });
}

void WeightGather::Follow() {
  streams_.compute.Record(streams_.updated);
  streams_.communication.Wait(streams_.updated);
}

kernels::ConstValues WeightGather::MasterOf(const plan::StateUnit& unit) const {
  const plan::ShardRange own = shards_.RangeOf(unit, groups_.shard.rank());
  if (unit.frozen) {
    return weights_.frozen +
           (shards_.frozen_apart ? own.state_offset : unit.parameter_offset + own.begin);
  }
  if (shards_.splits_master) {
    return (unit.near ? weights_.near : weights_.master) + own.split_offset;
  }
  return weights_.master +
         (shards_.packs_master ? own.state_offset : unit.parameter_offset + own.begin);
}

void WeightGather::Gather(const plan::StateUnit& unit) {
  const kernels::Values place = weights_.of_model + unit.model_offset;
  const plan::ShardRange own = shards_.RangeOf(unit, groups_.shard.rank());
  const kernels::ConstValues master = MasterOf(unit);
  const auto read_ahead = [=, this] {
    arena_.ReadAhead(reinterpret_cast<const float*>(master.data()),
                     master.BytesFor(own.elements) / static_cast<int64_t>(sizeof(float)));
  };
  if (packed_.packs_weights()) {
    streams_.communication.RunOperations([=](kernels::Ops&) { read_ahead(); });
    const auto index = static_cast<size_t>(&unit - shards_.units.data());
    return packed_.Gather(streams_.communication, index, master.floats(), place);
  }
  if (shards_.gathers_weights && own.elements > 0) {
    streams_.communication.RunOperations([=](kernels::Ops& ops) {
      read_ahead();
      // Rounds to what the model reads.
      ops.Copy(place + own.begin, master, own.elements);
    });
  }
  groups_.shard.SetPurpose({"gather", unit.name.c_str()});
  groups_.shard.AllGatherParts(streams_.communication, place.data(), unit.bounds,
                               weights_.of_model.BytesFor(1));
}

void WeightGather::Keep(const plan::StateUnit& unit) {
  const auto rank = static_cast<size_t>(groups_.secondary->rank());
  const int64_t begin = unit.secondary_bounds[rank];
  const int64_t elements = unit.secondary_bounds[rank + 1] - begin;
  if (elements == 0) return;
  const kernels::Values place = weights_.of_model + unit.model_offset;
  streams_.communication.RunOperations([=, this](kernels::Ops& ops) {
    ops.Copy(weights_.kept + unit.secondary_offset, place + begin, elements);
  });
}

void WeightGather::GatherKept(const plan::StateUnit& unit) {
  const auto rank = static_cast<size_t>(groups_.secondary->rank());
  const int64_t begin = unit.secondary_bounds[rank];
  const int64_t elements = unit.secondary_bounds[rank + 1] - begin;
  const kernels::Values place = weights_.of_model + unit.model_offset;
  if (elements > 0) {
    streams_.communication.RunOperations([=, this](kernels::Ops& ops) {
      ops.Copy(place + begin, weights_.kept + unit.secondary_offset, elements);
    });
  }
  groups_.secondary->SetPurpose({"gather", unit.name.c_str()});
  groups_.secondary->AllGatherParts(streams_.communication, place.data(), unit.secondary_bounds,
                                    weights_.of_model.BytesFor(1));
}

}  // namespace tercio::engine
