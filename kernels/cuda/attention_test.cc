// Our own attention on CUDA against the CPU's: heads of all widths, tiles that are not full,
// grouped queries, causal or with lengths, dropout, rows of a sequence that come later, keys of
// another stream; all storages, addresses and orders. Tolerance: 1e-5 of the row's largest
// magnitude (docs/numerics.md) for each backend.
#include <algorithm>
#include <cstdint>
#include <random>

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
  int64_t buckets = 0;     // of relative positions
  int64_t key_tokens = 0;  // of another stream; 0: keys lie beside the queries
  int64_t documents = 0;   // tokens of the longest of a sequence; 0: each is one

  int64_t key_width() const { return heads / group * head_dim; }
  int64_t key_rows() const { return sequences * (key_tokens == 0 ? tokens : key_tokens); }
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
    // Cross attention: more keys, fewer, one; with padding, grouped heads, dropout, a cap.
    {2, 33, 4, 2, 64, false, true, false, 0, 1.0f, 0, 0, 0, 70},
    {2, 70, 2, 1, 80, false, true, true, 0, 0, 0, 0, 0, 33},
    {1, 40, 3, 3, 16, false, false, true, 35, 0, 2.0f, 0, 0, 65},
    {3, 5, 1, 1, 24, false, false, false, 0, 0, 0, 0, 0, 1},
    {1, 40, 2, 1, 20, false, false, false, 0, 0, 0, 0, 0, 40},
};

std::string NameOf(const Case& c) {
  return "attention " + std::to_string(c.sequences) + " x " + std::to_string(c.tokens) +
         ", heads " + std::to_string(c.heads) + " / " + std::to_string(c.group) + " of " +
         std::to_string(c.head_dim) +
         (c.key_tokens == 0 ? "" : ", keys " + std::to_string(c.key_tokens));
}

class AttentionTest : public BothBackendsTest {
 protected:
  AttentionTest() { attention_ = AttentionKernel::kOwn; }

