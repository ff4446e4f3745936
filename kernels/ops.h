// The contract of every operation. A backend implements class Ops once per device; the model calls
// nothing else.
//
// All pointers are memory of the device, row-major, dense unless a stride is named. fp32 unless
// said; sums accumulate in fp32 unless said. Operations run in the order of the stream that the Ops
// is bound to and fail only by a check (wrong arguments), never at run time. Sizes are elements.
//
// Letters: T tokens of a sequence, N = sequences * T rows, C hidden, F feed-forward, V local
// vocabulary, H local heads, D head dimension.
//
// Exactness (docs/numerics.md). An output row depends on its own inputs only: its bits are the same
// for any number of rows, any split over calls, any number of threads and any vector width. Sums
// over rows ("leaf sums") start at zero for each piece of at most kPieceRows rows, counted from the
// start of each leaf of `rows_per_leaf` rows, and pieces are added to the accumulator in ascending
// order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tercio::kernels {

inline constexpr int64_t kPieceRows = 256;

// What a buffer's values are rounded to. kFloat32: they are not.
enum class Format { kFloat32, kBfloat16, kFloat16 };

// Which elements a dropout site drops. Element (row, channel) of a micro-batch is keyed by
// (seed, step, layer, site, sequence, position, channel), where first_row + row = (sequence -
// first_sequence) * T + position. probability 0 means: no dropout, nothing else is read. See
// random.h for the bits.
struct Dropout {
  float probability = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t site = 0;           // kSite... of random.h
  int64_t first_sequence = 0;  // index in the global batch of the micro-batch's first sequence
  int64_t tokens = 0;          // T
  int64_t first_row = 0;       // of the micro-batch, that the call begins with
};

// `result` of any operation: what it writes is rounded to this format, last, as by Round; an
// intermediate that the backward pass reads (mean, rstd) is not.
//
// `operands` of a product: every value of both factors is one of this format; a backend may then
// use instructions for it. With bf16 operands denormal numbers count as zero, those that the
// product reads and those that it computes (docs/numerics.md).

// y[m,n] (= or +=) sum_k x[m,k] w[n,k] (+ bias[n])                     x (M,K)  w (N,K)  y (M,N)
struct MatmulArgs {
  const float* x;
  const float* w;
  const float* bias = nullptr;
  float* y;
  int64_t m, n, k;
  bool accumulate = false;
  Format operands = Format::kFloat32;
  Format result = Format::kFloat32;
};

// dx[m,k] (= or +=) sum_n dy[m,n] w[n,k]                               dy (M,N)  w (N,K)  dx (M,K)
struct MatmulBackwardInputArgs {
  const float* dy;
  const float* w;
  float* dx;
  int64_t m, n, k;
  bool accumulate = false;
  Format operands = Format::kFloat32;
  Format result = Format::kFloat32;
};

// dw[n,k] (= or +=) leaf sum over m of dy[m,n] x[m,k];  dbias[n] likewise of dy[m,n] (if not null)
struct MatmulBackwardWeightArgs {
  const float* dy;
  const float* x;
  float* dw;
  float* dbias = nullptr;
  int64_t m, n, k;
  int64_t rows_per_leaf;
  bool accumulate = true;
  Format operands = Format::kFloat32;
};

// y = (x - mean) * rstd * weight (+ bias); mean, rstd per row, kept for the backward pass.
struct LayerNormArgs {
  const float* x;       // (N,C)
  const float* weight;  // (C)
  const float* bias;    // (C) or null
  float* y;             // (N,C)
  float* mean;          // (N)
  float* rstd;          // (N)
  int64_t rows, columns;
  float eps = 1e-5f;
  bool rms = false;  // RMSNorm (Zhang and Sennrich 2019): the mean counts as 0, and is stored as 0
  Format result = Format::kFloat32;  // of y
};

// dx (= or +=) gradient through the norm; dweight, dbias += leaf sums.
struct LayerNormBackwardArgs {
  const float* dy;
  const float* x;
  const float* weight;
  const float* mean;
  const float* rstd;
  float* dx;
  float* dweight;
  float* dbias;  // or null
  int64_t rows, columns;
  int64_t rows_per_leaf;
  bool accumulate = false;
  bool rms = false;
};

