// Attention on the CPU against the double-precision reference, its gradients against finite
// differences: causal and padded sequences, heads that share keys, dropout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/random.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

struct AttentionCase {
  int64_t tokens, heads, head_dim;
  float dropout;
  int64_t group = 1;
  int32_t length = 0;  // 0: causal; else keys from here on are padding
  float scale = 0, softcap = 0;
  int64_t window = 0;
  int64_t first_query = 0;  // of the forward pass
  int64_t width() const { return heads * head_dim; }
  int64_t keys() const { return width() / group; }
  int64_t stride() const { return width() + 2 * keys(); }
};

// One attention forward and backward over random values, all heads.
struct AttentionRun {
  Floats qkv, dout, out, dqkv;
};

AttentionRun RunAttention(Ops& ops, const AttentionCase& c, Floats qkv, Floats dout) {
  const int64_t width = c.width();
  AttentionRun run{std::move(qkv), std::move(dout), Floats(static_cast<size_t>(c.tokens * width)),
                   Floats(static_cast<size_t>(c.tokens * c.stride()))};
  Floats lse(static_cast<size_t>(c.tokens * c.heads));
  auto scratch = hwy::AllocateAligned<float>(
      static_cast<size_t>(AttentionScratch({.tokens = c.tokens, .head_dim = c.head_dim}, 2)));
  AttentionArgs args{};
  args.q = run.qkv.data();
  args.k = args.q + width;
  args.v = args.k + c.keys();
  args.stride = c.stride();
  args.group = c.group;
  args.out = run.out.data();
  args.lse = lse.data();
  args.sequences = 1;
  args.tokens = c.tokens;
  args.heads = c.heads;
  args.head_dim = c.head_dim;
  args.causal = c.length == 0;
  args.lengths = &c.length;
  args.first_query = c.first_query;
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.window = c.window;
  args.dropout.probability = c.dropout;
  args.dropout.tokens = c.tokens;
  args.dropout.layer = 3;
  args.scratch = scratch.get();
  ops.Attention(args);
  AttentionBackwardArgs back{};
  back.dout = run.dout.data();
  back.out = run.out.data();
  back.lse = lse.data();
  back.q = args.q;
  back.k = args.k;
  back.v = args.v;
  back.dq = run.dqkv.data();
  back.dk = back.dq + width;
  back.dv = back.dk + c.keys();
  back.stride = args.stride;
  back.group = c.group;
  back.sequences = 1;
  back.tokens = c.tokens;
  back.heads = c.heads;
  back.head_dim = c.head_dim;
  back.causal = args.causal;
  back.lengths = args.lengths;
  back.scale = c.scale;
  back.softcap = c.softcap;
  back.window = c.window;
  back.dropout = args.dropout;
  back.scratch = scratch.get();
  ops.AttentionBackward(back);
  return run;
}

// What the dropout of one head multiplies each weight with; empty without dropout.
Values AttentionMask(const AttentionCase& c, int64_t head) {
  Values mask;
  if (c.dropout == 0) return mask;
  const PhiloxKey key = MakeKey(0, 0);
  for (int64_t i = 0; i < c.tokens; ++i) {
    for (int64_t j = 0; j < c.tokens; ++j) {
      const uint32_t tag = kSiteAttention | 3u << 4 | static_cast<uint32_t>(head) << 16;
      const PhiloxBlock bits =
          Philox(key, {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i), 0, tag});
      const bool kept = bits[static_cast<size_t>(j % 4)] >= DropThreshold(c.dropout);
      mask.push_back(kept ? 1.0 / (1.0 - c.dropout) : 0.0);
    }
  }
  return mask;
}

// One head's [tokens, head_dim] out of rows of `stride` that begin at `offset`.
Values HeadOf(const Floats& from, const AttentionCase& c, int64_t head, int64_t stride,
              int64_t offset) {
  Values values;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t d = 0; d < c.head_dim; ++d) {
      values.push_back(from[static_cast<size_t>(t * stride + offset + head * c.head_dim + d)]);
    }
  }
  return values;
}

Floats ToFloats(const Values& values) { return Floats(values.begin(), values.end()); }

