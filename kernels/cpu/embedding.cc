// Token, position and type embedding; rows by index. Copies and additions only: nothing here
// depends on the vector width, so the compiler's own vectorisation is enough.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/parts.h"
#include "kernels/random.h"

namespace tercio::kernels {
namespace {

constexpr int64_t kChunk = 256;  // channels whose dropout multipliers are made at a time

// row[c] *= multiplier, for one row of an embedding's output.
void DropRow(const Dropout& dropout, int64_t row, int64_t columns, float* values) {
  if (dropout.probability <= 0) return;
  // Masks depend on the position of a row in the whole batch, so they are equal in every layout.
  const int64_t at = dropout.first_row + row;
  const uint32_t position = static_cast<uint32_t>(at % dropout.tokens);
  const uint32_t sequence = static_cast<uint32_t>(dropout.first_sequence + at / dropout.tokens);
  float multipliers[kChunk];
  for (int64_t c = 0; c < columns; c += kChunk) {
    const int64_t count = std::min(kChunk, columns - c);
    DropoutMultipliers(dropout,
                       {.row_word = position,
                        .sequence = sequence,
                        .tag = dropout.site | dropout.layer << 4,
                        .begin = c,
                        .count = count},
                       multipliers);
    for (int64_t i = 0; i < count; ++i) values[c + i] *= multipliers[i];
  }
}

// The row of the table of positions that row n of the call has: rows of a part of a batch may begin
// within a sequence.
template <typename Args>
int64_t PositionOf(const Args& args, int64_t n) {
  return args.positions == nullptr ? (args.first_row + n) % args.tokens : args.positions[n];
}

}  // namespace

void EmbeddingCpu(const EmbeddingArgs& args, ThreadPool& pool) {
  const float scale = args.scale;
  const RowBlocks split = SplitRows(args.count, args.columns, pool.threads());
  pool.ParallelFor(split.blocks, [&](int64_t block, int) {
    const int64_t begin = block * split.rows_per_block;
    const int64_t end = std::min(args.count, begin + split.rows_per_block);
    for (int64_t n = begin; n < end; ++n) {
      // With tensor parallelism a rank has a part of the vocabulary.
      const int64_t row = args.tokens[n] - args.vocabulary_begin;
      float* out = args.out + n * args.columns;
      const size_t bytes = static_cast<size_t>(args.columns) * sizeof(float);
      if (row >= 0 && row < args.vocabulary_rows) {
        std::memcpy(out, args.weight + row * args.columns, bytes);
        if (scale == 1) continue;
        for (int64_t c = 0; c < args.columns; ++c) out[c] *= scale;
      } else {
        // The sum over the ranks is the row, so the others contribute zeros.
        std::memset(out, 0, bytes);
      }
    }
  });
}

void EmbeddingBackwardCpu(const EmbeddingBackwardArgs& args, ThreadPool& pool) {
  const float scale = args.scale;
  // Threads own columns, so that every element is summed in the order of n.
  // Less than 64 columns would have several threads write to the same lines of the cache.
  const int64_t chunk = std::max<int64_t>(64, (args.columns + pool.threads() - 1) / pool.threads());
  pool.ParallelFor((args.columns + chunk - 1) / chunk, [&](int64_t item, int) {
    const int64_t begin = item * chunk;
    const int64_t end = std::min(args.columns, begin + chunk);
    for (int64_t n = 0; n < args.count; ++n) {
      const int64_t row = args.tokens[n] - args.vocabulary_begin;
      if (row < 0 || row >= args.vocabulary_rows) continue;
      const float* from = args.dx + n * args.columns;
      float* to = args.dweight + row * args.columns;
      // A product with 1 changes no bit.
      for (int64_t c = begin; c < end; ++c) to[c] += from[c] * scale;
    }
  });
}

void PositionEmbeddingCpu(const PositionEmbeddingArgs& args, ThreadPool& pool) {
  const RowBlocks split = SplitRows(args.rows, args.columns, pool.threads());
  pool.ParallelFor(split.blocks, [&](int64_t block, int) {
    const int64_t begin = block * split.rows_per_block;
    const int64_t end = std::min(args.rows, begin + split.rows_per_block);
    for (int64_t n = begin; n < end; ++n) {
      float* x = args.x + n * args.columns;
      if (args.weight != nullptr) {
        const float* weight = args.weight + PositionOf(args, n) * args.columns;
        for (int64_t c = 0; c < args.columns; ++c) x[c] += weight[c];
      }
      if (args.type_weight != nullptr) {
        const float* weight = args.type_weight + args.types[n] * args.columns;
        for (int64_t c = 0; c < args.columns; ++c) x[c] += weight[c];
      }
      DropRow(args.dropout, n, args.columns, x);
    }
  });
}

void PositionEmbeddingBackwardCpu(const PositionEmbeddingBackwardArgs& args, ThreadPool& pool) {
  if (args.dropout.probability > 0) {
    // The gradient passes the dropout first, since the tables lie before it.
    OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        DropRow(args.dropout, n, args.columns, args.dx + n * args.columns);
      }
    });
  }
  if (args.dweight == nullptr && args.dtype_weight == nullptr) return;
  // Threads own columns, so that every element is summed in the order of n.
  const int64_t chunk = std::max<int64_t>(64, (args.columns + pool.threads() - 1) / pool.threads());
  pool.ParallelFor((args.columns + chunk - 1) / chunk, [&](int64_t item, int) {
    const int64_t begin = item * chunk;
    const int64_t end = std::min(args.columns, begin + chunk);
    for (int64_t n = 0; n < args.rows; ++n) {
      const float* dx = args.dx + n * args.columns;
      const auto add = [&](float* to) {
        for (int64_t c = begin; c < end; ++c) to[c] += dx[c];
      };
      if (args.dweight != nullptr) add(args.dweight + PositionOf(args, n) * args.columns);
      if (args.dtype_weight != nullptr) add(args.dtype_weight + args.types[n] * args.columns);
    }
  });
}

void GatherCpu(const GatherArgs& args, ThreadPool& pool) {
  OverRows(args.count, args.columns, pool, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n((args.x + args.index[i] * args.columns).floats(), args.columns,
                  (args.out + i * args.columns).floats());
    }
  });
}

void ScatterAddCpu(const ScatterAddArgs& args, ThreadPool& pool) {
  // Threads own columns, so that every element is summed in the order of i.
  const int64_t chunk = std::max<int64_t>(64, (args.columns + pool.threads() - 1) / pool.threads());
  pool.ParallelFor((args.columns + chunk - 1) / chunk, [&](int64_t item, int) {
    const int64_t begin = item * chunk;
    const int64_t end = std::min(args.columns, begin + chunk);
    for (int64_t i = 0; i < args.count; ++i) {
      const float* from = args.from + i * args.columns;
      float* to = args.to + args.index[i] * args.columns;
      for (int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace tercio::kernels
