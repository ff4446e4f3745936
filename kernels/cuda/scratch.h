// The workspace of CUDA's operations: how many bytes each needs by its shape, for planning memory,
// and how sums over rows are cut, which decides it. Pure; knows nothing of CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tercio::kernels::cuda {

// Rows are summed in two steps: blocks of rows, then the blocks in ascending order. The cut depends
// on the number of rows alone.
struct RowBlocks {
  int64_t rows_per_block;
  int64_t blocks;
};
inline constexpr int64_t kMaxRowBlocks = 512;
inline RowBlocks CutRows(int64_t rows, int64_t least_rows) {
  const int64_t per_block = std::max(least_rows, (rows + kMaxRowBlocks - 1) / kMaxRowBlocks);
  return {per_block, (rows + per_block - 1) / per_block};
}
// The largest number of blocks for up to `rows` rows: a longer block makes them fewer, so that a
// part of the rows may have more blocks than all of them.
inline int64_t MostBlocks(int64_t rows, int64_t least_rows) {
  return std::min(kMaxRowBlocks, (rows + least_rows - 1) / least_rows);
}
inline constexpr int64_t kLeastRowsOfSum = 32;
inline constexpr int64_t kLeastRowsOfNorm = 8;

// The sizes below are enough for fewer rows, too. This one is for one bias gradient.
inline int64_t ColumnSumBytes(int64_t rows, int64_t columns) {
  return MostBlocks(rows, kLeastRowsOfSum) * columns * 4;
}
// Scratch of LayerNormBackward: weight and bias.
inline int64_t NormBackwardBytes(int64_t rows, int64_t columns) {
  return MostBlocks(rows, kLeastRowsOfNorm) * columns * 8;
}
// Scratch of HeadNormBackward: the weight. Less than a norm's of so many rows.
inline int64_t HeadNormBackwardBytes(int64_t rows, int64_t head_dim) {
  return MostBlocks(rows, kLeastRowsOfNorm) * head_dim * 4;
}
// Scratch of AttentionBackward: a float for each row of queries and head; keys of another stream
// want none.
inline int64_t AttentionBackwardBytes(int64_t rows, int64_t heads) { return rows * heads * 4; }
// Beside it, where scores have a bias with a gradient: the bias for each block of queries.
inline int64_t AttentionBiasBlocks(int64_t sequences, int64_t tokens) {
  constexpr int64_t kQueriesOfBlock = 32;  // kTile of attention_tiles.cuh
  return sequences * ((tokens + kQueriesOfBlock - 1) / kQueriesOfBlock);
}
inline int64_t AttentionBiasBytes(int64_t blocks, int64_t heads, int64_t buckets) {
  return blocks * heads * buckets * 4;
}
// The sizes of a call, by their names in ops.h.
struct AttentionSizes {
  int64_t sequences, tokens, heads, group, head_dim;
  bool dropout = false;
};
// A mask for a library's attention, of 16 bits for each pair of a query and a key.
inline int64_t AttentionMaskBytes(const AttentionSizes& sizes) {
  if (!sizes.dropout) return 0;
  const int64_t stride = (sizes.tokens + 7) / 8 * 8;
  return 2 * sizes.sequences * sizes.heads * sizes.tokens * stride;
}
// Scratch of AttentionBackward by cuDNN: the gradient of every score, padded to the library's
// tiles, in 16 bits, and, where `group` query heads share a key head, the gradients of each, in
// fp32; a float for each row and head; the mask. As plans of 9.19 say
// (cudnn/graph_library_test.cc). With less, calls are cut by sequences and heads.
inline int64_t LibraryAttentionBytes(const AttentionSizes& sizes) {
  const int64_t tokens = sizes.tokens;
  const int64_t scores = (tokens + 63) / 64 * 64 * ((tokens + 127) / 128 * 128);
  const int64_t keys = sizes.group == 1 ? 0 : 4 * tokens * sizes.head_dim;
  return sizes.sequences * sizes.heads * (2 * (scores + keys) + 4 * tokens) +
         AttentionMaskBytes(sizes) + 4096;
}
// Scratch of Digest: a number of 8 bytes for each block (elementwise.h).
inline int64_t DigestBytes(int64_t count) {
  return 8 * std::min<int64_t>(1024, (count + 255) / 256);
}
// Scratch of SumsOfSquares of `count` elements in all: an exact sum, and the number of elements
// that are not finite, of each part of a tensor; and of all parts of earlier launches.
inline constexpr int64_t kSquaresPart = 65536;
inline constexpr int64_t kSumsOfLaunch = 128;  // tensors that are summed at once
inline constexpr int64_t kNumbersOfSquares = 21;
inline int64_t SquaresBytes(int64_t count) {
  return 8 * kNumbersOfSquares * (1 + count / kSquaresPart + kSumsOfLaunch);
}

// Scratch of ChooseScale: the largest magnitude.
inline constexpr int64_t kScaleBytes = 4;

// Matrix products use no more of a workspace than this, however large it is for the sake of other
// operations: the algorithm of a shape is then the same in all jobs. NVIDIA recommends 32 MiB for
// Hopper.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

// The largest of each that a program calls; 0 where it calls none. `product_bytes` is what matrix
// products may use: the algorithms chosen need no more. With a bias of n elements they have
// 4 n, rounded up to 256, less.
struct ScratchShapes {
  int64_t rows = 0;
  int64_t norm_columns = 0;
  int64_t sum_columns = 0;  // bias gradients
  int64_t heads = 0;
  int64_t bias_blocks = 0;    // blocks of queries, where attention has a bias
  int64_t bias_buckets = 0;   // of it
  int64_t digest_count = 0;   // elements of Digest
  int64_t squares_count = 0;  // elements of all tensors of SumsOfSquares together
  int64_t product_bytes = 0;
  int64_t library_attention_bytes = 0;  // likewise what a library's attention may use
};
// Operations of a stream run one after the other and share one workspace.
inline int64_t CudaScratchBytes(const ScratchShapes& shapes) {
  return std::max({NormBackwardBytes(shapes.rows, shapes.norm_columns),
                   ColumnSumBytes(shapes.rows, shapes.sum_columns),
                   AttentionBackwardBytes(shapes.rows, shapes.heads) +
                       AttentionBiasBytes(shapes.bias_blocks, shapes.heads, shapes.bias_buckets),
                   DigestBytes(shapes.digest_count), SquaresBytes(shapes.squares_count),
                   kScaleBytes, shapes.product_bytes, shapes.library_attention_bytes});
}

}  // namespace tercio::kernels::cuda
