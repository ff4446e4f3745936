#include "kernels/cuda/cudnn/attention_graph.h"

#include <optional>

#include "kernels/cuda/attention_choice.h"

namespace tercio::kernels::cuda {
namespace {

using Id = CudnnGraph::Id;

// The engine of compute capability 10 came with 9.18, and its knobs changed with 9.23.
constexpr size_t kLeastVersionOfEngine = 91800;
constexpr size_t kEndOfVersionsOfEngine = 92300;

// Tensors are (sequences, heads, rows, channels).
class Attention {
 public:
  Attention(const CudnnAttentionShape& shape, CudnnGraph& graph)
      : s_(shape), g_(graph), scores_{s_.sequences, s_.heads, s_.tokens, s_.tokens} {
    if (s_.causal || s_.padded) t_.hidden = g_.Scalar();
    if (s_.padded) {
      t_.queries = Lengths();
      t_.keys = Lengths();
    }
    if (!drops()) return;
    const int64_t stride = CudnnMaskStride(s_.tokens);
    t_.mask =
        g_.Memory(s_.type, scores_, {s_.heads * s_.tokens * stride, s_.tokens * stride, stride, 1});
    t_.kept_scale = g_.Scalar();
  }

  const CudnnOptionalIds& optional() const { return t_; }

  int64_t key_heads() const { return s_.heads / s_.group; }
  const CudnnDims& scores() const { return scores_; }
  CudnnDims rows() const { return {s_.sequences, s_.heads, s_.tokens, 1}; }

  // A head's rows among those of q, k and v.
  Id Interleaved(int64_t heads) {
    return g_.Memory(s_.type, {s_.sequences, heads, s_.tokens, s_.head_dim},
                     {s_.tokens * s_.stride, s_.head_dim, s_.stride, 1});
  }
  // The same with rows and channels exchanged: the second factor of scores.
  Id Transposed(int64_t heads) {
    return g_.Memory(s_.type, {s_.sequences, heads, s_.head_dim, s_.tokens},
                     {s_.tokens * s_.stride, s_.head_dim, 1, s_.stride});
  }
  // Rows of the attention's result.
  Id Result() {
    return g_.Memory(s_.type, {s_.sequences, s_.heads, s_.tokens, s_.head_dim},
                     {s_.tokens * s_.out_stride, s_.head_dim, s_.out_stride, 1});
  }
  Id PerRow() {
    return g_.Memory(CUDNN_DATA_FLOAT, rows(), {s_.heads * s_.tokens, s_.tokens, 1, 1});
  }
  Id Score(cudnnDataType_t type = CUDNN_DATA_FLOAT) { return g_.Virtual(type, scores_); }

