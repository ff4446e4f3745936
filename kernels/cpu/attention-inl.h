// What all kinds of attention on the CPU have in common, once per Highway target: which keys a
// query sees, and how its scores become probabilities.
#if defined(TERCIO_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERCIO_KERNELS_CPU_ATTENTION_INL_H_
#undef TERCIO_KERNELS_CPU_ATTENTION_INL_H_
#else
#define TERCIO_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/vector-inl.h"
#include "kernels/random.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// Keys [begin, end).
struct KeySpan {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// The multipliers of one row of the attention matrix, for the keys of the span; out has all keys.
HWY_INLINE void AttentionDropRow(const Dropout& dropout, int64_t head, int64_t sequence,
                                 int64_t query, const KeySpan& keys, float* out) {
  const uint32_t tag = kSiteAttention | dropout.layer << 4 | static_cast<uint32_t>(head) << 16;
  const int64_t begin = keys.begin / 4 * 4;  // four neighbours share a block of random numbers
  DropoutMultipliers(dropout,
                     {.row_word = static_cast<uint32_t>(query),
                      .sequence = static_cast<uint32_t>(dropout.first_sequence + sequence),
                      .tag = tag,
                      .begin = begin,
                      .count = keys.end - begin},
                     out + begin);
}

// Keys that query `query` attends to: those of its document up to itself, of which a window has the
// last, or all of the sequence.
template <typename Args>
KeySpan KeysOf(const Args& a, int64_t sequence, int64_t query) {
  if (!a.causal) return {0, a.lengths == nullptr ? KeyTokensOf(a) : a.lengths[sequence]};
  const int64_t document =
      a.document_starts == nullptr ? 0 : a.document_starts[sequence * a.tokens + query];
  return {a.window > 0 ? std::max(document, query + 1 - a.window) : document, query + 1};
}

// Keys of queries [first, first + rows), which lie in one block, from the start of a panel on. The
// start is that of the whole block's, also if the call begins within it: no query's keys begin
// before those of the query before it.
template <typename Args>
KeySpan KeysOfBlock(const Args& a, int64_t sequence, int64_t first, int64_t rows) {
  const int64_t begin = KeysOf(a, sequence, first / kQueryBlock * kQueryBlock).begin;
  return {begin / kWidestPanel * kWidestPanel, KeysOf(a, sequence, first + rows - 1).end};
}

// Scores of `rows` queries over the keys of the span, as products, are scaled and capped.
template <typename Args>
void ScaleScores(const Args& a, int64_t rows, const KeySpan& keys, float* scores, int64_t stride) {
  const Tag d;
  const Vector factor = hn::Set(d, ScaleOf(a));
  const bool capped = a.softcap > 0;
  const Vector cap = hn::Set(d, a.softcap);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * stride + keys.begin;
    ForVectors(keys.count(), [&](auto load, auto store) HWY_ATTR {
      const Vector score = hn::Mul(load(row), factor);
      store(capped ? Capped(score, cap) : score, row);
    });
  }
}

// Calls body(key, count, bucket) for the runs of keys that share a bucket of relative positions.
template <typename Body>
HWY_INLINE void ForRuns(const AttentionBias& bias, int64_t tokens, int64_t query,
                        const KeySpan& keys, const Body& body) {
  const int32_t* bucket = bias.bucket + tokens - 1 - query;  // of key 0
  for (int64_t key = keys.begin; key < keys.end;) {
    int64_t end = key + 1;
    while (end < keys.end && bucket[end] == bucket[key]) ++end;
    body(key, end - key, bucket[key]);
    key = end;
  }
}

// Adds the bias of relative positions to the scores of one query.
template <typename Args>
void AddBias(const Args& a, int64_t head, int64_t query, const KeySpan& keys, float* scores) {
  const float* weight = a.bias.weight;
  if (weight == nullptr) return;
  weight += head * a.bias.buckets;
  ForRuns(a.bias, a.tokens, query, keys, [&](int64_t key, int64_t count, int32_t bucket) HWY_ATTR {
    const Vector value = hn::Set(Tag(), weight[bucket]);
    float* run = scores + key;
    ForVectors(count,
               [&](auto load, auto store) HWY_ATTR { store(hn::Add(load(run), value), run); });
  });
}

// Row i of the block `s.scores`, of one query: scores become its dropped-out probabilities, and
// zeros for the block's other keys. Returns the log-sum-exp.
HWY_INLINE float SoftmaxRow(const AttentionArgs& a, int64_t sequence, int64_t head, int64_t query,
                            const KeySpan& block, float* scores, float* drop_row) {
  const Tag d;
  const KeySpan keys = KeysOf(a, sequence, query);
  AddBias(a, head, query, keys, scores);
  float* row = scores + keys.begin;
  const float max = MaxRow(row, keys.count());
  const Vector max_all = hn::Set(d, max);
  ForVectors(keys.count(),
             [&](auto load, auto store) HWY_ATTR { store(Exp(hn::Sub(load(row), max_all)), row); });
  const float sum = SumRow(keys.count(), [&](auto load) HWY_ATTR { return load(row); });
  const Vector inverse = hn::Set(d, 1.0f / sum);
  if (a.dropout.probability > 0) {
    AttentionDropRow(a.dropout, a.first_head + head, sequence, query, keys, drop_row);
    const float* drop = drop_row + keys.begin;
    ForVectors(keys.count(), [&](auto load, auto store) HWY_ATTR {
      store(hn::Mul(hn::Mul(load(row), inverse), load(drop)), row);
    });
  } else {
    ForVectors(keys.count(),
               [&](auto load, auto store) HWY_ATTR { store(hn::Mul(load(row), inverse), row); });
  }
  std::fill(scores + block.begin, row, 0.0f);
  std::fill(scores + keys.end, scores + block.end, 0.0f);
  return static_cast<float>(max + std::log(static_cast<double>(sum)));
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERCIO_KERNELS_CPU_ATTENTION_INL_H_
