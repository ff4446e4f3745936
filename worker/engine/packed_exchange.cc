#include "worker/engine/packed_exchange.h"

#include <algorithm>

#include "plan/reduction_scratch.h"

namespace tercio::engine {
namespace {

using plan::PackedRun;
using plan::PackedUnit;

std::vector<PackedUnit> PackedUnitsOf(const plan::RankShards& shards,
                                      const plan::StageTensors& tensors,
                                      kernels::BlockFormat format) {
  std::vector<PackedUnit> packed;
  if (format == kernels::BlockFormat::kNone) return packed;
  for (const plan::StateUnit& unit : shards.units) {
    packed.push_back(plan::PackedUnitOf(tensors, unit, format));
  }
  return packed;
}

}  // namespace

PackedExchange::PackedExchange(const plan::RankShards& shards, const plan::StageTensors& tensors,
                               kernels::BlockFormat weights, kernels::BlockFormat gradients,
                               Arena& arena, collective::Communicator& ranks,
                               collective::Communicator& sums)
    : shards_(shards),
      weights_(PackedUnitsOf(shards, tensors, weights)),
      gradients_(PackedUnitsOf(shards, tensors,
                               shards.divides_gradients ? gradients : kernels::BlockFormat::kNone)),
      buffers_{arena.Get<std::byte>("packed.weights"), arena.Get<std::byte>("packed.gradients"),
               arena.Get<std::byte>("packed.received"), arena.Floats("packed.sum")},
      ranks_(ranks),
      sums_(sums),
      tree_(plan::SumTreeOf(plan::SumOrder::kTree, ranks.size())) {}

void PackedExchange::Gather(device::Stream& stream, size_t unit, const float* own,
                            kernels::Values place) {
  const PackedUnit& packed = weights_[unit];
  const bool is_alone = !shards_.divided();
  const auto rank = static_cast<size_t>(is_alone ? 0 : ranks_.rank());
  const int64_t first = shards_.units[unit].bounds[rank];
  stream.RunOperations([=, this, &packed](kernels::Ops& ops) {
    for (const PackedRun& run : packed.runs[rank]) {
      const float* const from = own + (run.begin - first);
      if (is_alone) {
        ops.RoundBlocks(place + run.begin, from, run.elements, run.format);
      } else {
        ops.PackBlocks(buffers_.weights + run.byte, from, run.elements, run.format);
      }
    }
  });
  if (is_alone) return;
  ranks_.SetPurpose({"gather", shards_.units[unit].name.c_str()});
  ranks_.AllGatherParts(stream, buffers_.weights, packed.bounds, 1);
  stream.RunOperations([=, this, &packed](kernels::Ops& ops) {
    for (const std::vector<PackedRun>& runs : packed.runs) {
      for (const PackedRun& run : runs) {
        ops.UnpackBlocks(place + run.begin, buffers_.weights + run.byte, run.elements, run.format);
      }
    }
  });
}

void PackedExchange::Reduce(device::Stream& stream, size_t unit, int round, float* gradients) {
  const PackedUnit& packed = gradients_[unit];
  stream.RunOperations([=, this, &packed](kernels::Ops& ops) {
    for (const std::vector<PackedRun>& runs : packed.runs) {
      for (const PackedRun& run : runs) {
        ops.PackBlocks(buffers_.gradients + run.byte, gradients + run.begin, run.elements,
                       run.format);
      }
    }
  });
  const auto own = static_cast<size_t>(sums_.rank());
  const int64_t bytes = packed.bounds[own + 1] - packed.bounds[own];
  // A rank's own part is not sent: those of the others lie side by side.
  const auto received = [=, this](size_t r) {
    return buffers_.received + static_cast<int64_t>(r < own ? r : r - 1) * bytes;
  };
  std::vector<collective::Part> send;
  std::vector<collective::MutablePart> receive;
  for (size_t r = 0; r < packed.runs.size(); ++r) {
    send.push_back(
        {buffers_.gradients + packed.bounds[r], packed.bounds[r + 1] - packed.bounds[r]});
    receive.push_back({r == own ? nullptr : received(r), bytes});
  }
  sums_.SetPurpose({"sum", shards_.units[unit].name.c_str(), round});
  sums_.AllToAll(stream, send, receive);
  const std::vector<int64_t>& bounds = shards_.units[unit].bounds;
  const int64_t first = bounds[own];
  const int64_t elements = bounds[own + 1] - first;
  if (elements == 0) return;
  stream.RunOperations([=, this, &packed](kernels::Ops& ops) {
    const auto slice = [&](size_t r) {
      return buffers_.floats + static_cast<int64_t>(r) * plan::PartSlice(elements);
    };
    for (size_t r = 0; r < packed.runs.size(); ++r) {
      const std::byte* const from =
          r == own ? buffers_.gradients + packed.bounds[own] : received(r);
      int64_t at = first;
      for (const PackedRun& run : packed.runs[own]) {
        // Padding between tensors is not sent.
        ops.Zero(slice(r) + (at - first), run.begin - at);
        ops.UnpackBlocks(slice(r) + (run.begin - first), from + (run.byte - packed.bounds[own]),
                         run.elements, run.format);
        at = run.begin + run.elements;
      }
      ops.Zero(slice(r) + (at - first), first + elements - at);
    }
    for (const plan::Addition& addition : tree_) {
      ops.Add(slice(static_cast<size_t>(addition.into)), slice(static_cast<size_t>(addition.from)),
              elements);
    }
    ops.Copy(gradients + first, slice(0), elements);
  });
}

}  // namespace tercio::engine