  // A new matrix of scores: function(x, b).
  Id Apply(cudnnPointwiseMode_t mode, Id x, Id b, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    const Id y = Score(type);
    g_.Pointwise(mode, x, b, y);
    return y;
  }
  // x where the query sees the key, else `hidden`.
  Id Mask(Id x) {
    if (s_.padded) {
      const Id is_query = IsBelow(Index(2, x), t_.queries);
      const Id is_key = IsBelow(Index(3, x), t_.keys);
      x = Select(x, Apply(CUDNN_POINTWISE_LOGICAL_AND, is_query, is_key, CUDNN_DATA_BOOLEAN));
    }
    if (!s_.causal) return x;
    return Select(x, Apply(CUDNN_POINTWISE_CMP_GE, Index(2, x), Index(3, x), CUDNN_DATA_BOOLEAN));
  }
  // A product of which only the sequences' own queries and keys count.
  void MakeScores(Id a, Id b, Id to) {
    g_.Matmul(a, b, to, {.rows = Queries(), .columns = Keys()});
  }
  void SumOverKeys(Id a, Id b, Id to) { g_.Matmul(a, b, to, {.rows = Queries(), .depth = Keys()}); }
  bool drops() const { return s_.dropout > 0; }
  // Weights of which some are dropped and the others scaled, in the order that the library knows
  // for each direction.
  Id DropForward(Id x) {
    const Id scaled = Apply(CUDNN_POINTWISE_MUL, x, t_.kept_scale);
    return Apply(CUDNN_POINTWISE_MUL, scaled, t_.mask, s_.type);
  }
  Id DropBackward(Id x) {
    return Apply(CUDNN_POINTWISE_MUL, Apply(CUDNN_POINTWISE_MUL, x, t_.mask), t_.kept_scale);
  }
  // The transpose of scores, in the format that products take.
  Id ReadByKeys(Id x) {
    const Id y =
        g_.Virtual(s_.type, scores_,
                   {scores_[1] * scores_[2] * scores_[3], scores_[2] * scores_[3], 1, scores_[3]});
    g_.Reshape(x, y);
    return y;
  }
  // to = a^T b: gradients of keys or values. Query heads of a group are added.
  void ProductByKeys(Id a, Id b, Id to) {
    const CudnnGraph::Sizes sizes = {.rows = Keys(), .depth = Queries()};
    // Without groups the product is the gradient, and needs no sum.
    if (s_.group == 1) return g_.Matmul(a, b, to, sizes);
    const Id each = g_.Virtual(s_.type, {s_.sequences, s_.heads, s_.tokens, s_.head_dim});
    g_.Matmul(a, b, each, sizes);
    g_.Reduce(CUDNN_REDUCE_TENSOR_ADD, each, to);
  }

 private:
  // A sequence may begin anywhere in an array of lengths.
  Id Lengths() {
    return g_.Memory(CUDNN_DATA_INT32, {s_.sequences, 1, 1, 1}, {1, 1, 1, 1}, sizeof(int32_t));
  }
  std::optional<Id> Queries() const { return s_.padded ? std::optional(t_.queries) : std::nullopt; }
  std::optional<Id> Keys() const { return s_.padded ? std::optional(t_.keys) : std::nullopt; }
  Id Index(int64_t dimension, Id x) {
    const Id y = Score(CUDNN_DATA_INT32);
    g_.Index(dimension, x, y);
    return y;
  }
  Id IsBelow(Id x, Id b) { return Apply(CUDNN_POINTWISE_CMP_LT, x, b, CUDNN_DATA_BOOLEAN); }
  Id Select(Id x, Id seen) {
    const Id y = Score();
    g_.Select(x, t_.hidden, seen, y);
    return y;
  }

  const CudnnAttentionShape& s_;
  CudnnGraph& g_;
  const CudnnDims scores_;
  CudnnOptionalIds t_ = {};
};

}  // namespace

CudnnForwardIds AddAttention(const CudnnAttentionShape& s, CudnnGraph& g) {
  Attention a(s, g);
  CudnnForwardIds t{};
  t.optional = a.optional();
  t.q = a.Interleaved(s.heads);
  t.k = a.Transposed(a.key_heads());
  t.v = a.Interleaved(a.key_heads());
  t.out = a.Result();
  t.lse = a.PerRow();
  t.scale = g.Scalar();

  const Id product = a.Score();
  a.MakeScores(t.q, t.k, product);
  const Id score = a.Mask(a.Apply(CUDNN_POINTWISE_MUL, product, t.scale));
  // The maximum is subtracted first, so that no exponential overflows.
  const Id max = g.Virtual(CUDNN_DATA_FLOAT, a.rows());
  g.Reduce(CUDNN_REDUCE_TENSOR_MAX, score, max);
  const Id less = a.Apply(CUDNN_POINTWISE_SUB, score, max);
  const Id power = a.Score();
  g.Pointwise(CUDNN_POINTWISE_EXP, less, power);
  const Id sum = g.Virtual(CUDNN_DATA_FLOAT, a.rows());
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
  const Id log = g.Virtual(CUDNN_DATA_FLOAT, a.rows());
  g.Pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.Pointwise(CUDNN_POINTWISE_ADD, max, log, t.lse);
  // The weights are rounded to the format of the values, which the second product takes.
  const Id weight = a.drops() ? a.DropForward(a.Apply(CUDNN_POINTWISE_DIV, power, sum))
                              : a.Apply(CUDNN_POINTWISE_DIV, power, sum, s.type);
  a.SumOverKeys(weight, t.v, t.out);
  return t;
}

CudnnBackwardIds AddAttentionBackward(const CudnnAttentionShape& s, CudnnGraph& g) {
  Attention a(s, g);
  CudnnBackwardIds t{};
  t.optional = a.optional();
  t.q = a.Interleaved(s.heads);
  t.k = a.Transposed(a.key_heads());
  t.v = a.Transposed(a.key_heads());
  t.out = a.Result();
  t.dout = a.Result();
  t.lse = a.PerRow();
  t.delta = a.PerRow();
  t.dq = a.Interleaved(s.heads);
  t.dk = a.Interleaved(a.key_heads());
  t.dv = a.Interleaved(a.key_heads());
  t.scale = g.Scalar();
  t.keep = g.Scalar();

  // delta = sum over channels of dout * out; with dropout times 1 - p, since the gradient of a
  // score is then multiplied by the scale of what is kept.
  const Id both = g.Virtual(CUDNN_DATA_FLOAT, {s.sequences, s.heads, s.tokens, s.head_dim});
  g.Pointwise(CUDNN_POINTWISE_MUL, t.dout, t.out, both);
  const Id sum = g.Virtual(CUDNN_DATA_FLOAT, a.rows());
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, both, sum);
  g.Pointwise(CUDNN_POINTWISE_MUL, sum, t.keep, t.delta);

