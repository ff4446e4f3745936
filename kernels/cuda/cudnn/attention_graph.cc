#include "kernels/cuda/cudnn/attention_graph.h"

namespace tercio::kernels::cuda {
namespace {

using Id = CudnnGraph::Id;

// Tensors are (sequences, heads, rows, channels).
class Attention {
 public:
  Attention(const CudnnAttentionShape& shape, CudnnGraph& graph)
      : s_(shape), g_(graph), scores_{s_.sequences, s_.heads, s_.tokens, s_.tokens} {}

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
  // x where the key is not behind the query, else `hidden`.
  Id Mask(Id x, Id hidden) {
    if (!s_.causal) return x;
    const Id query = Score(CUDNN_DATA_INT32);
    g_.Index(2, x, query);
    const Id key = Score(CUDNN_DATA_INT32);
    g_.Index(3, x, key);
    const Id seen = Apply(CUDNN_POINTWISE_CMP_GE, query, key, CUDNN_DATA_BOOLEAN);
    const Id y = Score();
    g_.Select(x, hidden, seen, y);
    return y;
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
    // Without groups the product is the gradient, and needs no sum.
    if (s_.group == 1) return g_.Matmul(a, b, to);
    const Id each = g_.Virtual(s_.type, {s_.sequences, s_.heads, s_.tokens, s_.head_dim});
    g_.Matmul(a, b, each);
    g_.Reduce(CUDNN_REDUCE_TENSOR_ADD, each, to);
  }

 private:
  const CudnnAttentionShape& s_;
  CudnnGraph& g_;
  const CudnnDims scores_;
};

}  // namespace

CudnnForwardIds AddAttention(const CudnnAttentionShape& s, CudnnGraph& g) {
  Attention a(s, g);
  CudnnForwardIds t{};
  t.q = a.Interleaved(s.heads);
  t.k = a.Transposed(a.key_heads());
  t.v = a.Interleaved(a.key_heads());
  t.out = a.Result();
  t.lse = a.PerRow();
  t.scale = g.Scalar();
  if (s.causal) t.hidden = g.Scalar();

  const Id product = a.Score();
  g.Matmul(t.q, t.k, product);
  const Id score = a.Mask(a.Apply(CUDNN_POINTWISE_MUL, product, t.scale), t.hidden);
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
  const Id weight = a.Apply(CUDNN_POINTWISE_DIV, power, sum, s.type);
  g.Matmul(weight, t.v, t.out);
  return t;
}

CudnnBackwardIds AddAttentionBackward(const CudnnAttentionShape& s, CudnnGraph& g) {
  Attention a(s, g);
  CudnnBackwardIds t{};
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
  t.one = g.Scalar();
  if (s.causal) t.hidden = g.Scalar();

  // delta = sum over channels of dout * out.
  const Id both = g.Virtual(CUDNN_DATA_FLOAT, {s.sequences, s.heads, s.tokens, s.head_dim});
  g.Pointwise(CUDNN_POINTWISE_MUL, t.dout, t.out, both);
  const Id sum = g.Virtual(CUDNN_DATA_FLOAT, a.rows());
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, both, sum);
  g.Pointwise(CUDNN_POINTWISE_MUL, sum, t.one, t.delta);

  // p = exp(score - lse); dv = p^T dout.
  const Id product = a.Score();
  g.Matmul(t.q, t.k, product);
  const Id scaled = a.Apply(CUDNN_POINTWISE_MUL, product, t.scale);
  const Id score = a.Mask(a.Apply(CUDNN_POINTWISE_SUB, scaled, t.lse), t.hidden);
  const Id p = a.Score();
  g.Pointwise(CUDNN_POINTWISE_EXP, score, p);
  a.ProductByKeys(a.ReadByKeys(p), t.dout, t.dv);

  // ds = p * (dout v^T - delta) * scale; dk = ds^T q; dq = ds k.
  const Id dp = a.Score();
  g.Matmul(t.dout, t.v, dp);
  const Id rest = a.Apply(CUDNN_POINTWISE_SUB, dp, t.delta);
  const Id times = a.Apply(CUDNN_POINTWISE_MUL, rest, p);
  const Id ds = a.Apply(CUDNN_POINTWISE_MUL, times, t.scale);
  a.ProductByKeys(a.ReadByKeys(ds), t.q, t.dk);
  const Id keys = g.Virtual(s.type, {s.sequences, a.key_heads(), s.tokens, s.head_dim},
                            {s.tokens * s.stride, s.head_dim, s.stride, 1});
  g.Reshape(t.k, keys);
  g.Matmul(ds, keys, t.dq);
  return t;
}

}  // namespace tercio::kernels::cuda