// All query heads of one key head: their outputs, and the gradients of what they share.
void ExpectAttention(const AttentionRun& run, const AttentionCase& c, int64_t key_head) {
  const auto query = [&](const Floats& from, int64_t i) {
    return HeadOf(from, c, key_head * c.group + i, c.stride(), 0);
  };
  const auto key = [&](const Floats& from) {
    return HeadOf(from, c, key_head, c.stride(), c.width());
  };
  const auto value = [&](const Floats& from) {
    return HeadOf(from, c, key_head, c.stride(), c.width() + c.keys());
  };
  const Values k = key(run.qkv);
  const Values v = value(run.qkv);
  Values dk(k.size()), dv(v.size());
  const auto add = [](Values& sum, const Values& part) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  };
  // Gradients are compared by the largest magnitude of the tensor: single rows may be all noise.
  const int64_t all = c.tokens * c.head_dim;
  for (int64_t i = 0; i < c.group; ++i) {
    const int64_t head = key_head * c.group + i;
    const Values mask = AttentionMask(c, head);
    const Values q = query(run.qkv, i);
    const Values weights = HeadOf(run.dout, c, head, c.width(), 0);
    const auto of = [&](const Values& a, const Values& b, const Values& d) {
      return reference::Attention(a, b, d, mask, c.tokens, c.head_dim, c.length,
                                  {.scale = c.scale, .softcap = c.softcap, .window = c.window});
    };
    ExpectRows(ToFloats(HeadOf(run.out, c, head, c.width(), 0)), of(q, k, v), c.head_dim, 1e-5,
               "out");
    if (c.tokens > 40) continue;  // differences take tokens^3
    const auto gradient = [&](const auto& function, const Values& at) {
      return reference::NumericGradient(function, at, weights);
    };
    ExpectRows(ToFloats(query(run.dqkv, i)),
               gradient([&](const Values& x) { return of(x, k, v); }, q), all, 1e-5, "dq");
    add(dk, gradient([&](const Values& x) { return of(q, x, v); }, k));
    add(dv, gradient([&](const Values& x) { return of(q, k, x); }, v));
  }
  if (c.tokens > 40) return;
  ExpectRows(ToFloats(key(run.dqkv)), dk, all, 1e-5, "dk");
  ExpectRows(ToFloats(value(run.dqkv)), dv, all, 1e-5, "dv");
}

TEST_F(CpuOpsTest, AttentionAndItsGradients) {
  for (const AttentionCase& c : std::vector<AttentionCase>{{1, 1, 1, 0},
                                                           {5, 2, 3, 0},
                                                           {17, 1, 16, 0.3f},
                                                           {64, 1, 4, 0},
                                                           {70, 1, 5, 0.2f},
                                                           {9, 6, 4, 0, 3},
                                                           {33, 4, 8, 0.2f, 2},
                                                           {66, 4, 4, 0, 4},
                                                           {7, 2, 4, 0, 1, 7},
                                                           {7, 2, 4, 0, 1, 2},
                                                           {33, 4, 8, 0.2f, 2, 20},
                                                           {150, 2, 8, 0.1f, 1, 130},
                                                           {17, 2, 16, 0, 1, 0, 0.5f},
                                                           {17, 2, 16, 0, 1, 0, 2.0f, 3.0f},
                                                           {33, 2, 4, 0.2f, 2, 0, 0, 1.5f},
                                                           {9, 1, 4, 0, 1, 5, 0, 0.5f},
                                                           {20, 1, 4, 0, 1, 0, 0, 0, 2},
                                                           {33, 4, 8, 0.2f, 2, 0, 0, 0, 7},
                                                           {40, 2, 5, 0, 1, 0, 0, 4.0f, 33},
                                                           {150, 2, 8, 0.1f, 1, 0, 0, 0, 20},
                                                           {700, 2, 8, 0.1f, 2, 0, 0, 0, 64},
                                                           {700, 1, 20, 0, 1, 0, 0, 0, 300},
                                                           {30, 1, 4, 0, 1, 0, 0, 0, 1000}}) {
    const AttentionRun run =
        RunAttention(*ops_, c, Random(c.tokens * c.stride()), Random(c.tokens * c.width()));
    for (int64_t head = 0; head < c.heads / c.group; ++head) ExpectAttention(run, c, head);
  }
}

// Gradients of contexts that are too long for differences: those without a window, where keys and
// values beyond it have been hidden in another way. The windows of all queries in a block are one.
TEST_F(CpuOpsTest, GradientsWithinAWindowAreThoseOfTheTokensInIt) {
  const int64_t window = 90, tokens = 600, last = 599;
  const AttentionCase whole{.tokens = tokens, .heads = 1, .head_dim = 8, .window = window};
  const Floats qkv = Random(tokens * whole.stride());
  // The last query alone has a gradient: it sees the last tokens, and nothing else is moved.
  Floats dout(static_cast<size_t>(tokens * whole.width()));
  for (auto at = dout.end() - whole.width(); at != dout.end(); ++at) *at = Random(1)[0];
  const AttentionRun run = RunAttention(*ops_, whole, qkv, dout);
  const AttentionCase seen{.tokens = window, .heads = 1, .head_dim = 8};
  const int64_t begin = (last + 1 - window) * whole.stride();
  const AttentionRun alone = RunAttention(*ops_, seen, Floats(qkv.begin() + begin, qkv.end()),
                                          Floats(dout.end() - window * whole.width(), dout.end()));
  for (int64_t i = 0; i < tokens * whole.stride(); ++i) {
    const auto at = static_cast<size_t>(i);
    const float expected = i < begin ? 0.0f : alone.dqkv[at - static_cast<size_t>(begin)];
    ASSERT_NEAR(run.dqkv[at], expected, 1e-6) << i;
  }
}