  // p = exp(score - lse); dv = drop(p)^T dout.
  const Id product = a.Score();
  a.MakeScores(t.q, t.k, product);
  const Id scaled = a.Apply(CUDNN_POINTWISE_MUL, product, t.scale);
  const Id score = a.Mask(a.Apply(CUDNN_POINTWISE_SUB, scaled, t.lse));
  const Id p = a.Score();
  g.Pointwise(CUDNN_POINTWISE_EXP, score, p);
  a.ProductByKeys(a.ReadByKeys(a.drops() ? a.DropBackward(p) : p), t.dout, t.dv);

  // ds = p * (mask * dout v^T - delta) * scales; dk = ds^T q; dq = ds k.
  const Id dp = a.Score();
  a.MakeScores(t.dout, t.v, dp);
  const Id kept = a.drops() ? a.Apply(CUDNN_POINTWISE_MUL, dp, t.optional.mask) : dp;
  const Id rest = a.Apply(CUDNN_POINTWISE_SUB, kept, t.delta);
  const Id times = a.Apply(CUDNN_POINTWISE_MUL, rest, p);
  const Id again = a.drops() ? a.Apply(CUDNN_POINTWISE_MUL, times, t.optional.kept_scale) : times;
  const Id ds = a.Apply(CUDNN_POINTWISE_MUL, again, t.scale);
  a.ProductByKeys(a.ReadByKeys(ds), t.q, t.dk);
  const Id keys = g.Virtual(s.type, {s.sequences, a.key_heads(), s.tokens, s.head_dim},
                            {s.tokens * s.stride, s.head_dim, s.stride, 1});
  g.Reshape(t.k, keys);
  a.SumOverKeys(ds, keys, t.dq);
  return t;
}

CudnnRepetition RepetitionOf(const CudnnAttentionShape& shape, int capability, size_t version) {
  const int major = capability / 10;
  if (WhyNotCudnnGradients(
          {.capability = major, .head_dim = shape.head_dim, .has_dropout = shape.dropout > 0}) !=
      nullptr) {
    return {false, {}};
  }
  // The kernels of 12 are those of 8.
  if (major != 10) return {true, {}};
  const bool is_known = version >= kLeastVersionOfEngine && version < kEndOfVersionsOfEngine;
  if ((capability != 100 && capability != 103) || !is_known) return {false, {}};
  return {true,
          CudnnEngine{.index = 5,
                      .knobs = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}}}};
}

}  // namespace tercio::kernels::cuda