// out = residual + dropout(branch + bias). out may be residual.
struct ResidualArgs {
  const float* residual;
  const float* branch;
  const float* bias;  // (C) or null
  float* out;
  int64_t rows, columns;
  Dropout dropout;
  Format result = Format::kFloat32;
};

// dbranch = dropout'(dout); dbias += leaf sum of dbranch (if not null). dbranch may be null when
// there is no dropout (it would equal dout).
struct ResidualBackwardArgs {
  const float* dout;
  float* dbranch;
  float* dbias;
  int64_t rows, columns;
  int64_t rows_per_leaf;
  Dropout dropout;
};

// h += bias (kept for the backward pass); g = gelu(h): the tanh form of GPT-2, or, where `exact`,
// h * Phi(h) with the distribution function of the normal distribution (Hendrycks and Gimpel 2016).
struct BiasGeluArgs {
  float* h;
  const float* bias;  // or null
  float* g;
  int64_t rows, columns;
  bool exact = false;
  Format result = Format::kFloat32;  // of g
};

// dh = dg * gelu'(h), dh may be dg; dbias += leaf sum of dh (if not null).
struct BiasGeluBackwardArgs {
  const float* dg;
  const float* h;
  float* dh;
  float* dbias;
  int64_t rows, columns;
  int64_t rows_per_leaf;
  bool exact = false;
};

// g = silu(gate) * up, silu(x) = x / (1 + exp(-x)); a row of h is gate, then up (Shazeer 2020).
struct SwigluArgs {
  const float* h;  // (rows, 2 columns)
  float* g;        // (rows, columns)
  int64_t rows, columns;
  Format result = Format::kFloat32;
};

// dh may not be h.
struct SwigluBackwardArgs {
  const float* dg;
  const float* h;
  float* dh;  // (rows, 2 columns)
  int64_t rows, columns;
};

// Rotary positions (Su et al. 2021), the pairs (d, d + D/2) of Hugging Face's llama, in place. Head
// h of row n starts at x[n * stride + h * D]; the row's angles are table row (n mod T): D/2
// cosines, then D/2 sines. inverse: the other way round, which is the gradient.
struct RotaryArgs {
  float* x;
  const float* table;  // (T, D)
  int64_t rows, tokens, stride, heads, head_dim;
  bool inverse = false;
};

// Attention: causal, or every query with all keys of its sequence. q, k, v: element (row, head*D +
// d) at pointer[row * stride + head*D + d]. k and v have H / group heads; query head h uses theirs
// number h / group (Ainslie et al. 2023). s[i,j] = q_i . k_j / sqrt(D), j <= i, or j < length of
// the sequence where not causal; p = softmax(s); out_i = sum_j dropout(p)[i,j] v_j. lse (sequences,
// H, T): log sum exp of s[i,:]. Attention dropout is keyed by the global head first_head + head,
// query position and key position.
struct AttentionArgs {
  const float* q;
  const float* k;
  const float* v;
  int64_t stride;
  float* out;  // (N, H*D)
  float* lse;
  int64_t sequences, tokens, heads, head_dim;
  int64_t group = 1;        // query heads for each key head; divides heads
  int64_t first_query = 0;  // rows of out before this one of each sequence stay as they are
  int64_t first_head = 0;
  bool causal = true;
  const int32_t* lengths = nullptr;  // (sequences), each in [1, T], where not causal; null: all T
  Dropout dropout;
  float* scratch;  // AttentionScratch(...) elements (cpu/attention_scratch.h)
};

// dq, dk, dv (same stride as q, k, v) are written with =.
struct AttentionBackwardArgs {
  const float* dout;
  const float* out;
  const float* lse;
  const float* q;
  const float* k;
  const float* v;
  float* dq;
  float* dk;
  float* dv;
  int64_t stride;
  int64_t sequences, tokens, heads, head_dim;
  int64_t group = 1;
  int64_t first_head = 0;
  bool causal = true;
  const int32_t* lengths = nullptr;
  Dropout dropout;
  float* scratch;
};

