// The contract of every operation; that of attention and of what belongs to it is in
// attention_args.h. A backend implements class Ops once per device; the model calls nothing else.
//
// All pointers are memory of the device, row-major, dense unless a stride is named. Values are of
// the job's precision (values.h), and what an operation writes is rounded last; what is float* is
// fp32 in every precision: statistics, log-sum-exps, losses, weight gradients, master weights,
// moments. Operations compute, and sums accumulate, in fp32 unless said. Operations run in the
// order of the stream that the Ops is bound to and fail only by a check (wrong arguments), never at
// run time. Sizes are elements.
//
// Rounding to a 16-bit format goes to the nearest number, of two equally near ones to the even one.
// Too large: infinity; subnormal numbers are kept; NaN stays NaN.
//
// Letters: T tokens of a sequence, N = sequences * T rows, C hidden, F feed-forward, V local
// vocabulary, H local heads, D head dimension.
//
// Bits. The same call on the same device has the same bits every time. The formulas leave the order
// of sums open; a backend that fixes more of it says so (Promises), and whoever relies on that
// asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/attention_args.h"
#include "kernels/base_format.h"
#include "kernels/block_format.h"
#include "kernels/dropout.h"
#include "kernels/values.h"

namespace tercio::kernels {

// What a backend promises of bits beyond the formulas (docs/numerics.md).
struct Promises {
  // A product is the sequence of fused multiply-adds that docs/numerics.md defines. With bf16
  // factors denormal numbers count as zero, those that it reads and those that it computes.
  bool defined_products = false;
  // An output row depends on its own inputs only: its bits are the same for any number of rows, any
  // split over calls, any number of threads and any vector width.
  bool independent_rows = false;
  // Sums over rows ("leaf sums") start at zero for each piece of at most kPieceRows rows, counted
  // from the start of each leaf of `rows_per_leaf` rows, and pieces are added to the accumulator in
  // ascending order. Without this promise rows_per_leaf is ignored.
  bool leaf_sums = false;