// The bias of each pair is that of the bucket of its distance; its gradient has the sums of all
// pairs of a bucket, with equal bits for any number of sequences in a call and of threads.
struct BiasCase {
  int64_t tokens;
  int32_t length;  // 0: causal
  float scale, dropout;
};

class AttentionBiasTest : public CpuOpsTest {
 protected:
  static constexpr int64_t kSequences = 3, kHeads = 2, kHeadDim = 8, kBuckets = 6;
  static constexpr int64_t kStride = 3 * kHeads * kHeadDim, kWidth = kHeads * kHeadDim;

  // As T5's: near distances have buckets of their own, far ones share them.
  static std::vector<int32_t> BucketsOf(int64_t tokens) {
    std::vector<int32_t> buckets;
    for (int64_t distance = 1 - tokens; distance < tokens; ++distance) {
      buckets.push_back(distance > 0     ? 5
                        : distance > -3  ? static_cast<int32_t>(-distance)
                        : distance > -20 ? 3
                                         : 4);
    }
    return buckets;
  }

  struct Inputs {
    Floats qkv, dout, weight;
  };
  struct Outputs {
    Floats out, dqkv, dbias;
    bool operator==(const Outputs&) const = default;
  };
  Inputs RandomInputs(const BiasCase& c) {
    return {Random(kSequences * c.tokens * kStride), Random(kSequences * c.tokens * kWidth),
            Random(kHeads * kBuckets)};
  }
  // Sequences [begin, end).
  static void Run(Ops& ops, const BiasCase& c, const Inputs& in, int64_t begin, int64_t end,
                  Outputs& to) {
    const std::vector<int32_t> buckets = BucketsOf(c.tokens);
    const std::vector<int32_t> lengths(kSequences, c.length);
    Floats lse(static_cast<size_t>((end - begin) * c.tokens * kHeads));
    auto scratch = hwy::AllocateAligned<float>(
        static_cast<size_t>(AttentionScratch({.tokens = c.tokens, .head_dim = kHeadDim}, 3)));
    const auto set = [&](auto& args) {
      args.q = in.qkv.data() + begin * c.tokens * kStride;
      args.k = args.q + kWidth;
      args.v = args.k + kWidth;
      args.stride = kStride;
      args.sequences = end - begin;
      args.tokens = c.tokens;
      args.heads = kHeads;
      args.head_dim = kHeadDim;
      args.causal = c.length == 0;
      args.lengths = lengths.data();
      args.scale = c.scale;
      args.bias = {.weight = in.weight.data(), .bucket = buckets.data(), .buckets = kBuckets};
      args.dropout = {.probability = c.dropout, .first_sequence = begin, .tokens = c.tokens};
      args.scratch = scratch.get();
    };
    AttentionArgs args{};
    set(args);
    args.out = to.out.data() + begin * c.tokens * kWidth;
    args.lse = lse.data();
    ops.Attention(args);
    AttentionBackwardArgs back{};
    set(back);
    back.dout = in.dout.data() + begin * c.tokens * kWidth;
    back.out = args.out;
    back.lse = lse.data();
    back.dq = to.dqkv.data() + begin * c.tokens * kStride;
    back.dk = back.dq + kWidth;
    back.dv = back.dk + kWidth;
    back.dbias = to.dbias.data();
    ops.AttentionBackward(back);
  }
  static Outputs Empty(const BiasCase& c) {
    return {Floats(static_cast<size_t>(kSequences * c.tokens * kWidth)),
            Floats(static_cast<size_t>(kSequences * c.tokens * kStride)),
            Floats(kHeads * kBuckets)};
  }
};