// out[n] = weight[token[n] - vocabulary_begin] for tokens in [begin, begin + rows), zeros for
// others.
struct EmbeddingArgs {
  const int32_t* tokens;  // (N)
  const float* weight;    // (rows, C)
  float* out;             // (N,C)
  int64_t count, columns;
  int64_t vocabulary_begin, vocabulary_rows;
};

// dweight[token[n] - begin] += dx[n], n ascending; others are skipped.
struct EmbeddingBackwardArgs {
  const int32_t* tokens;
  const float* dx;
  float* dweight;
  int64_t count, columns;
  int64_t vocabulary_begin, vocabulary_rows;
};

// x[n] = dropout(x[n] + weight[(first_row + n) mod T] + type_weight[type[n]])
struct PositionEmbeddingArgs {
  float* x;
  const float* weight;  // (T,C), or null: nothing is added
  int64_t rows, columns, tokens;
  int64_t first_row = 0;
  Dropout dropout;
  const int32_t* types = nullptr;  // (N) from the first row of the call; read with type_weight only
  const float* type_weight = nullptr;
};

// dx = dropout'(dx) in place; dweight[(first_row + n) mod T] += dx[n] and dtype_weight[type[n]] +=
// dx[n], n ascending.
struct PositionEmbeddingBackwardArgs {
  float* dx;
  float* dweight;  // or null
  int64_t rows, columns, tokens;
  int64_t first_row = 0;
  Dropout dropout;
  const int32_t* types = nullptr;
  float* dtype_weight = nullptr;  // or null
};

// out[i] = x[index[i]]
struct GatherArgs {
  const float* x;
  const int32_t* index;  // (count)
  float* out;            // (count, C)
  int64_t count, columns;
};

// to[index[i]] += from[i], i ascending.
struct ScatterAddArgs {
  const float* from;  // (count, C)
  const int32_t* index;
  float* to;
  int64_t count, columns;
};

// y = tanh(y + bias), in place.
struct BiasTanhArgs {
  float* y;
  const float* bias;  // (C) or null
  int64_t rows, columns;
};

// dx = dy * (1 - y^2); dx may be dy.
struct TanhBackwardArgs {
  const float* dy;
  const float* y;
  float* dx;
  int64_t count;
};

// Label smoothing (Szegedy et al. 2016): a target keeps 1 - amount of its weight, and all
// `vocabulary` tokens of the model share the rest.
struct LabelSmoothing {
  float amount = 0;
  int64_t vocabulary = 1;
};

inline constexpr int64_t kCrossEntropyStats = 4;

// Per row over the valid columns [0, valid): stats[row] = {max, sum exp(l - max), l[target] or
// -inf, sum l where `sums`, else 0}. With no valid column: {-inf, 0, -inf, 0}. target is global;
// the rank owns [vocabulary_begin, + valid).
struct CrossEntropyLocalArgs {
  const float* logits;  // (R, stride)
  const int32_t* targets;
  float* stats;  // (R, kCrossEntropyStats)
  int64_t rows, valid, stride;
  int64_t vocabulary_begin;
  bool sums = false;  // smoothing needs them
};

// Joins the stats of `ranks` tensor ranks in rank order: stats (ranks, R, kCrossEntropyStats) ->
// lse (R), loss (R). loss = lse - (1 - amount) * target logit - amount * mean of the logits.
struct CrossEntropyCombineArgs {
  const float* stats;
  float* lse;
  float* loss;
  int64_t rows, ranks;
  LabelSmoothing smoothing;
};

// logits[r,c] = (exp(logits[r,c] - lse[r]) - weight of c) * scale in place, weight = (1 - amount)
// [c is the target] + amount / vocabulary; columns from `valid` to `stride` become 0.
struct CrossEntropyBackwardArgs {
  float* logits;
  const float* lse;
  const int32_t* targets;
  int64_t rows, valid, stride;
  int64_t vocabulary_begin;
  float scale;
  LabelSmoothing smoothing;
};

