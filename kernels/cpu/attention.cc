// Attention in blocks of queries, causal or not. Only the log-sum-exp of each row is kept for the
// backward pass, which computes the probabilities again (Dao et al., "FlashAttention",
// section 3.1).
//
// A work item is one head of one sequence (backward: one key head with its query heads); it uses
// its thread's part of the scratch and nothing of any other item, and its blocks start at fixed
// positions of the sequence: so its bits depend on its own inputs only.
#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/parts.h"
#include "kernels/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Packs a (depth x columns) matrix in blocks of kDepthBlock of its depth, one after the other.
void PackDeep(const MatrixView& b, int64_t depth, int64_t columns, float* out) {
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t part = std::min(kDepthBlock, depth - k);
    PackB({.data = b.data + k * b.row_stride,
           .row_stride = b.row_stride,
           .column_stride = b.column_stride},
          part, columns, out);
    out += PackedSize(part, columns);
  }
}

// c = a (rows x depth) times the first `depth` rows of a matrix packed by PackDeep with
// `packed_depth` rows.
void MultiplyDeep(const MatrixView& a, const float* packed, int64_t packed_depth, int64_t rows,
                  int64_t columns, int64_t depth, float* c, int64_t c_stride) {
  const int64_t width = PanelColumns();
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t packed_part = std::min(kDepthBlock, packed_depth - k);
    const int64_t part = std::min(kDepthBlock, depth - k);
    const Store store = k == 0 ? Store::kAssign : Store::kAdd;
    const MatrixView view{.data = a.data + k * a.column_stride,
                          .row_stride = a.row_stride,
                          .column_stride = a.column_stride};
    // Panel by panel: a panel of `part` rows is the start of the packed one of `packed_part` rows.
    for (int64_t j = 0; j < columns; j += width) {
      MultiplyPacked(view, packed + j * packed_part, rows, std::min(width, columns - j), part,
                     c + j, c_stride, store);
    }
    packed += PackedSize(packed_part, columns);
  }
}

// The multipliers of one row of the attention matrix, keys [0, count).
void AttentionDropRow(const Dropout& dropout, int64_t head, int64_t sequence, int64_t query,
                      int64_t count, float* out) {
  const uint32_t tag = kSiteAttention | dropout.layer << 4 | static_cast<uint32_t>(head) << 16;
  DropoutMultipliers(dropout,
                     {.row_word = static_cast<uint32_t>(query),
                      .sequence = static_cast<uint32_t>(dropout.first_sequence + sequence),
                      .tag = tag,
                      .begin = 0,
                      .count = count},
                     out);
}

// Keys that query `query` attends to: those up to itself, or all of the sequence.
template <typename Args>
int64_t KeysOf(const Args& a, int64_t sequence, int64_t query) {
  if (a.causal) return query + 1;
  return a.lengths == nullptr ? a.tokens : a.lengths[sequence];
}

// Scores of `rows` queries from `first` over keys [0, keys), scaled.
void ScoreBlock(const MatrixView& q, const float* packed_keys, int64_t rows, int64_t keys,
                int64_t head_dim, float scale, float* scores, int64_t stride) {
  const Tag d;
  MultiplyPacked(q, packed_keys, rows, keys, head_dim, scores, stride, Store::kAssign);
  const Vector factor = hn::Set(d, scale);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * stride;
    ForVectors(keys,
               [&](auto load, auto store) HWY_ATTR { store(hn::Mul(load(row), factor), row); });
  }
}

