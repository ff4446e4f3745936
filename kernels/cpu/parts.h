// The CPU's operations, one function each, split into files by topic. CpuOps (cpu_ops.h) calls
// them; contracts are in kernels/ops.h.
#pragma once

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace tercio::kernels {

// Work items for loops over rows: enough to balance, large enough to pay.
struct RowBlocks {
  int64_t rows_per_block;
  int64_t blocks;
};
inline RowBlocks SplitRows(int64_t rows, int64_t columns, int threads) {
  if (threads == 1) return {rows, rows > 0 ? 1 : 0};
  const int64_t by_size = 8192 / (columns > 0 ? columns : 1) + 1;
  const int64_t by_threads = (rows + 4 * threads - 1) / (4 * threads);
  const int64_t per_block = by_size > by_threads ? by_size : by_threads;
  return {per_block, (rows + per_block - 1) / per_block};
}

// Calls body(begin, end) over blocks of rows.
template <typename Body>
void OverRows(int64_t rows, int64_t columns, ThreadPool& pool, const Body& body) {
  const RowBlocks split = SplitRows(rows, columns, pool.threads());
  pool.ParallelFor(split.blocks, [&](int64_t block, int) {
    const int64_t begin = block * split.rows_per_block;
    const int64_t end = begin + split.rows_per_block;
    body(begin, end < rows ? end : rows);
  });
}

// Channels of one row of a dropout site.
struct DropoutSpan {
  uint32_t row_word, sequence, tag;  // counter words 1 to 3 of random.h
  int64_t begin;                     // a multiple of 4
  int64_t count;
};
// Writes 0 or 1 / (1 - p) for each channel of the span to out (count).
void DropoutMultipliers(const Dropout& dropout, const DropoutSpan& span, float* out);

void LayerNormCpu(const LayerNormArgs& args, ThreadPool& pool);
void LayerNormBackwardCpu(const LayerNormBackwardArgs& args, ThreadPool& pool);
void HeadNormCpu(const HeadNormArgs& args, ThreadPool& pool);
void HeadNormBackwardCpu(const HeadNormBackwardArgs& args, ThreadPool& pool);
void ResidualCpu(const ResidualArgs& args, const LayerNormArgs* norm, ThreadPool& pool);
void ResidualBackwardCpu(const ResidualBackwardArgs& args, ThreadPool& pool);
void ColumnsCpu(const ColumnsArgs& args, ThreadPool& pool);

void ActivateCpu(const ActivationArgs& args, ThreadPool& pool);
void ActivateBackwardCpu(const ActivationBackwardArgs& args, ThreadPool& pool);

void BiasTanhCpu(const BiasTanhArgs& args, ThreadPool& pool);
void TanhBackwardCpu(const TanhBackwardArgs& args, ThreadPool& pool);

void GatedCpu(const GatedArgs& args, ThreadPool& pool);
void GatedBackwardCpu(const GatedBackwardArgs& args, ThreadPool& pool);
void RotaryCpu(const RotaryArgs& args, ThreadPool& pool);

// out[c] += leaf sums over rows of value[row, c].
struct ColumnSumsArgs {
  const float* value;  // (rows, columns)
  float* out;          // (columns)
  int64_t rows, columns;
  int64_t rows_per_leaf;
};
void ColumnLeafSums(const ColumnSumsArgs& args, ThreadPool& pool);

void AttentionCpu(const AttentionArgs& args, ThreadPool& pool);
void PagedAttentionCpu(const AttentionArgs& args, ThreadPool& pool);
void AttentionBackwardCpu(const AttentionBackwardArgs& args, ThreadPool& pool);

void EmbeddingCpu(const EmbeddingArgs& args, ThreadPool& pool);
void EmbeddingBackwardCpu(const EmbeddingBackwardArgs& args, ThreadPool& pool);
void PositionEmbeddingCpu(const PositionEmbeddingArgs& args, ThreadPool& pool);
void PositionEmbeddingBackwardCpu(const PositionEmbeddingBackwardArgs& args, ThreadPool& pool);

void GatherCpu(const GatherArgs& args, ThreadPool& pool);
void ScatterAddCpu(const ScatterAddArgs& args, ThreadPool& pool);

void SoftCapCpu(const SoftCapArgs& args, ThreadPool& pool);
void CrossEntropyLocalCpu(const CrossEntropyLocalArgs& args, ThreadPool& pool);
void CrossEntropyCombineCpu(const CrossEntropyCombineArgs& args);
void CrossEntropyBackwardCpu(const CrossEntropyBackwardArgs& args, ThreadPool& pool);

void DistillationLocalCpu(const DistillationLocalArgs& args, ThreadPool& pool);
void DistillationCombineCpu(const DistillationCombineArgs& args);
void DistillationBackwardCpu(const DistillationBackwardArgs& args, ThreadPool& pool);
void SpreadLogitsCpu(const SpreadLogitsArgs& args, ThreadPool& pool);

void AdamWCpu(const AdamWArgs& args, const AdamWTensor& tensor, ThreadPool& pool);
void AddCpu(float* a, const float* b, int64_t count, ThreadPool& pool);
void ScaleCpu(float* a, float factor, int64_t count, ThreadPool& pool);
void RoundCpu(float* x, int64_t count, Format format, ThreadPool& pool);
// The first `columns` elements of each row become numbers of x's format.
struct RoundRowsArgs {
  Values x;  // (rows, stride)
  int64_t rows, columns, stride;
};
void RoundRowsCpu(const RoundRowsArgs& args, ThreadPool& pool);
void SumsOfSquaresCpu(const SumsOfSquaresArgs& args, ThreadPool& pool);
uint64_t DigestCpu(const DigestArgs& args, ThreadPool& pool);

}  // namespace tercio::kernels
