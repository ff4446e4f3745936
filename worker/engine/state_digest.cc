#include "worker/engine/state_digest.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "kernels/ops.h"
#include "plan/state_digest.h"

namespace tercio::engine {
namespace {

// Consecutive elements of a slice's rows: whole rows, or a part of one.
struct Piece {
  const StateSlice* state;
  int64_t row = 0;
  int64_t column = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

// A digest is a sum over elements, so that what has to be converted first is taken in parts.
std::vector<Piece> PiecesOf(const StateSlice& state, int64_t most) {
  const int64_t columns = state.slice.column_end() - state.slice.column_begin();
  const int64_t rows = state.slice.row_end() - state.slice.row_begin();
  if (state.values.stored() == kernels::Format::kFloat32) return {{&state, 0, 0, rows, columns}};
  std::vector<Piece> pieces;
  const int64_t width = std::min(columns, most);
  const int64_t height = std::max<int64_t>(1, most / columns);
  for (int64_t row = 0; row < rows; row += height) {
    for (int64_t column = 0; column < columns; column += width) {
      pieces.push_back(
          {&state, row, column, std::min(height, rows - row), std::min(width, columns - column)});
    }
  }
  return pieces;
}

kernels::DigestArgs ArgsOf(const Piece& piece, StagedCopy& staged, uint64_t* digest) {
  const v1::TensorSlice& slice = piece.state->slice;
  const int64_t stride = slice.shape_size() > 1 ? slice.shape(1) : 1;
  const int64_t columns = slice.column_end() - slice.column_begin();
  return {.values = staged.Floats(piece.state->values + (piece.row * columns + piece.column),
                                  piece.rows * piece.columns),
          .columns = piece.columns,
          .rows = piece.rows,
          .first = (slice.row_begin() + piece.row) * stride + slice.column_begin() + piece.column,
          .stride = stride,
          .digest = digest};
}

absl::StatusOr<uint64_t> DigestOfRank(absl::Span<const StateSlice> saved, const Arena& arena,
                                      device::Stream& stream, StagedCopy& staged,
                                      DigestScratch scratch) {
  std::vector<Piece> pieces;
  for (const StateSlice& state : saved) {
    if (state.part != nullptr) continue;
    const std::vector<Piece> of_slice = PiecesOf(state, staged.capacity());
    pieces.insert(pieces.end(), of_slice.begin(), of_slice.end());
  }
  auto* const digests = reinterpret_cast<uint64_t*>(scratch.begin);
  std::vector<uint64_t> known(static_cast<size_t>(scratch.count));
  uint64_t sum = 0;
  for (size_t begin = 0; begin < pieces.size(); begin += known.size()) {
    const size_t count = std::min(known.size(), pieces.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces[begin + i];
      const StateSlice& state = *piece.state;
      if (state.values.stored() == kernels::Format::kFloat32) {
        arena.ReadAhead(state.values.floats(), state.elements);
      }
      stream.ops().Digest(ArgsOf(piece, staged, digests + i));
    }
    stream.CopyToHost(known.data(), digests, static_cast<int64_t>(count * sizeof(uint64_t)));
    TERCIO_RETURN_IF_ERROR(stream.Synchronize());
    for (size_t i = 0; i < count; ++i) {
      sum += known[i] * plan::FactorOfTensor(pieces[begin + i].state->slice.tensor());
    }
  }
  return sum;
}

}  // namespace

absl::StatusOr<uint64_t> DigestOfState(absl::Span<const StateSlice> saved, const Arena& arena,
                                       collective::Communicator& world, device::Stream& stream,
                                       StagedCopy& staged, DigestScratch scratch, bool* all) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t mine, DigestOfRank(saved, arena, stream, staged, scratch));
  // Sums of halves are exact in doubles for two million ranks.
  constexpr uint64_t kHalf = uint64_t{1} << 32;
  const uint64_t high = mine / kHalf;
  double numbers[3] = {static_cast<double>(high), static_cast<double>(mine % kHalf),
                       *all ? 0.0 : 1.0};
  stream.CopyFromHost(scratch.begin, numbers, sizeof(numbers));
  world.AllReduceSum(stream, scratch.begin, 3);
  stream.CopyToHost(numbers, scratch.begin, sizeof(numbers));
  TERCIO_RETURN_IF_ERROR(stream.Synchronize());
  *all = numbers[2] == 0;
  return static_cast<uint64_t>(numbers[0]) * kHalf + static_cast<uint64_t>(numbers[1]);
}

}  // namespace tercio::engine