  // Buffers of one case. q, k and v lie beside each other, as the model has them: `keys` and
  // `dkeys` are qkv and dqkv; or keys and values are rows of buffers of their own.
  struct Ids {
    int qkv, keys, out, lse, lengths, starts, dout, dqkv, dkeys, bias, bucket, dbias;
    int64_t stride, key_stride, key, value;
  };
  Ids Make(const Case& c, Format format) {
    Begin(format, NameOf(c));
    const int64_t width = c.heads * c.head_dim;
    const int64_t key_width = c.key_width();
    const bool cross = c.key_tokens > 0;
    const int64_t rows = c.sequences * c.tokens;
    Ids ids{};
    ids.stride = width + (cross ? 0 : 2 * key_width) + 3;
    ids.key_stride = cross ? 2 * key_width + 1 : 0;
    ids.key = cross ? 0 : width;
    ids.value = ids.key + key_width;
    ids.qkv = AddValues("qkv", rows * ids.stride);
    ids.keys = cross ? AddValues("keys", c.key_rows() * ids.key_stride) : ids.qkv;
    ids.out = AddValues("out", rows * width, width);
    ids.lse = AddFloats("lse", rows * c.heads);
    const auto longest = static_cast<int32_t>(c.key_rows() / c.sequences);
    ids.lengths = c.lengths ? AddInts("lengths", c.sequences, 1, longest) : Bound::kNone;
    ids.starts = c.documents > 0 ? AddDocuments(c) : Bound::kNone;
    ids.dout = AddValues("dout", rows * width);
    ids.bias = ids.bucket = ids.dbias = Bound::kNone;
    if (c.buckets > 0) {
      ids.bias = AddValues("bias", c.heads * c.buckets);
      ids.bucket = AddInts("bucket", 2 * c.tokens - 1, 0, static_cast<int32_t>(c.buckets) - 1);
      ids.dbias = AddFloats("dbias", c.heads * c.buckets);
    }
    ids.dqkv = AddValues("dqkv", rows * ids.stride, ids.stride);
    ids.dkeys =
        cross ? AddValues("dkeys", c.key_rows() * ids.key_stride, ids.key_stride) : ids.dqkv;
    return ids;
  }
  // Documents of drawn lengths, which end anywhere within tiles.
  int AddDocuments(const Case& c) {
    const int id = AddInts("document starts", c.sequences * c.tokens, 0, 0);
    std::uniform_int_distribution<int64_t> lengths(1, c.documents);
    for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
      int64_t start = 0;
      int64_t end = lengths(random_);
      for (int64_t i = 0; i < c.tokens; ++i) {
        if (i == end) {
          start = i;
          end += lengths(random_);
        }
        At(id).data[static_cast<size_t>(sequence * c.tokens + i)] = static_cast<double>(start);
      }
    }
    return id;
  }
  static Options ScratchOf(const Case& c) {
    return {true, AttentionScratch({c.tokens, c.head_dim, c.key_tokens}, 1)};
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
    return {.q = t.values(ids.qkv),
            .k = t.values(ids.keys) + ids.key,
            .v = t.values(ids.keys) + ids.value,
            .stride = ids.stride,
            .key_stride = ids.key_stride,
            .out = t.values(ids.out),
            .lse = t.floats(ids.lse),
            .sequences = c.sequences,
            .tokens = c.tokens,
            .heads = c.heads,
            .head_dim = c.head_dim,
            .key_tokens = c.key_tokens,
            .group = c.group,
            .first_query = c.first_query,
            .first_head = 2,
            .causal = c.causal,
            .lengths = t.ints(ids.lengths),
            .document_starts = t.ints(ids.starts),
            .scale = c.scale,
            .softcap = c.softcap,
            .window = c.window,
            .bias = BiasOf(c, ids, t),
            .dropout = DropoutOf(c),
            .scratch = t.scratch};
  }
  static AttentionBackwardArgs Backward(const Case& c, const Ids& ids, const Bound& t) {
    const AttentionArgs forward = Forward(c, ids, t);
    return {.dout = t.values(ids.dout),
            .out = forward.out,
            .lse = forward.lse,
            .q = forward.q,
            .k = forward.k,
            .v = forward.v,
            .dq = t.values(ids.dqkv),
            .dk = t.values(ids.dkeys) + ids.key,
            .dv = t.values(ids.dkeys) + ids.value,
            .stride = forward.stride,
            .key_stride = forward.key_stride,
            .sequences = forward.sequences,
            .tokens = forward.tokens,
            .heads = forward.heads,
            .head_dim = forward.head_dim,
            .key_tokens = forward.key_tokens,
            .group = forward.group,
            .first_head = forward.first_head,
            .causal = forward.causal,
            .lengths = forward.lengths,
            .document_starts = forward.document_starts,
            .scale = forward.scale,
            .softcap = forward.softcap,
            .window = forward.window,
            .bias = forward.bias,
            .dbias = t.floats(ids.dbias),
            .dropout = forward.dropout,
            .scratch = forward.scratch};
  }
  void CheckForward(const Case& c, Format format) {
    const Ids ids = Make(c, format);
    Near(kNear, {ids.out, ids.lse});
    Check([&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); }, ScratchOf(c));
  }
  void CheckBackward(Case c, Format format) {
    c.first_query = 0;
    const Ids ids = Make(c, format);
    // What the forward pass gives, the same for both backends.
    const auto forward = RunOnCpu(
        [&](Ops& ops, const Bound& t) { ops.Attention(Forward(c, ids, t)); }, ScratchOf(c));
    At(ids.out).data = forward[static_cast<size_t>(ids.out)].data;
    At(ids.lse).data = forward[static_cast<size_t>(ids.lse)].data;
    Near(kNear, {ids.dqkv, ids.dkeys, ids.dbias});
    Check([&](Ops& ops, const Bound& t) { ops.AttentionBackward(Backward(c, ids, t)); },
          ScratchOf(c));
  }
  // The call as calls of one sequence each, if `apart`.
  template <typename Args, typename Body>
  static void ForParts(const Args& args, bool apart, const Body& body) {
    if (!apart) return body(args, 0, 0);
    for (int64_t i = 0; i < args.sequences; ++i) {
      const int64_t row = i * args.tokens;
      const int64_t key_row = i * KeyTokensOf(args);
      Args part = args;
      part.sequences = 1;
      part.q = args.q + row * args.stride;
      part.k = args.k + key_row * KeyStrideOf(args);
      part.v = args.v + key_row * KeyStrideOf(args);
      part.out = args.out + row * args.heads * args.head_dim;
      part.lse = args.lse + row * args.heads;
      if (args.lengths != nullptr) part.lengths = args.lengths + i;
      part.dropout.first_sequence += i;
      body(part, row, key_row);
    }
  }
};

TEST_F(AttentionTest, Forward) {
  for (const Format format : kFormats) {
    for (const Case& c : kCases) CheckForward(c, format);
  }
}

TEST_F(AttentionTest, Backward) {
  for (const Format format : kFormats) {
    for (const Case& c : kCases) CheckBackward(c, format);
  }
}

// Several in a tile, over many tiles, with windows, grouped heads, dropout and a cap.
TEST_F(AttentionTest, Documents) {
  for (const Format format : kFormats) {
    for (Case c :
         {Case{1, 5, 1, 1, 16, true, false, false}, Case{2, 40, 2, 1, 16, true, false, true},
          Case{1, 130, 2, 2, 24, true, false, false},
          Case{2, 100, 4, 2, 20, true, false, true, 0, 0, 2.0f, 7},
          Case{1, 170, 1, 1, 64, true, false, false, 0, 0, 0, 64}}) {
      for (const int64_t longest : {1, 9, 60, 200}) {
        c.documents = longest;
        CheckForward(c, format);
        CheckBackward(c, format);
      }
    }
  }
}

