#include "worker/engine/weight_gather.h"

#include <memory>

namespace tercio::engine {

WeightGather::WeightGather(const plan::RankShards& shards, const plan::StageTensors& tensors,
                           kernels::Values weights, const float* master,
                           collective::Communicator& data, Streams streams, StepTrace& trace,
                           progress::Whereabouts& where)
    : shards_(shards),
      tensors_(tensors),
      weights_(weights),
      master_(master),
      data_(data),
      streams_(streams),
      trace_(trace),
      where_(where) {
  for (const plan::StateUnit& unit : shards.units) {
    if (unit.stage_layer < 0) continue;
    layers_.resize(static_cast<size_t>(unit.stage_layer) + 1);
    layers_.back().push_back(&unit);
  }
}

void WeightGather::Begin() {
  if (!shards_.divided() || is_current_) return;
  device::Stream& stream = streams_.communication;
  const device::Range range(stream, "gather weights", 0);
  Follow();
  // Both callbacks run when the stream reaches them, which is after this function has returned.
  auto start = std::make_shared<double>(0);
  if (trace_.on()) {
    stream.RunOnHost([start] {
      *start = StepTrace::Now();
      return absl::OkStatus();
    });
  }
  for (const plan::StateUnit& unit : shards_.units) {
    // Further uses of a tensor read the same memory.
    if (unit.own_parameter && unit.stage_layer < 0) Gather(unit);
  }
  if (trace_.on()) {
    stream.RunOnHost([this, start] {
      trace_.Add({"gather weights", 0, 0, *start, StepTrace::Now() - *start, true});
      return absl::OkStatus();
    });
  }
  is_current_ = true;
  under_way_ = true;
}

void WeightGather::Await() {
  if (!under_way_) return;
  const progress::Whereabouts::Join join(where_, data_.group());
  streams_.compute.Join(streams_.communication);
  under_way_ = false;
}

void WeightGather::Use(size_t layer, size_t next) {
  Fetch(layer);
  {
    const progress::Whereabouts::Join join(where_, data_.group());
    streams_.compute.Wait(*streams_.gathered[layer % 2]);
  }
  if (next != layer) Fetch(next);
}

void WeightGather::Fetch(size_t layer) {
  int64_t& there = there_[layer % 2];
  if (there == static_cast<int64_t>(layer)) return;
  there = static_cast<int64_t>(layer);
  const device::Range range(streams_.communication, "gather layer", static_cast<int64_t>(layer));
  // The layer that was in this place has been computed by then.
  Follow();
  for (const plan::StateUnit* unit : layers_[layer]) Gather(*unit);
  streams_.communication.Record(*streams_.gathered[layer % 2]);
}

void WeightGather::Follow() {
  streams_.compute.Record(streams_.updated);
  streams_.communication.Wait(streams_.updated);
}

void WeightGather::Gather(const plan::StateUnit& unit) {
  const kernels::Values place = weights_ + unit.model_offset;
  const plan::ShardRange own = shards_.RangeOf(tensors_, unit, data_.rank());
  if (shards_.divides_weights && own.elements > 0) {
    streams_.communication.RunOperations([=, this](kernels::Ops& ops) {
      // Rounds to what the model reads.
      ops.Copy(place + own.begin, master_ + own.state_offset, own.elements);
    });
  }
  data_.SetPurpose({"gather", unit.name.c_str()});
  data_.AllGatherParts(streams_.communication, place.data(), unit.bounds, weights_.BytesFor(1));
}

}  // namespace tercio::engine
