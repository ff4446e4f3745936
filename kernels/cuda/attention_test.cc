// Our own attention on CUDA against the CPU's: heads of all widths, tiles that are not full,
// grouped queries, causal or with lengths, dropout, rows of a sequence that come later; all
// storages, addresses and orders. Tolerance: 1e-5 of the row's largest magnitude (docs/numerics.md)
// for each backend.
#include <cstdint>

#include "kernels/cuda/testing/both_backends.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};
constexpr double kNear = 2e-5;

struct Case {
  int64_t sequences, tokens, heads, group, head_dim;
  bool causal, lengths, dropping;
  int64_t first_query = 0;
  float scale = 0, softcap = 0;
  int64_t window = 0;
  int64_t buckets = 0;  // of relative positions
};
constexpr Case kCases[] = {
    {1, 1, 1, 1, 1, true, false, false},
    {2, 5, 2, 1, 16, true, false, true},
    {1, 33, 2, 2, 64, true, false, false},
    {1, 70, 4, 2, 20, true, false, true, 37},
    {2, 40, 2, 1, 33, false, true, false},
    {1, 64, 3, 3, 24, false, true, true},
    {1, 34, 1, 1, 80, false, false, false},
    {1, 35, 1, 1, 128, true, false, false, 34},
    {1, 33, 1, 1, 256, true, false, true},
    // Scales, soft caps and windows: narrower than a tile, across tiles, wider than the sequence.
    {1, 40, 2, 1, 16, true, false, false, 0, 0.5f},
    {2, 40, 2, 2, 16, true, false, true, 0, 0, 2.0f},
    {1, 34, 1, 1, 24, false, true, false, 0, 1.0f, 3.0f},
    {1, 70, 2, 1, 16, true, false, false, 0, 0, 0, 1},
    {1, 100, 4, 2, 20, true, false, true, 70, 0, 0, 7},
    {2, 130, 1, 1, 16, true, false, false, 0, 0, 2.0f, 33},
    {1, 130, 1, 1, 16, true, false, false, 97, 0, 0, 64},
    {1, 35, 1, 1, 16, true, false, false, 0, 0, 0, 100},
    // Relative positions: causal, with padding and dropout, with a window and grouped heads.
    {1, 70, 2, 1, 16, true, false, false, 0, 1.0f, 0, 0, 32},
    {3, 40, 2, 1, 24, false, true, true, 0, 0.5f, 0, 0, 9},
    {2, 100, 4, 2, 16, true, false, false, 0, 0, 0, 40, 256},
};

std::string NameOf(const Case& c) {
  return "attention " + std::to_string(c.sequences) + " x " + std::to_string(c.tokens) +
         ", heads " + std::to_string(c.heads) + " / " + std::to_string(c.group) + " of " +
         std::to_string(c.head_dim);
}

class AttentionTest : public BothBackendsTest {
 protected:
  AttentionTest() { attention_ = AttentionKernel::kOwn; }

  // Buffers of one case: q, k and v lie beside each other, as the model has them.
  struct Ids {
    int qkv, out, lse, lengths, dout, dqkv, bias, bucket, dbias;
    int64_t stride, key, value;
  };
  Ids Make(const Case& c, Format format) {
    Begin(format, NameOf(c));
    const int64_t width = c.heads * c.head_dim;
    const int64_t key_width = width / c.group;
    const int64_t rows = c.sequences * c.tokens;
    Ids ids{};
    ids.stride = width + 2 * key_width + 3;
    ids.key = width;
    ids.value = width + key_width;
    ids.qkv = AddValues("qkv", rows * ids.stride);
    ids.out = AddValues("out", rows * width, width);
    ids.lse = AddFloats("lse", rows * c.heads);
    ids.lengths = c.lengths ? AddInts("lengths", c.sequences, 1, static_cast<int32_t>(c.tokens))
                            : Bound::kNone;
    ids.dout = AddValues("dout", rows * width);
    ids.bias = ids.bucket = ids.dbias = Bound::kNone;
    if (c.buckets > 0) {
      ids.bias = AddValues("bias", c.heads * c.buckets);
      ids.bucket = AddInts("bucket", 2 * c.tokens - 1, 0, static_cast<int32_t>(c.buckets) - 1);
      ids.dbias = AddFloats("dbias", c.heads * c.buckets);
    }
    ids.dqkv = AddValues("dqkv", rows * ids.stride, ids.stride);
    return ids;
  }
  static Options ScratchOf(const Case& c) {
    return {true, AttentionScratch({.tokens = c.tokens, .head_dim = c.head_dim}, 1)};
  }
  static Dropout DropoutOf(const Case& c) {
    if (!c.dropping) return {};
    return {.probability = 0.25f,
            .seed = 5,
            .step = 9,
            .layer = 3,
            .site = kSiteAttention,
            .first_sequence = 17,
            .tokens = c.tokens,
            .first_row = 0};
  }
  static AttentionBias BiasOf(const Case& c, const Ids& ids, const Bound& t) {
    return {.weight = t.values(ids.bias), .bucket = t.ints(ids.bucket), .buckets = c.buckets};
  }
  static AttentionArgs Forward(const Case& c, const Ids& ids, const Bound& t) {
    const Values qkv = t.values(ids.qkv);
    return {.q = qkv,
            .k = qkv + ids.key,
            .v = qkv + ids.value,
            .stride = ids.stride,
            .out = t.values(ids.out),
            .lse = t.floats(ids.lse),
            .sequences = c.sequences,
            .tokens = c.tokens,
            .heads = c.heads,
            .head_dim = c.head_dim,
            .group = c.group,
            .first_query = c.first_query,
            .first_head = 2,
            .causal = c.causal,
            .lengths = t.ints(ids.lengths),
            .scale = c.scale,
            .softcap = c.softcap,
            .window = c.window,
            .bias = BiasOf(c, ids, t),
            .dropout = DropoutOf(c),
            .scratch = t.scratch};
  }
};