// One AdamW step as torch.optim.AdamW: g = gradient * clip; p -= lr*decay*p; m, v updated;
// p -= lr * (m / bias_correction1) / (sqrt(v / bias_correction2) + eps).
struct AdamWArgs {
  float* parameter;
  const float* gradient;
  float* m;
  float* v;
  int64_t count;
  float learning_rate, beta1, beta2, eps, weight_decay;
  double bias_correction1, bias_correction2;  // 1 - beta^step
  float clip = 1;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual void Matmul(const MatmulArgs& args) = 0;
  virtual void MatmulBackwardInput(const MatmulBackwardInputArgs& args) = 0;
  virtual void MatmulBackwardWeight(const MatmulBackwardWeightArgs& args) = 0;
  virtual void LayerNorm(const LayerNormArgs& args) = 0;
  virtual void LayerNormBackward(const LayerNormBackwardArgs& args) = 0;
  virtual void Residual(const ResidualArgs& args) = 0;
  // Residual, then LayerNorm of its result (norm.x is ignored: it is residual.out, rounded as asked
  // for), in one pass.
  virtual void ResidualLayerNorm(const ResidualArgs& residual, const LayerNormArgs& norm) = 0;
  virtual void ResidualBackward(const ResidualBackwardArgs& args) = 0;
  virtual void BiasGelu(const BiasGeluArgs& args) = 0;
  virtual void BiasGeluBackward(const BiasGeluBackwardArgs& args) = 0;
  virtual void Swiglu(const SwigluArgs& args) = 0;
  virtual void SwigluBackward(const SwigluBackwardArgs& args) = 0;
  virtual void Rotary(const RotaryArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void AttentionBackward(const AttentionBackwardArgs& args) = 0;
  virtual void Embedding(const EmbeddingArgs& args) = 0;
  virtual void EmbeddingBackward(const EmbeddingBackwardArgs& args) = 0;
  virtual void PositionEmbedding(const PositionEmbeddingArgs& args) = 0;
  virtual void PositionEmbeddingBackward(const PositionEmbeddingBackwardArgs& args) = 0;
  virtual void Gather(const GatherArgs& args) = 0;
  virtual void ScatterAdd(const ScatterAddArgs& args) = 0;
  virtual void BiasTanh(const BiasTanhArgs& args) = 0;
  virtual void TanhBackward(const TanhBackwardArgs& args) = 0;
  virtual void CrossEntropyLocal(const CrossEntropyLocalArgs& args) = 0;
  virtual void CrossEntropyCombine(const CrossEntropyCombineArgs& args) = 0;
  virtual void CrossEntropyBackward(const CrossEntropyBackwardArgs& args) = 0;
  virtual void AdamW(const AdamWArgs& args) = 0;

  // a[i] += b[i]
  virtual void Add(float* a, const float* b, int64_t count) = 0;
  virtual void Zero(float* a, int64_t count) = 0;
  virtual void Copy(float* to, const float* from, int64_t count) = 0;
  // x[i] = the value that a buffer of `format` would hold: the nearest, of two equally near ones
  // the even one. Too large: infinity; subnormal values are kept; NaN stays NaN.
  virtual void Round(float* x, int64_t count, Format format) = 0;
  // *sum = sum of squares in double: blocks of 64 Ki elements, 16 interleaved sums in each, blocks
  // in order.
  virtual void SumOfSquares(const float* a, int64_t count, double* sum) = 0;
  // *digest = sum of bits(a[i]) * k(i) modulo 2^64, with the odd 32-bit numbers
  // k(i) = (2i + 1) * 0x9e3779b1 modulo 2^32: exact, and so the same for any number of threads and
  // any vector width. No change of a single element goes unseen, whatever it is: neither factor of
  // its part is zero, nor their product 2^64 or more.
  virtual void Digest(const float* a, int64_t count, uint64_t* digest) = 0;
};

}  // namespace tercio::kernels