  bool operator==(const Promises&) const = default;
};
inline constexpr int64_t kPieceRows = 256;

// Products: all values of both factors are of one format, and a backend may use instructions for
// it.

// y[m,n] (= or +=) sum_k x[m,k] w[n,k] (+ bias[n])                     x (M,K)  w (N,K)  y (M,N)
struct MatmulArgs {
  ConstValues x;
  ConstValues w;
  ConstValues bias;
  Values y;
  int64_t m, n, k;
  bool accumulate = false;
};

// dx[m,k] (= or +=) sum_n dy[m,n] w[n,k]                               dy (M,N)  w (N,K)  dx (M,K)
struct MatmulBackwardInputArgs {
  ConstValues dy;
  ConstValues w;
  Values dx;
  int64_t m, n, k;
  bool accumulate = false;
};

// dw[n,k] (= or +=) leaf sum over m of dy[m,n] x[m,k];  dbias[n] likewise of dy[m,n]; each if not
// null
struct MatmulBackwardWeightArgs {
  ConstValues dy;
  ConstValues x;
  float* dw;
  float* dbias = nullptr;
  int64_t m, n, k;
  int64_t rows_per_leaf;
  bool accumulate = true;
};

// Scaled products (docs/numerics.md, "FP8"): of factors of 8 bits, each of which was multiplied
// with a scale before it was rounded. The sum's dimension is the last of both factors, so that a
// factor is made as it is, transposed, or both. m, n and k are multiples of kScaledUnit, as are the
// bytes of all addresses.
inline constexpr int64_t kScaledUnit = 16;

// *scale = ScaleFor(format, the largest magnitude of x), of which NaN is none.
struct ChooseScaleArgs {
  ConstValues x;
  int64_t count;
  Format format;  // a format of 8 bits
  Scale* scale;   // in the device's memory
};

// plain[i,j] = transposed[j,i] = x[i,j] * scale->multiplier, rounded to its format: to the nearest
// number, of two equally near ones to the even one; too large: the largest number. Subnormal
// numbers are kept. NaN stays NaN, and what is infinite becomes NaN: a bad number stays one.
// *largest becomes the largest magnitude of x, where it was less.
struct QuantizeArgs {
  ConstValues x;      // (rows, columns)
  Values plain;       // (rows, columns) of 8 bits, or null
  Values transposed;  // (columns, rows) of the same format, or null
  const Scale* scale;
  float* largest;  // or null
  int64_t rows, columns;
};

// c[m,n] (= or +=) a_scale->inverse * b_scale->inverse * sum_k a[m,k] b[n,k] (+ bias[n])
//
// fast_accumulation: the sum may have fewer bits than fp32 while it grows, about 14, where a device
// is faster that way.
struct ScaledMatmulArgs {
  ConstValues a;  // (M,K), of 8 bits
  ConstValues b;  // (N,K), E4M3
  const Scale* a_scale;
  const Scale* b_scale;
  ConstValues bias;  // in c's format, which has 16 bits then; or null
  Values c;          // (M,N)
  int64_t m, n, k;
  bool accumulate = false;
  bool fast_accumulation = false;
};

// y = (x - mean) * rstd * weight (+ bias); mean, rstd per row, kept for the backward pass.
struct LayerNormArgs {
  ConstValues x;       // (N,C)
  ConstValues weight;  // (C)
  ConstValues bias;    // (C) or null
  Values y;            // (N,C)
  float* mean;         // (N)
  float* rstd;         // (N)
  int64_t rows, columns;
  float eps = 1e-5f;
  bool rms = false;  // RMSNorm (Zhang and Sennrich 2019): the mean counts as 0, and is stored as 0
  bool unit_offset = false;  // 1 + weight in the place of weight, in fp32, as in Gemma
};

// dx (= or +=) gradient through the norm; dweight, dbias += leaf sums (if not null).
struct LayerNormBackwardArgs {
  ConstValues dy;
  ConstValues x;
  ConstValues weight;
  const float* mean;
  const float* rstd;
  Values dx;
  float* dweight;
  float* dbias;
  int64_t rows, columns;
  int64_t rows_per_leaf;
  bool accumulate = false;
  bool rms = false;
  bool unit_offset = false;
};

// out = residual + dropout(branch + bias). out may be residual.
struct ResidualArgs {
  ConstValues residual;
  ConstValues branch;
  ConstValues bias;  // (C) or null
  Values out;
  int64_t rows, columns;
  Dropout dropout;
};

// dbranch = dropout'(dout); dbias += leaf sum of dbranch (if not null). dbranch may be null when
// there is no dropout (it would equal dout).
struct ResidualBackwardArgs {
  ConstValues dout;
  Values dbranch;
  float* dbias;
  int64_t rows, columns;
  int64_t rows_per_leaf;
  Dropout dropout;
};

// to[i,j] (= or +=) dropout(factor * from[i,j] * times[i,j]) of columns of rows that may be wider:
// row i of `from` begins at from[i * from_stride], and so on. Rows do not overlap; to may be from,
// with one stride.
struct ColumnsArgs {
  ConstValues from;
  int64_t from_stride;
  Values to;
  int64_t to_stride;
  int64_t rows, columns;
  float factor = 1;
  ConstValues times = nullptr;  // or null: 1
  int64_t times_stride = 0;     // 0: one row of factors for all rows
  bool accumulate = false;
  Dropout dropout = {};
  int64_t first_channel = 0;  // of dropout, that column 0 has: a multiple of 4
};

// A function of feed-forward layers.
enum class Activation {
  kGeluTanh,  // the form of GPT-2, by tanh
  kGelu,      // x Phi(x) (Hendrycks and Gimpel 2016)
  kRelu,      // its slope at 0 is 0
  kSilu,      // x / (1 + exp(-x))
};

// g = f(h), f the function.
struct ActivationArgs {
  ConstValues h;
  Values g;
  int64_t rows, columns;
  Activation function = Activation::kGeluTanh;
};

// dh = dg * f'(h); dh may be dg.
struct ActivationBackwardArgs {
  ConstValues dg;
  ConstValues h;
  Values dh;
  int64_t rows, columns;
  Activation function = Activation::kGeluTanh;
};

// g = f(gate) * up; a row of h is gate, then up (Shazeer 2020).
struct GatedArgs {
  ConstValues h;  // (rows, 2 columns)
  Values g;       // (rows, columns)
  int64_t rows, columns;
  Activation function = Activation::kSilu;
};

// dgate = dg * up * f'(gate), dup = dg * f(gate), side by side as in h; dh must not be h.
struct GatedBackwardArgs {
  ConstValues dg;
  ConstValues h;
  Values dh;  // (rows, 2 columns)
  int64_t rows, columns;
  Activation function = Activation::kSilu;
};

// out[n] = scale * weight[token[n] - vocabulary_begin] for tokens in [begin, begin + rows), zeros
// for others. Gemma's scale is sqrt(C), rounded to the format by the caller.
struct EmbeddingArgs {
  const int32_t* tokens;  // (N)
  ConstValues weight;     // (rows, C)
  Values out;             // (N,C)
  int64_t count, columns;
  int64_t vocabulary_begin, vocabulary_rows;
  float scale = 1;
};

// dweight[token[n] - begin] += dx[n] * scale, n ascending; others are skipped.
struct EmbeddingBackwardArgs {
  const int32_t* tokens;
  ConstValues dx;
  float* dweight;
  int64_t count, columns;
  int64_t vocabulary_begin, vocabulary_rows;
  float scale = 1;
};

// x[n] = dropout(x[n] + weight[p] + type_weight[type[n]]), p = (first_row + n) mod T, or
// positions[n].
struct PositionEmbeddingArgs {
  Values x;
  ConstValues weight;  // (T,C), or null: nothing is added
  int64_t rows, columns, tokens;
  int64_t first_row = 0;
  Dropout dropout;
  const int32_t* types = nullptr;  // (N) from the first row of the call; read with type_weight only
  ConstValues type_weight;
  const int32_t* positions = nullptr;  // (N), each in [0, T); null: those of a sequence
};

// dx = dropout'(dx) in place; dweight[p] += dx[n], p as above, and dtype_weight[type[n]] += dx[n],
// n ascending.
struct PositionEmbeddingBackwardArgs {
  Values dx;
  float* dweight;  // or null
  int64_t rows, columns, tokens;
  int64_t first_row = 0;
  Dropout dropout;
  const int32_t* types = nullptr;
  float* dtype_weight = nullptr;  // or null
  const int32_t* positions = nullptr;
};

// out[i] = x[index[i]]
struct GatherArgs {
  ConstValues x;
  const int32_t* index;  // (count)
  Values out;            // (count, C)
  int64_t count, columns;
};

// to[index[i]] += from[i], i ascending.
struct ScatterAddArgs {
  ConstValues from;  // (count, C)
  const int32_t* index;
  Values to;
  int64_t count, columns;
};

// y = tanh(y + bias), in place.
struct BiasTanhArgs {
  Values y;
  ConstValues bias;  // (C) or null
  int64_t rows, columns;
};

// dx = dy * (1 - y^2); dx may be dy.
struct TanhBackwardArgs {
  ConstValues dy;
  ConstValues y;
  Values dx;
  int64_t count;
};

// x = cap * tanh(x / cap), in place: the soft cap of logits (Gemma 2).
struct SoftCapArgs {
  Values x;
  int64_t count;
  float cap;
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
  ConstValues logits;  // (R, stride)
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
// [c is the target] + amount / vocabulary; columns from `valid` to `stride` become 0. softcap: the
// logits l are those of SoftCap with it, and their gradients are multiplied by 1 - (l / softcap)^2.
struct CrossEntropyBackwardArgs {
  Values logits;
  const float* lse;
  const int32_t* targets;
  int64_t rows, valid, stride;
  int64_t vocabulary_begin;
  float scale;
  LabelSmoothing smoothing;
  float softcap = 0;  // 0: none
};

// sums[(first_row + i) / rows_per_sum] += loss[i] in double, i ascending.
struct AddLossesArgs {
  const float* loss;  // (rows)
  double* sums;
  int64_t rows;
  int64_t first_row;
  int64_t rows_per_sum;
};

// CrossEntropyLocal, CrossEntropyCombine, AddLosses and CrossEntropyBackward of a rank that has the
// whole vocabulary, whose logits so become their gradient.
struct CrossEntropyArgs {
  Values logits;  // (R, stride)
  const int32_t* targets;
  float* stats;  // (R, kCrossEntropyStats): scratch, which a backend may leave as it is
  float* lse;
  float* loss;
  double* sums;
  int64_t rows, valid, stride;
  float scale;
  LabelSmoothing smoothing;
  int64_t first_row, rows_per_sum;
  float softcap = 0;  // 0: none
};

// Distillation (Hinton, Vinyals, Dean 2015): at temperature T a student's logits s give
// q = softmax(s / T), a teacher's logits t give p = softmax(t / T), over the whole vocabulary. The
// divergence of a row is
//   forward   KL(p, q) = sum p (log p - log q)
//   reverse   KL(q, p) = sum q (log q - log p)
// A teacher's logit of -infinity has probability 0; forward only.
inline constexpr int64_t kDistillationStats = 5;

// Per row over the valid columns: stats[row] = {max s, sum exp((s - max s) / T), max t, sum exp((t
// - max t) / T), weighted}; weighted: forward sum exp((t - max t) / T) (t - s) / T, reverse sum
// exp((s - max s) / T) (s - t) / T. With no valid column: {-inf, 0, -inf, 0, 0}.
struct DistillationLocalArgs {
  ConstValues student;  // (R, stride)
  ConstValues teacher;  // (R, stride)
  float* stats;         // (R, kDistillationStats)
  int64_t rows, valid, stride;
  float temperature;
  bool reverse;
};

// Joins the stats of `ranks` tensor ranks in rank order: stats (ranks, R, kDistillationStats) ->
// student_lse = log sum exp(s / T), teacher_lse likewise, divergence: (R) each.
struct DistillationCombineArgs {
  const float* stats;
  float* student_lse;
  float* teacher_lse;
  float* divergence;
  int64_t rows, ranks;
  float temperature;
  bool reverse;
};

// student[r,c] = d((1 - weight) cross-entropy + weight T^2 divergence) / d(student[r,c]) * scale,
// in place; columns from `valid` to `stride` become 0. lse (R): that of CrossEntropyCombine.
struct DistillationBackwardArgs {
  Values student;       // (R, stride)
  ConstValues teacher;  // (R, stride)
  const float* lse;
  const int32_t* targets;
  const float* student_lse;
  const float* teacher_lse;
  const float* divergence;
  int64_t rows, valid, stride;
  int64_t vocabulary_begin;
  float scale, weight, temperature;
  bool reverse;
  float softcap = 0;  // as CrossEntropyBackwardArgs
};

// Logits of which a row has only some: out[r,c] is the value of the row's pair with the id
// vocabulary_begin + c, -infinity where there is none. REQUIRES: the ids of a row differ; one that
// is negative is no pair.
struct SpreadLogitsArgs {
  const int32_t* ids;   // (R, pairs)
  const float* values;  // (R, pairs)
  Values out;           // (R, stride)
  int64_t rows, pairs, stride;
  int64_t vocabulary_begin;
};

// Weights p with their gradient and moments, and what the model reads where that is not fp32, else
// null.
struct AdamWTensor {
  float* parameter;
  const float* gradient;
  float* m;
  float* v;
  Values rounded;
  int64_t count;
  float weight_decay;
};

// One AdamW step of each tensor as torch.optim.AdamW: g = gradient * clip; p -= lr*decay*p; m, v
// updated; p -= lr * (m / bias_correction1) / (sqrt(v / bias_correction2) + eps); rounded = p. The
// list is the host's, and read during the call only. Tensors do not overlap.
struct AdamWArgs {
  const AdamWTensor* tensors;
  int64_t tensor_count;
  float learning_rate, beta1, beta2, eps;
  double bias_correction1, bias_correction2;  // 1 - beta^step
  float clip = 1;
};

// A tensor whose squares are summed. *not_finite = how many of its elements are not finite.
struct SquaredTensor {
  const float* values;
  int64_t count;
  double* not_finite;
};

// The exact sum of the squares of all tensors (kernels/exact_sum.h). A block is kSquaresBlock
// elements of a tensor, counted from its first; its sum is a double, of 16 interleaved sums that
// are added in ascending order. limbs: the carried limbs of the exact sum over all blocks, without
// those that have an element which is not finite. The list is the host's, and read during the call
// only.
inline constexpr int64_t kSquaresBlock = 1024;
struct SumsOfSquaresArgs {
  const SquaredTensor* tensors;
  int64_t tensor_count;
  double* limbs;  // (kSumLimbs)
};

// Operations that follow each other, in the order of the members: what a layer computes from the
// residual stream to the factors of its next product, or from one product to the next. The model
// asks for all of it at once, and a backend computes as much of it in one pass as it has kernels
// for.
//
// Every result is written. The bits are those of the operations one by one, except that kGeluTanh
// and its gradient may take the sum of `product` or `input_gradient` before it is rounded.
struct Chain {
  std::optional<ResidualArgs> residual = std::nullopt;
  std::optional<LayerNormArgs> norm = std::nullopt;  // of residual->out, where that is there
  // One of them at most:
  std::optional<MatmulArgs> product = std::nullopt;
  std::optional<ScaledMatmulArgs> scaled_product = std::nullopt;
  std::optional<MatmulBackwardInputArgs> input_gradient = std::nullopt;
  // One of them at most; after a product, of its result:
  std::optional<ActivationArgs> activation = std::nullopt;
  std::optional<GatedArgs> gated = std::nullopt;
  // In place after a product:
  std::optional<ActivationBackwardArgs> activation_gradient = std::nullopt;
  std::optional<GatedBackwardArgs> gated_gradient = std::nullopt;
  // What the last of the above has written is rounded.
  std::optional<QuantizeArgs> quantize = std::nullopt;
};

// *digest = sum of bits(values[i]) * k(number of i) modulo 2^64, with the odd 32-bit numbers
// k(n) = (2n + 1) * 0x9e3779b1 modulo 2^32: exact, and so the same for any number of threads and
// any vector width. No change of a single element goes unseen, whatever it is: neither factor of
// its part is zero, nor their product 2^64 or more. Digests of the parts of a tensor, numbered as
// they are in it, add up to that of the tensor.
struct DigestArgs {
  const float* values = nullptr;  // (rows, columns)
  int64_t columns = 0;
  int64_t rows = 1;
  int64_t first = 0;   // number of the first element
  int64_t stride = 0;  // element (r, c) has the number first + r * stride + c
  uint64_t* digest = nullptr;
};

// A part of a quantised matrix (kernels/quantized_base.h) whose scales are quantised, too: rows of
// `columns` elements, a multiple of kBaseBlock. The block at (r, c) of the part has the number
// first + r * stride + c in the whole matrix, and the group number / kScalesOfGroup.
struct DequantizeBlocksArgs {
  Values to;  // (rows, columns)
  const std::byte* codes;
  const std::byte* scales;  // a code for each block of the part
  const float* groups;      // the mean of the whole matrix's scales, then the scale of each group
  int64_t rows, columns;
  int64_t first;
  int64_t stride;
  BaseFormat format;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual Promises promises() const = 0;

