// Attention in blocks of queries, causal or not. Only the log-sum-exp of each row is kept for the
// backward pass, which computes the probabilities again (Dao et al., "FlashAttention",
// section 3.1).
//
// Keys that no query of a block sees are not touched: a window makes long contexts cheaper.
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
#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Where a key head of a sequence begins in k and v, and in their gradients.
template <typename Args>
int64_t KeyStart(const Args& a, int64_t sequence, int64_t key_head) {
  return sequence * KeyTokensOf(a) * KeyStrideOf(a) + key_head * a.head_dim;
}

// Packs a (depth x columns) matrix in blocks of kDepthBlock of its depth, one after the other, but
// those that end before `begin`, whose place stays as it is.
void PackDeep(const MatrixView& b, int64_t depth, int64_t columns, int64_t begin, float* out) {
  for (int64_t k = 0; k < depth; k += kDepthBlock) {
    const int64_t part = std::min(kDepthBlock, depth - k);
    if (k + part > begin) {
      PackB({.data = b.data + k * b.row_stride,
             .row_stride = b.row_stride,
             .column_stride = b.column_stride},
            part, columns, out);
    }
    out += PackedSize(part, columns);
  }
}

// c = a (rows x keys, of which only those of the span are read) times the same rows of a matrix
// packed by PackDeep with `packed_depth` rows.
void MultiplyDeep(const MatrixView& a, const float* packed, int64_t packed_depth, int64_t rows,
                  int64_t columns, const KeySpan& keys, float* c, int64_t c_stride) {
  const int64_t width = PanelColumns();
  Store store = Store::kAssign;
  for (int64_t k = 0; k < keys.end; k += kDepthBlock) {
    const int64_t packed_part = std::min(kDepthBlock, packed_depth - k);
    const int64_t begin = std::max(k, keys.begin);
    const int64_t end = std::min(k + kDepthBlock, keys.end);
    if (begin < end) {
      const MatrixView view{.data = a.data + begin * a.column_stride,
                            .row_stride = a.row_stride,
                            .column_stride = a.column_stride};
      // Panel by panel: some rows of a panel lie together in the packed one of `packed_part` rows.
      for (int64_t j = 0; j < columns; j += width) {
        MultiplyPacked(view, packed + j * packed_part + (begin - k) * width, rows,
                       std::min(width, columns - j), end - begin, c + j, c_stride, store);
      }
      store = Store::kAdd;
    }
    packed += PackedSize(packed_part, columns);
  }
}

// Scores of `rows` queries over the keys of the span, scaled and capped.
template <typename Args>
void ScoreBlock(const Args& a, const MatrixView& q, const float* packed_keys, int64_t rows,
                const KeySpan& keys, float* scores, int64_t stride) {
  MultiplyPacked(q, packed_keys + keys.begin * a.head_dim, rows, keys.count(), a.head_dim,
                 scores + keys.begin, stride, Store::kAssign);
  ScaleScores(a, rows, keys, scores, stride);
}