void AttentionItem(const AttentionArgs& a, int64_t item, float* scratch) {
  const Tag d;
  const int64_t sequence = item / a.heads;
  const int64_t head = item % a.heads;
  const int64_t start = sequence * a.tokens * a.stride + head * a.head_dim;
  const int64_t key_start = sequence * a.tokens * a.stride + head / a.group * a.head_dim;
  AttentionPieces s;
  CutScratch(scratch, a.tokens, a.head_dim, &s);
  PackB({.data = a.k + key_start, .row_stride = 1, .column_stride = a.stride}, a.head_dim, a.tokens,
        s.keys);
  PackDeep({.data = a.v + key_start, .row_stride = a.stride, .column_stride = 1}, a.tokens,
           a.head_dim, s.values);
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const int64_t out_stride = a.heads * a.head_dim;
  for (int64_t first = a.first_query; first < a.tokens;) {
    // Blocks end at the same places wherever they begin.
    const int64_t rows = std::min(kQueryBlock - first % kQueryBlock, a.tokens - first);
    const int64_t keys = KeysOf(a, sequence, first + rows - 1);
    ScoreBlock({.data = a.q + start + first * a.stride, .row_stride = a.stride, .column_stride = 1},
               s.keys, rows, keys, a.head_dim, scale, s.scores, s.stride);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = s.scores + i * s.stride;
      const int64_t count = KeysOf(a, sequence, first + i);
      const float max = MaxRow(row, count);
      const Vector max_all = hn::Set(d, max);
      ForVectors(count, [&](auto load, auto store)
                            HWY_ATTR { store(Exp(hn::Sub(load(row), max_all)), row); });
      const float sum = SumRow(count, [&](auto load) HWY_ATTR { return load(row); });
      a.lse[item * a.tokens + first + i] =
          static_cast<float>(max + std::log(static_cast<double>(sum)));
      const Vector inverse = hn::Set(d, 1.0f / sum);
      if (a.dropout.probability > 0) {
        AttentionDropRow(a.dropout, a.first_head + head, sequence, first + i, count, s.drop);
        ForVectors(count, [&](auto load, auto store) HWY_ATTR {
          store(hn::Mul(hn::Mul(load(row), inverse), load(s.drop)), row);
        });
      } else {
        ForVectors(count, [&](auto load, auto store)
                              HWY_ATTR { store(hn::Mul(load(row), inverse), row); });
      }
      std::fill(row + count, row + keys, 0.0f);
    }
    float* out = a.out + (sequence * a.tokens + first) * out_stride + head * a.head_dim;
    MultiplyDeep({.data = s.scores, .row_stride = s.stride, .column_stride = 1}, s.values, a.tokens,
                 rows, a.head_dim, keys, out, out_stride);
    first += rows;
  }
}

// One row of the block: scores become dropped-out probabilities, gradients the gradient of the
// scores.
void BackwardRow(const AttentionBackwardArgs& a, int64_t sequence, int64_t head, int64_t query,
                 int64_t keys, float delta, float scale, const AttentionPieces& s, int64_t i) {
  const Tag d;
  float* p_row = s.scores + i * s.stride;
  float* g_row = s.gradients + i * s.stride;
  const int64_t count = KeysOf(a, sequence, query);
  const Vector lse = hn::Set(d, a.lse[(sequence * a.heads + head) * a.tokens + query]);
  const Vector delta_all = hn::Set(d, delta);
  const Vector factor = hn::Set(d, scale);
  if (a.dropout.probability > 0) {
    AttentionDropRow(a.dropout, a.first_head + head, sequence, query, count, s.drop);
    ForVectors(count, [&](auto load, auto store) HWY_ATTR {
      const Vector p = Exp(hn::Sub(load(p_row), lse));
      const Vector drop = load(s.drop);
      const Vector g = hn::Sub(hn::Mul(load(g_row), drop), delta_all);
      store(hn::Mul(hn::Mul(p, g), factor), g_row);
      store(hn::Mul(p, drop), p_row);
    });
  } else {
    ForVectors(count, [&](auto load, auto store) HWY_ATTR {
      const Vector p = Exp(hn::Sub(load(p_row), lse));
      const Vector g = hn::Sub(load(g_row), delta_all);
      store(hn::Mul(hn::Mul(p, g), factor), g_row);
      store(p, p_row);
    });
  }
  std::fill(p_row + count, p_row + keys, 0.0f);
  std::fill(g_row + count, g_row + keys, 0.0f);
}

// A block of queries against the keys it attends to.
struct KeyBlock {
  int64_t rows;  // queries
  int64_t old;   // keys that have had a part already: of earlier blocks, or an earlier head
  int64_t keys;
};

// d_rows[j] (= or +=) sum_i weights[i, j] * packed[i]
void AddKeyGradients(const float* weights, int64_t weights_stride, const float* packed,
                     const KeyBlock& block, int64_t head_dim, float* out, int64_t stride) {
  MultiplyPacked({.data = weights, .row_stride = 1, .column_stride = weights_stride}, packed,
                 block.old, head_dim, block.rows, out, stride, Store::kAdd);
  MultiplyPacked({.data = weights + block.old, .row_stride = 1, .column_stride = weights_stride},
                 packed, block.keys - block.old, head_dim, block.rows, out + block.old * stride,
                 stride, Store::kAssign);
}

// Keys that are padding have no gradient.
void ZeroKeys(const AttentionBackwardArgs& a, int64_t sequence, int64_t key_start) {
  for (int64_t key = KeysOf(a, sequence, a.tokens - 1); key < a.tokens; ++key) {
    float* dk = a.dk + key_start + key * a.stride;
    float* dv = a.dv + key_start + key * a.stride;
    std::fill_n(dk, a.head_dim, 0.0f);
    std::fill_n(dv, a.head_dim, 0.0f);
  }
}