  // By default one operation after the other.
  virtual void RunChain(const Chain& chain);

  virtual void Matmul(const MatmulArgs& args) = 0;
  virtual void MatmulBackwardInput(const MatmulBackwardInputArgs& args) = 0;
  virtual void MatmulBackwardWeight(const MatmulBackwardWeightArgs& args) = 0;
  virtual void ChooseScale(const ChooseScaleArgs& args) = 0;
  virtual void Quantize(const QuantizeArgs& args) = 0;
  virtual void ScaledMatmul(const ScaledMatmulArgs& args) = 0;
  virtual void LayerNorm(const LayerNormArgs& args) = 0;
  virtual void LayerNormBackward(const LayerNormBackwardArgs& args) = 0;
  virtual void HeadNorm(const HeadNormArgs& args) = 0;
  virtual void HeadNormBackward(const HeadNormBackwardArgs& args) = 0;
  virtual void Residual(const ResidualArgs& args) = 0;
  virtual void ResidualBackward(const ResidualBackwardArgs& args) = 0;
  virtual void Columns(const ColumnsArgs& args) = 0;
  virtual void Activate(const ActivationArgs& args) = 0;
  virtual void ActivateBackward(const ActivationBackwardArgs& args) = 0;
  virtual void Gated(const GatedArgs& args) = 0;
  virtual void GatedBackward(const GatedBackwardArgs& args) = 0;
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
  virtual void SoftCap(const SoftCapArgs& args) = 0;
  virtual void CrossEntropyLocal(const CrossEntropyLocalArgs& args) = 0;
  virtual void CrossEntropyCombine(const CrossEntropyCombineArgs& args) = 0;
  virtual void CrossEntropyBackward(const CrossEntropyBackwardArgs& args) = 0;
  virtual void AddLosses(const AddLossesArgs& args) = 0;
  virtual void DistillationLocal(const DistillationLocalArgs& args) = 0;
  virtual void DistillationCombine(const DistillationCombineArgs& args) = 0;
  virtual void DistillationBackward(const DistillationBackwardArgs& args) = 0;
  virtual void SpreadLogits(const SpreadLogitsArgs& args) = 0;
  // The bits are those of the four operations, which a backend may do in one pass.
  virtual void CrossEntropy(const CrossEntropyArgs& args);
  virtual void AdamW(const AdamWArgs& args) = 0;