void AttentionItem(const AttentionArgs& a, int64_t item, float* scratch) {
  const int64_t sequence = item / a.heads;
  const int64_t head = item % a.heads;
  const int64_t keys_of_sequence = KeyTokensOf(a);
  const int64_t key_stride = KeyStrideOf(a);
  const int64_t start = sequence * a.tokens * a.stride + head * a.head_dim;
  const int64_t key_start = KeyStart(a, sequence, head / a.group);
  AttentionPieces s;
  CutScratch(scratch, ScratchShapeOf(a), &s);
  // Nothing sees what lies before the first block's keys.
  const int64_t begin = KeysOfBlock(a, sequence, a.first_query, 1).begin;
  PackB(
      {.data = a.k + key_start + begin * key_stride, .row_stride = 1, .column_stride = key_stride},
      a.head_dim, keys_of_sequence - begin, s.keys + begin * a.head_dim);
  PackDeep({.data = a.v + key_start, .row_stride = key_stride, .column_stride = 1},
           keys_of_sequence, a.head_dim, begin, s.values);
  const int64_t out_stride = a.heads * a.head_dim;
  for (int64_t first = a.first_query; first < a.tokens;) {
    // Blocks end at the same places wherever they begin.
    const int64_t rows = std::min(kQueryBlock - first % kQueryBlock, a.tokens - first);
    const KeySpan keys = KeysOfBlock(a, sequence, first, rows);
    ScoreBlock(a,
               {.data = a.q + start + first * a.stride, .row_stride = a.stride, .column_stride = 1},
               s.keys, rows, keys, s.scores, s.stride);
    for (int64_t i = 0; i < rows; ++i) {
      a.lse[item * a.tokens + first + i] =
          SoftmaxRow(a, sequence, head, first + i, keys, s.scores + i * s.stride, s.drop);
    }
    float* out = a.out + (sequence * a.tokens + first) * out_stride + head * a.head_dim;
    MultiplyDeep({.data = s.scores, .row_stride = s.stride, .column_stride = 1}, s.values,
                 keys_of_sequence, rows, a.head_dim, keys, out, out_stride);
    first += rows;
  }
}

// One row of the block: scores become dropped-out probabilities, gradients the gradient of the
// scores, and both zeros for the block's other keys.
void BackwardRow(const AttentionBackwardArgs& a, int64_t sequence, int64_t head, int64_t query,
                 const KeySpan& block, float delta, const AttentionPieces& s, int64_t i) {
  const Tag d;
  const KeySpan keys = KeysOf(a, sequence, query);
  float* all_p = s.scores + i * s.stride;
  float* all_g = s.gradients + i * s.stride;
  float* p_row = all_p + keys.begin;
  float* g_row = all_g + keys.begin;
  AddBias(a, head, query, keys, all_p);
  const Vector lse = hn::Set(d, a.lse[(sequence * a.heads + head) * a.tokens + query]);
  const Vector delta_all = hn::Set(d, delta);
  const Vector factor = hn::Set(d, ScaleOf(a));
  const bool capped = a.softcap > 0;
  const Vector cap = hn::Set(d, a.softcap);
  const auto of_score = [&](Vector p, Vector g, Vector score) HWY_ATTR {
    const Vector gradient = hn::Mul(hn::Mul(p, g), factor);
    return capped ? ThroughCap(gradient, score, cap) : gradient;
  };
  if (a.dropout.probability > 0) {
    AttentionDropRow(a.dropout, a.first_head + head, sequence, query, keys, s.drop);
    const float* drop_row = s.drop + keys.begin;
    ForVectors(keys.count(), [&](auto load, auto store) HWY_ATTR {
      const Vector score = load(p_row);
      const Vector p = Exp(hn::Sub(score, lse));
      const Vector drop = load(drop_row);
      const Vector g = hn::Sub(hn::Mul(load(g_row), drop), delta_all);
      store(of_score(p, g, score), g_row);
      store(hn::Mul(p, drop), p_row);
    });
  } else {
    ForVectors(keys.count(), [&](auto load, auto store) HWY_ATTR {
      const Vector score = load(p_row);
      const Vector p = Exp(hn::Sub(score, lse));
      const Vector g = hn::Sub(load(g_row), delta_all);
      store(of_score(p, g, score), g_row);
      store(p, p_row);
    });
  }
  for (float* row : {all_p, all_g}) {
    std::fill(row + block.begin, row + keys.begin, 0.0f);
    std::fill(row + keys.end, row + block.end, 0.0f);
  }
}

