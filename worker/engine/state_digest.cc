#include "worker/engine/state_digest.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "kernels/ops.h"
#include "plan/state_digest.h"

namespace tercio::engine {
namespace {

kernels::DigestArgs ArgsOf(const StateSlice& state, uint64_t* digest) {
  const v1::TensorSlice& slice = state.slice;
  const int64_t stride = slice.shape_size() > 1 ? slice.shape(1) : 1;
  return {.values = state.values,
          .columns = slice.column_end() - slice.column_begin(),
          .rows = slice.row_end() - slice.row_begin(),
          .first = slice.row_begin() * stride + slice.column_begin(),
          .stride = stride,
          .digest = digest};
}

absl::StatusOr<uint64_t> DigestOfRank(absl::Span<const StateSlice> saved, const Arena& arena,
                                      device::Stream& stream, DigestScratch scratch) {
  std::vector<const StateSlice*> tensors;
  for (const StateSlice& state : saved) {
    if (state.part == nullptr) tensors.push_back(&state);
  }
  auto* const digests = reinterpret_cast<uint64_t*>(scratch.begin);
  std::vector<uint64_t> known(static_cast<size_t>(scratch.count));
  uint64_t sum = 0;
  for (size_t begin = 0; begin < tensors.size(); begin += known.size()) {
    const size_t count = std::min(known.size(), tensors.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const StateSlice& state = *tensors[begin + i];
      arena.ReadAhead(state.values, state.elements);
      stream.ops().Digest(ArgsOf(state, digests + i));
    }
    stream.CopyToHost(known.data(), digests, static_cast<int64_t>(count * sizeof(uint64_t)));
    TERCIO_RETURN_IF_ERROR(stream.Synchronize());
    for (size_t i = 0; i < count; ++i) {
      sum += known[i] * plan::FactorOfTensor(tensors[begin + i]->slice.tensor());
    }
  }
  return sum;
}

}  // namespace

absl::StatusOr<uint64_t> DigestOfState(absl::Span<const StateSlice> saved, const Arena& arena,
                                       collective::Communicator& world, device::Stream& stream,
                                       DigestScratch scratch) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t mine, DigestOfRank(saved, arena, stream, scratch));
  // Sums of halves are exact in doubles for two million ranks.
  constexpr uint64_t kHalf = uint64_t{1} << 32;
  const uint64_t high = mine / kHalf;
  double halves[2] = {static_cast<double>(high), static_cast<double>(mine % kHalf)};
  stream.CopyFromHost(scratch.begin, halves, sizeof(halves));
  world.AllReduceSum(stream, scratch.begin, 2);
  stream.CopyToHost(halves, scratch.begin, sizeof(halves));
  TERCIO_RETURN_IF_ERROR(stream.Synchronize());
  return static_cast<uint64_t>(halves[0]) * kHalf + static_cast<uint64_t>(halves[1]);
}

}  // namespace tercio::engine