TEST_F(AttentionTest, OneDocumentHasTheBitsOfASequence) {
  Case c{2, 70, 2, 2, 24, true, false, true};
  c.documents = c.tokens;
  const Ids ids = Make(c, Format::kFloat32);
  std::fill(At(ids.starts).data.begin(), At(ids.starts).data.end(), 0.0);
  Near(kNear, {ids.out, ids.lse});
  Near(0x1p-6, {ids.dqkv, ids.dkeys});
  const auto run = [&](bool documents) {
    return Check(
        [&](Ops& ops, const Bound& t) {
          AttentionArgs forward = Forward(c, ids, t);
          AttentionBackwardArgs backward = Backward(c, ids, t);
          if (!documents) forward.document_starts = backward.document_starts = nullptr;
          ops.Attention(forward);
          ops.AttentionBackward(backward);
        },
        ScratchOf(c));
  };
  const auto plain = run(false);
  const auto documents = run(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(documents[i].data, plain[i].data) << plain[i].name;
  }
}

TEST_F(AttentionTest, HasTheSameBitsForAnyCutOfSequences) {
  for (const int64_t key_tokens : {0, 20, 75}) {
    Case c{3, 40, 4, 2, 24, false, true, true};
    c.key_tokens = key_tokens;
    const Ids ids = Make(c, Format::kBfloat16);
    Near(kNear, {ids.out, ids.lse});
    // The CPU's results of the forward pass have other bits, which show in gradients.
    Near(0x1p-6, {ids.dqkv, ids.dkeys});
    const auto run = [&](bool apart) {
      return Check(
          [&](Ops& ops, const Bound& t) {
            ForParts(Forward(c, ids, t), apart,
                     [&](const AttentionArgs& part, int64_t, int64_t) { ops.Attention(part); });
            ForParts(Backward(c, ids, t), apart,
                     [&](AttentionBackwardArgs part, int64_t row, int64_t key_row) {
                       part.dout = part.dout + row * c.heads * c.head_dim;
                       part.dq = part.dq + row * part.stride;
                       part.dk = part.dk + key_row * KeyStrideOf(part);
                       part.dv = part.dv + key_row * KeyStrideOf(part);
                       ops.AttentionBackward(part);
                     });
          },
          ScratchOf(c));
    };
    const auto whole = run(false);
    const auto parts = run(true);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(parts[i].data, whole[i].data) << name_ << ": " << whole[i].name;
    }
  }
}

// Sizes, masks and factors that nobody has chosen, in all formats.
TEST_F(AttentionTest, CrossAttentionOfDrawnSizes) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  };
  for (int i = 0; i < 6; ++i) {
    const int64_t head_dims[] = {8, 33, 64, 80};
    const int64_t group = draw(1, 2);
    Case c{draw(1, 2), draw(1, 70),     group * draw(1, 2), group, head_dims[draw(0, 3)],
           false,      draw(0, 1) == 1, draw(0, 1) == 1};
    c.softcap = draw(0, 2) == 0 ? 2.0f : 0.0f;
    c.key_tokens = draw(1, 70);
    c.first_query = draw(0, 1) == 1 ? draw(0, c.tokens - 1) : 0;
    CheckForward(c, kFormats[draw(0, 2)]);
    CheckBackward(c, kFormats[draw(0, 2)]);
  }
}

// Gradients want a float of the workspace for each row of queries and head, however many keys.
TEST_F(AttentionTest, KeysOfAnotherStreamWantNoScratch) {
  // The heads are so many that no other operation wants more, and small.
  const Case c{1, 32, 170, 1, 1, false, true, false, 0, 0, 0, 0, 0, 40};
  scratch_ = {.rows = c.tokens, .heads = c.heads};
  EXPECT_EQ(CudaScratchBytes(scratch_), c.tokens * c.heads * 4);
  const Ids ids = Make(c, Format::kFloat32);
  // One channel of a row may be all noise.
  for (const int id : {ids.out, ids.dqkv, ids.dkeys}) At(id).columns = At(id).size();
  Near(kNear, {ids.out, ids.lse, ids.dqkv, ids.dkeys});
  Check(
      [&](Ops& ops, const Bound& t) {
        ops.Attention(Forward(c, ids, t));
        ops.AttentionBackward(Backward(c, ids, t));
      },
      ScratchOf(c));
}

// Generation computes rows of a sequence after those before them.
TEST_F(AttentionTest, RowsHaveTheSameBitsWhereverTheCallBegins) {
  Case window{1, 70, 2, 1, 24, true, false, false};
  window.window = 20;
  Case cross{1, 70, 2, 1, 24, false, false, false};
  cross.key_tokens = 45;
  Case documents{1, 70, 2, 1, 24, true, false, false};
  documents.documents = 40;
  for (Case c : {Case{1, 70, 2, 1, 24, true, false, false}, window, cross, documents}) {
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