TEST_F(AttentionTest, Forward) {
  for (const Format format : kFormats) {
    for (const Case& c : kCases) {
      const Ids ids = Make(c, format);
      Near(kNear, {ids.out, ids.lse});
      Check([&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); }, ScratchOf(c));
    }
  }
}

TEST_F(AttentionTest, Backward) {
  for (const Format format : kFormats) {
    for (Case c : kCases) {
      c.first_query = 0;
      const Ids ids = Make(c, format);
      // What the forward pass gives, the same for both backends.
      const auto forward = RunOnCpu(
          [&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); }, ScratchOf(c));
      At(ids.out).data = forward[static_cast<size_t>(ids.out)].data;
      At(ids.lse).data = forward[static_cast<size_t>(ids.lse)].data;
      Near(kNear, {ids.dqkv, ids.dbias});
      Check(
          [&](Ops& ops, const Bound& t) {
            const Values qkv = t.values(ids.qkv);
            const Values dqkv = t.values(ids.dqkv);
            ops.AttentionBackward({.dout = t.values(ids.dout),
                                   .out = t.values(ids.out),
                                   .lse = t.floats(ids.lse),
                                   .q = qkv,
                                   .k = qkv + ids.key,
                                   .v = qkv + ids.value,
                                   .dq = dqkv,
                                   .dk = dqkv + ids.key,
                                   .dv = dqkv + ids.value,
                                   .stride = ids.stride,
                                   .sequences = c.sequences,
                                   .tokens = c.tokens,
                                   .heads = c.heads,
                                   .head_dim = c.head_dim,
                                   .group = c.group,
                                   .first_head = 2,
                                   .causal = c.causal,
                                   .lengths = t.ints(ids.lengths),
                                   .scale = c.scale,
                                   .softcap = c.softcap,
                                   .window = c.window,
                                   .bias = BiasOf(c, ids, t),
                                   .dbias = t.floats(ids.dbias),
                                   .dropout = DropoutOf(c),
                                   .scratch = t.scratch});
          },
          ScratchOf(c));
    }
  }
}

// Generation computes rows of a sequence after those before them.
TEST_F(AttentionTest, RowsHaveTheSameBitsWhereverTheCallBegins) {
  for (const int64_t window : {0, 20}) {
    Case c{1, 70, 2, 1, 24, true, false, false};
    c.window = window;
    const Ids ids = Make(c, Format::kFloat32);
    Near(kNear, {ids.out, ids.lse});
    const auto run = [&] {
      return Check([&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); },
                   ScratchOf(c))[static_cast<size_t>(ids.out)]
          .data;
    };
    const auto expected = run();
    for (const int64_t first : {1, 31, 32, 33, 69}) {
      c.first_query = first;
      const auto actual = run();
      for (auto at = static_cast<size_t>(first * 48); at < expected.size(); ++at) {
        ASSERT_EQ(actual[at], expected[at]) << "from " << first << " at " << at;
      }
    }
  }
}

// A NaN in a key is in the rows that attend to it.
TEST_F(AttentionTest, NanIsNotHidden) {
  const Case c{1, 40, 1, 1, 16, true, false, false};
  for (const Format format : kFormats) {
    const Ids ids = Make(c, format);
    Near(kNear, {ids.out, ids.lse});
    At(ids.qkv).data[static_cast<size_t>(35 * ids.stride + ids.key + 3)] = std::nan("");
    const auto results =
        Check([&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); }, ScratchOf(c));
    EXPECT_TRUE(std::isnan(results[static_cast<size_t>(ids.out)].data[36 * 16]));
    EXPECT_FALSE(std::isnan(results[static_cast<size_t>(ids.out)].data[34 * 16]));
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
