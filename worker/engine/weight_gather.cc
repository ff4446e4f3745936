#include "worker/engine/weight_gather.h"

#include <memory>

namespace tercio::engine {

WeightGather::WeightGather(const plan::RankShards& shards, std::byte* weights,
                           int64_t element_bytes, collective::Communicator& data, Streams streams,
                           StepTrace& trace, progress::Whereabouts& where)
    : shards_(shards),
      weights_(weights),
      element_bytes_(element_bytes),
      data_(data),
      streams_(streams),
      trace_(trace),
      where_(where) {}

void WeightGather::Begin() {
  if (!shards_.divided() || is_current_) return;
  device::Stream& stream = streams_.communication;
  const device::Range range(stream, "gather weights", 0);
  streams_.compute.Record(streams_.updated);
  stream.Wait(streams_.updated);
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
    if (!unit.own_parameter) continue;
    data_.AllGatherParts(stream, weights_ + unit.parameter_offset * element_bytes_, unit.bounds,
                         element_bytes_);
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

}  // namespace tercio::engine
