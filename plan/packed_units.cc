#include "plan/packed_units.h"

#include <algorithm>

#include "kernels/ops.h"
#include "plan/precision.h"
#include "plan/reduction_scratch.h"

namespace tercio::plan {
namespace {

// Shards are cut at blocks of the gradient norm, which are whole blocks of these formats.
static_assert(kernels::kSquaresBlock % kernels::kBlockElements == 0);

// Keeps every run aligned for vector loads.
constexpr int64_t kAlignment = 16;
int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t LargestOf(const std::vector<int64_t>& bounds) {
  int64_t largest = 0;
  for (size_t r = 1; r < bounds.size(); ++r) {
    largest = std::max(largest, bounds[r] - bounds[r - 1]);
  }
  return largest;
}

}  // namespace

kernels::BlockFormat FormatOfTensor(const StageTensor& entry, kernels::BlockFormat of_job) {
  return entry.tensor.is_vector ? kernels::BlockFormat::kNone : of_job;
}

PackedUnit PackedUnitOf(const StageTensors& tensors, const StateUnit& unit,
                        kernels::BlockFormat format) {
  PackedUnit packed;
  packed.bounds.push_back(0);
  for (size_t rank = 0; rank + 1 < unit.bounds.size(); ++rank) {
    std::vector<PackedRun>& runs = packed.runs.emplace_back();
    int64_t byte = packed.bounds.back();
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      const StageTensor& entry = tensors.tensors[i];
      const int64_t at = entry.gradient_offset - unit.gradient_offset;
      const int64_t begin = std::max(at, unit.bounds[rank]);
      const int64_t end = std::min(at + entry.elements, unit.bounds[rank + 1]);
      if (begin >= end) continue;
      const kernels::BlockFormat of_tensor = FormatOfTensor(entry, format);
      runs.push_back({begin, end - begin, of_tensor, byte});
      byte += RoundUp(kernels::PackedBytes(of_tensor, end - begin));
    }
    packed.bounds.push_back(byte);
  }
  return packed;
}

PackedBuffers PackedWeights(const v1::JobSpec& job, const v1::Layout& layout,
                            const StageTensors& tensors) {
  PackedBuffers buffers;
  const kernels::BlockFormat format = WeightFormatOf(job);
  const int shards = ShardRanks(layout);
  if (format == kernels::BlockFormat::kNone || shards == 1) return buffers;
  for (const UnitKind& kind : UnitKindsOf(tensors, shards)) {
    if (!kind.unit.own_parameter) continue;
    buffers.packed = std::max(buffers.packed, PackedUnitOf(tensors, kind.unit, format).bytes());
  }
  return buffers;
}

PackedBuffers PackedGradients(const v1::JobSpec& job, const v1::Layout& layout,
                              const StageTensors& tensors) {
  PackedBuffers buffers;
  const kernels::BlockFormat format = GradientFormatOf(job);
  if (format == kernels::BlockFormat::kNone || !DividesGradients(layout)) return buffers;
  const int shards = ShardRanks(layout);
  const std::vector<UnitKind> kinds = UnitKindsOf(tensors, shards);
  for (const UnitKind& kind : kinds) {
    if (kind.unit.frozen) continue;
    const PackedUnit packed = PackedUnitOf(tensors, kind.unit, format);
    buffers.packed = std::max(buffers.packed, packed.bytes());
    buffers.received = std::max(buffers.received, (shards - 1) * LargestOf(packed.bounds));
  }
  buffers.floats = PartsScratch(LargestPart(kinds), shards) * static_cast<int64_t>(sizeof(float));
  return buffers;
}

}  // namespace tercio::plan