// sums[bucket] += the gradients of one query's scores before their scale, run by run.
void AddBiasGradient(const AttentionBackwardArgs& a, int64_t sequence, int64_t query,
                     const float* gradients, float* sums) {
  const float inverse = 1.0f / ScaleOf(a);  // the gradients are those of products
  ForRuns(a.bias, a.tokens, query, KeysOf(a, sequence, query),
          [&](int64_t key, int64_t count, int32_t bucket) HWY_ATTR {
            const float* run = gradients + key;
            sums[bucket] += SumRow(count, [&](auto load) HWY_ATTR { return load(run); }) * inverse;
          });
}

// A block of queries against the keys it attends to.
struct KeyBlock {
  int64_t rows;  // queries
  KeySpan keys;
  int64_t old;  // keys before this one have had a part: of earlier blocks, or an earlier head
};

// d_rows[j] (= or +=) sum_i weights[i, j] * packed[i]
void AddKeyGradients(const float* weights, int64_t weights_stride, const float* packed,
                     const KeyBlock& block, int64_t head_dim, float* out, int64_t stride) {
  const auto add = [&](const KeySpan& keys, Store store) HWY_ATTR {
    MultiplyPacked({.data = weights + keys.begin, .row_stride = 1, .column_stride = weights_stride},
                   packed, keys.count(), head_dim, block.rows, out + keys.begin * stride, stride,
                   store);
  };
  add({block.keys.begin, block.old}, Store::kAdd);
  add({block.old, block.keys.end}, Store::kAssign);
}

// Keys that are padding have no gradient.
void ZeroKeys(const AttentionBackwardArgs& a, int64_t sequence, int64_t key_start) {
  for (int64_t key = KeysOf(a, sequence, a.tokens - 1).end; key < KeyTokensOf(a); ++key) {
    float* dk = a.dk + key_start + key * KeyStrideOf(a);
    float* dv = a.dv + key_start + key * KeyStrideOf(a);
    std::fill_n(dk, a.head_dim, 0.0f);
    std::fill_n(dv, a.head_dim, 0.0f);
  }
}

// One query head against the keys that are packed in `s`; key gradients go to key_start.
void AttentionBackwardHead(const AttentionBackwardArgs& a, int64_t sequence, int64_t head,
                           int64_t key_start, const AttentionPieces& s) {
  const int64_t start = sequence * a.tokens * a.stride + head * a.head_dim;
  const int64_t key_stride = KeyStrideOf(a);
  if (head % a.group == 0) ZeroKeys(a, sequence, key_start);
  float bias_sums[kMostBiasBuckets] = {};  // this sequence's
  const int64_t out_stride = a.heads * a.head_dim;
  for (int64_t first = 0; first < a.tokens; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, a.tokens - first);
    const KeySpan keys = KeysOfBlock(a, sequence, first, rows);
    const float* q = a.q + start + first * a.stride;
    const int64_t out_start = (sequence * a.tokens + first) * out_stride + head * a.head_dim;
    const float* dout = a.dout + out_start;
    ScoreBlock(a, {.data = q, .row_stride = a.stride, .column_stride = 1}, s.keys, rows, keys,
               s.scores, s.stride);
    MultiplyPacked({.data = dout, .row_stride = out_stride, .column_stride = 1},
                   s.values + keys.begin * a.head_dim, rows, keys.count(), a.head_dim,
                   s.gradients + keys.begin, s.stride, Store::kAssign);
    for (int64_t i = 0; i < rows; ++i) {
      const float* dout_row = dout + i * out_stride;
      const float* out_row = a.out + out_start + i * out_stride;
      const float delta = SumRow(
          a.head_dim, [&](auto load) HWY_ATTR { return hn::Mul(load(dout_row), load(out_row)); });
      BackwardRow(a, sequence, head, first + i, keys, delta, s, i);
      if (a.dbias == nullptr) continue;
      AddBiasGradient(a, sequence, first + i, s.gradients + i * s.stride, bias_sums);
    }
    MultiplyDeep({.data = s.gradients, .row_stride = s.stride, .column_stride = 1}, s.rows,
                 KeyTokensOf(a), rows, a.head_dim, keys, a.dq + start + first * a.stride, a.stride);
    const bool all_old = head % a.group != 0 || (!a.causal && first > 0);
    const KeyBlock block{rows, keys, all_old ? keys.end : first};
    PackB({.data = q, .row_stride = a.stride, .column_stride = 1}, rows, a.head_dim, s.block);
    AddKeyGradients(s.gradients, s.stride, s.block, block, a.head_dim, a.dk + key_start,
                    key_stride);
    PackB({.data = dout, .row_stride = out_stride, .column_stride = 1}, rows, a.head_dim, s.block);
    AddKeyGradients(s.scores, s.stride, s.block, block, a.head_dim, a.dv + key_start, key_stride);
  }
  if (a.dbias == nullptr) return;
  float* dbias = a.dbias + head * a.bias.buckets;
  for (int64_t bucket = 0; bucket < a.bias.buckets; ++bucket) dbias[bucket] += bias_sums[bucket];
}