// One query head against the keys that are packed in `s`; key gradients go to key_start.
void AttentionBackwardHead(const AttentionBackwardArgs& a, int64_t sequence, int64_t head,
                           int64_t key_start, const AttentionPieces& s) {
  const int64_t start = sequence * a.tokens * a.stride + head * a.head_dim;
  if (head % a.group == 0) ZeroKeys(a, sequence, key_start);
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  const int64_t out_stride = a.heads * a.head_dim;
  for (int64_t first = 0; first < a.tokens; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, a.tokens - first);
    const int64_t keys = KeysOf(a, sequence, first + rows - 1);
    const float* q = a.q + start + first * a.stride;
    const int64_t out_start = (sequence * a.tokens + first) * out_stride + head * a.head_dim;
    const float* dout = a.dout + out_start;
    ScoreBlock({.data = q, .row_stride = a.stride, .column_stride = 1}, s.keys, rows, keys,
               a.head_dim, scale, s.scores, s.stride);
    MultiplyPacked({.data = dout, .row_stride = out_stride, .column_stride = 1}, s.values, rows,
                   keys, a.head_dim, s.gradients, s.stride, Store::kAssign);
    for (int64_t i = 0; i < rows; ++i) {
      const float* dout_row = dout + i * out_stride;
      const float* out_row = a.out + out_start + i * out_stride;
      const float delta = SumRow(
          a.head_dim, [&](auto load) HWY_ATTR { return hn::Mul(load(dout_row), load(out_row)); });
      BackwardRow(a, sequence, head, first + i, keys, delta, scale, s, i);
    }
    MultiplyDeep({.data = s.gradients, .row_stride = s.stride, .column_stride = 1}, s.rows,
                 a.tokens, rows, a.head_dim, keys, a.dq + start + first * a.stride, a.stride);
    const bool all_old = head % a.group != 0 || (!a.causal && first > 0);
    const KeyBlock block{rows, all_old ? keys : first, keys};
    PackB({.data = q, .row_stride = a.stride, .column_stride = 1}, rows, a.head_dim, s.block);
    AddKeyGradients(s.gradients, s.stride, s.block, block, a.head_dim, a.dk + key_start, a.stride);
    PackB({.data = dout, .row_stride = out_stride, .column_stride = 1}, rows, a.head_dim, s.block);
    AddKeyGradients(s.scores, s.stride, s.block, block, a.head_dim, a.dv + key_start, a.stride);
  }
}

// A key head of one sequence, with the query heads of its group in ascending order.
void AttentionBackwardItem(const AttentionBackwardArgs& a, int64_t item, float* scratch) {
  const int64_t key_heads = a.heads / a.group;
  const int64_t sequence = item / key_heads;
  const int64_t key_head = item % key_heads;
  const int64_t key_start = sequence * a.tokens * a.stride + key_head * a.head_dim;
  AttentionPieces s;
  CutScratch(scratch, a.tokens, a.head_dim, &s);
  PackB({.data = a.k + key_start, .row_stride = 1, .column_stride = a.stride}, a.head_dim, a.tokens,
        s.keys);
  PackB({.data = a.v + key_start, .row_stride = 1, .column_stride = a.stride}, a.head_dim, a.tokens,
        s.values);
  PackDeep({.data = a.k + key_start, .row_stride = a.stride, .column_stride = 1}, a.tokens,
           a.head_dim, s.rows);
  for (int64_t i = 0; i < a.group; ++i) {
    AttentionBackwardHead(a, sequence, key_head * a.group + i, key_start, s);
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(AttentionItem);
HWY_EXPORT(AttentionBackwardItem);

void AttentionCpu(const AttentionArgs& args, ThreadPool& pool) {
  TERCIO_CHECK_LE(args.head_dim, kDepthBlock);
  const int64_t per_thread = AttentionScratchStride(args.tokens, args.head_dim);
  pool.ParallelFor(args.sequences * args.heads, [&](int64_t item, int thread) {
    HWY_DYNAMIC_DISPATCH(AttentionItem)(args, item, args.scratch + thread * per_thread);
  });
}

void AttentionBackwardCpu(const AttentionBackwardArgs& args, ThreadPool& pool) {
  TERCIO_CHECK_LE(args.head_dim, kDepthBlock);
  const int64_t per_thread = AttentionScratchStride(args.tokens, args.head_dim);
  pool.ParallelFor(args.sequences * args.heads / args.group, [&](int64_t item, int thread) {
    HWY_DYNAMIC_DISPATCH(AttentionBackwardItem)(args, item, args.scratch + thread * per_thread);
  });
}

}  // namespace tercio::kernels
#endif