TEST_F(AttentionBiasTest, IsAddedToScoresAndHasAGradient) {
  for (const BiasCase& c :
       {BiasCase{1, 0, 1.0f, 0}, {25, 0, 1.0f, 0}, {30, 20, 0.5f, 0}, {40, 40, 0, 0}}) {
    const Inputs in = RandomInputs(c);
    Outputs to = Empty(c);
    Run(*ops_, c, in, 0, kSequences, to);
    const std::vector<int32_t> buckets = BucketsOf(c.tokens);
    for (int64_t head = 0; head < kHeads; ++head) {
      const auto weight = in.weight.begin() + head * kBuckets;
      Values dbias(kBuckets);
      for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
        const auto part = [&](const Floats& from, int64_t stride, int64_t offset) {
          Values values;
          for (int64_t t = 0; t < c.tokens; ++t) {
            const auto at = from.begin() + (sequence * c.tokens + t) * stride + offset;
            values.insert(values.end(), at + head * kHeadDim, at + (head + 1) * kHeadDim);
          }
          return values;
        };
        const auto of = [&](const Values& q, const Values& k, const Values& of_buckets) {
          Values bias;
          for (const int32_t bucket : buckets) bias.push_back(of_buckets[bucket]);
          return reference::Attention(q, k, part(in.qkv, kStride, 2 * kWidth), {}, c.tokens,
                                      kHeadDim, c.length, {.scale = c.scale, .bias = bias});
        };
        const Values q = part(in.qkv, kStride, 0), k = part(in.qkv, kStride, kWidth);
        const Values dout = part(in.dout, kWidth, 0), exact(weight, weight + kBuckets);
        const auto floats = [](const Values& values) {
          return Floats(values.begin(), values.end());
        };
        const int64_t all = c.tokens * kHeadDim;
        ExpectRows(floats(part(to.out, kWidth, 0)), of(q, k, exact), kHeadDim, 1e-5, "out");
        const auto gradient = [&](const auto& function, const Values& at) {
          return reference::NumericGradient(function, at, dout);
        };
        if (c.tokens == 1) continue;  // its gradients are zero
        ExpectRows(floats(part(to.dqkv, kStride, 0)),
                   gradient([&](const Values& at) { return of(at, k, exact); }, q), all, 1e-5,
                   "dq");
        ExpectRows(floats(part(to.dqkv, kStride, kWidth)),
                   gradient([&](const Values& at) { return of(q, at, exact); }, k), all, 1e-5,
                   "dk");
        const Values one = gradient([&](const Values& at) { return of(q, k, at); }, exact);
        for (size_t i = 0; i < one.size(); ++i) dbias[i] += one[i];
      }
      if (c.tokens == 1) continue;
      const auto actual = to.dbias.begin() + head * kBuckets;
      ExpectRows(Floats(actual, actual + kBuckets), dbias, kBuckets, 1e-5, "dbias");
    }
  }
}

TEST_F(AttentionBiasTest, HasTheSameBitsForAnyCutOfSequences) {
  const BiasCase c{150, 0, 1.0f, 0.2f};
  const Inputs in = RandomInputs(c);
  Outputs whole = Empty(c);
  Run(*ops_, c, in, 0, kSequences, whole);
  for (const int threads : {1, 3}) {
    const auto other = CreateCpuOps(threads);
    Outputs parts = Empty(c);
    for (int64_t i = 0; i < kSequences; ++i) Run(*other, c, in, i, i + 1, parts);
    EXPECT_TRUE(parts == whole) << threads;
  }
}

// Generation computes rows of a sequence after those before them.
TEST_F(CpuOpsTest, RowsHaveTheSameBitsWhereverACallBegins) {
  for (const int64_t window : {0, 1, 40, 100, 300}) {
    AttentionCase c{.tokens = 330, .heads = 2, .head_dim = 24, .softcap = 2.0f, .window = window};
    const Floats qkv = Random(c.tokens * c.stride());
    const Floats dout(static_cast<size_t>(c.tokens * c.width()));
    const Floats whole = RunAttention(*ops_, c, qkv, dout).out;
    for (const int64_t first : {1, 63, 64, 130, 329}) {
      c.first_query = first;
      const Floats part = RunAttention(*ops_, c, qkv, dout).out;
      const auto begin = static_cast<size_t>(first * c.width());
      EXPECT_TRUE(std::equal(part.begin() + static_cast<int64_t>(begin), part.end(),
                             whole.begin() + static_cast<int64_t>(begin)))
          << "window " << window << " from " << first;
    }
  }
}

// A window makes a long context cheaper: no product reads what lies before it.
TEST_F(CpuOpsTest, KeysBeforeAWindowAreNotMultiplied) {
  AttentionCase c{.tokens = 512, .heads = 1, .head_dim = 8, .window = 64};
  Floats qkv = Random(c.tokens * c.stride());
  const Floats dout = Random(c.tokens * c.width());
  const Floats expected = RunAttention(*ops_, c, qkv, dout).out;
  for (int64_t i = 0; i < 256 * c.stride(); ++i) qkv[static_cast<size_t>(i)] = std::nanf("");
  const Floats actual = RunAttention(*ops_, c, qkv, dout).out;
  const int64_t first = 320 * c.width();  // of a block whose windows begin behind those numbers
  EXPECT_TRUE(std::equal(expected.begin() + first, expected.end(), actual.begin() + first));
}

}  // namespace
}  // namespace tercio::kernels