// A key head of one sequence, with the query heads of its group in ascending order.
void AttentionBackwardItem(const AttentionBackwardArgs& a, int64_t item, float* scratch) {
  const int64_t key_heads = a.heads / a.group;
  const int64_t sequence = item / key_heads;
  const int64_t key_head = item % key_heads;
  const int64_t key_start = KeyStart(a, sequence, key_head);
  const int64_t keys = KeyTokensOf(a);
  const int64_t stride = KeyStrideOf(a);
  AttentionPieces s;
  CutScratch(scratch, ScratchShapeOf(a), &s);
  PackB({.data = a.k + key_start, .row_stride = 1, .column_stride = stride}, a.head_dim, keys,
        s.keys);
  PackB({.data = a.v + key_start, .row_stride = 1, .column_stride = stride}, a.head_dim, keys,
        s.values);
  PackDeep({.data = a.k + key_start, .row_stride = stride, .column_stride = 1}, keys, a.head_dim, 0,
           s.rows);
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

namespace {

template <typename Args>
void CheckArguments(const Args& a) {
  TERCIO_CHECK_LE(a.head_dim, kDepthBlock);
  TERCIO_CHECK(a.causal || (a.window == 0 && a.document_starts == nullptr));
  TERCIO_CHECK(a.bias.weight == nullptr || a.document_starts == nullptr);
  TERCIO_CHECK(KeyTokensOf(a) == a.tokens || (!a.causal && a.bias.weight == nullptr));
  if (a.bias.weight == nullptr) return;
  TERCIO_CHECK_LE(a.bias.buckets, kMostBiasBuckets);
  TERCIO_CHECK(!(a.softcap > 0));
}

}  // namespace

void AttentionCpu(const AttentionArgs& args, ThreadPool& pool) {
  CheckArguments(args);
  const int64_t per_thread = AttentionScratchStride(ScratchShapeOf(args));
  pool.ParallelFor(args.sequences * args.heads, [&](int64_t item, int thread) {
    HWY_DYNAMIC_DISPATCH(AttentionItem)(args, item, args.scratch + thread * per_thread);
  });
}

void AttentionBackwardCpu(const AttentionBackwardArgs& args, ThreadPool& pool) {
  CheckArguments(args);
  const int64_t per_thread = AttentionScratchStride(ScratchShapeOf(args));
  const int64_t key_heads = args.heads / args.group;
  const int64_t items = args.sequences * key_heads;
  // The gradient of a bias has the sequences of a head in ascending order: on one thread.
  const int64_t steps = args.dbias == nullptr ? 1 : std::max<int64_t>(1, args.sequences);
  pool.ParallelFor(items / steps, [&](int64_t first, int thread) {
    for (int64_t item = first; item < items; item += items / steps) {
      HWY_DYNAMIC_DISPATCH(AttentionBackwardItem)(args, item, args.scratch + thread * per_thread);
    }
  });
}

}  // namespace tercio::kernels
#endif