  // a[i] += b[i]
  virtual void Add(Values a, ConstValues b, int64_t count) = 0;
  // a[i] *= factor
  virtual void Scale(Values a, float factor, int64_t count) = 0;
  virtual void Zero(Values a, int64_t count) = 0;
  // to[i] = from[i], in the format of `to`. They may be one.
  virtual void Copy(Values to, ConstValues from, int64_t count) = 0;
  // to[i] = from[i], rounded to the block format (kernels/block_format.h), then to the format of
  // `to`. They may be one where `to` is fp32. Without a block format: Copy.
  virtual void RoundBlocks(Values to, const float* from, int64_t count, BlockFormat format) = 0;
  // The packed form of from[0, count), PackedBytes at `packed`, which is aligned to 4 bytes.
  virtual void PackBlocks(std::byte* packed, const float* from, int64_t count,
                          BlockFormat format) = 0;
  // to[i] = what is packed, in the format of `to`.
  virtual void UnpackBlocks(Values to, const std::byte* packed, int64_t count,
                            BlockFormat format) = 0;
  // to[i] = the value that the codes stand for, in the format of `to`.
  virtual void DequantizeBlocks(const DequantizeBlocksArgs& args) = 0;
  virtual void SumsOfSquares(const SumsOfSquaresArgs& args) = 0;
  virtual void Digest(const DigestArgs& args) = 0;

  // Whether operations of the shapes so far are computed as they always will be from now on, so
  // that they can be recorded: a backend may still be examining a library's results. Waits for
  // nothing.
  virtual bool ReadyToRecord() { return true; }
};

}  // namespace tercio::kernels
