// The part of ops.h that is about heads of queries, keys and values: rotary positions, norms,
// attention. Letters and rules are those of ops.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/values.h"

namespace tercio::kernels {

// Rotary positions (Su et al. 2021), in place: the first R channels of each head are turned, in the
// pairs (i, i + R/2) of Hugging Face's llama and GPT-NeoX, or (2i, 2i + 1) of GPT-J. Head h of row
// n starts at x[n * stride + h * D]; the row's angles are table row (n mod T), or positions[n]: R/2
// cosines, then R/2 sines. inverse: the other way round, which is the gradient.
struct RotaryArgs {
  Values x;
  const float* table;  // (T, R)
  int64_t rows, tokens, stride, heads, head_dim;
  int64_t rotary_dim = 0;    // R, even; 0: D
  bool interleaved = false;  // the pairs (2i, 2i + 1)
  bool inverse = false;
  const int32_t* positions = nullptr;  // (N), each in [0, T); null: those of a sequence
  int64_t turned() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

// RMSNorm of each head of queries and keys (Qwen3): head h of row n, which starts at
// x[n * stride + h * D], likewise in y, is multiplied with rstd of its own and weight. y may be x.
struct HeadNormArgs {
  ConstValues x;
  ConstValues weight;  // (D)
  Values y;
  float* rstd;  // (N, heads)
  int64_t rows, heads, head_dim, stride;
  float eps = 1e-6f;
};

// dx = gradient through the norm, dweight += leaf sums, of a row over its heads in ascending order.
// dy and dx have x's stride; dx may be dy.
struct HeadNormBackwardArgs {
  ConstValues dy;
  ConstValues x;
  ConstValues weight;
  const float* rstd;
  Values dx;
  float* dweight;  // (D), or null
  int64_t rows, heads, head_dim, stride;
  int64_t rows_per_leaf;
};

// Relative positions (Raffel et al. 2020, "T5"): weight[h, bucket[j - i + T - 1]] is added to the
// score of query i and key j, behind its scale. Not together with a soft cap.
struct AttentionBias {
  ConstValues weight = nullptr;     // (H, buckets); null: nothing is added
  const int32_t* bucket = nullptr;  // (2T - 1), each in [0, buckets)
  int64_t buckets = 0;              // kMostBiasBuckets at most
};
inline constexpr int64_t kMostBiasBuckets = 256;

// Keys and values of texts that grow, which lie in pages of `page_tokens` positions, in a form that
// is the backend's own. A text's page number n has those of positions from n * page_tokens on.
struct PagedText {
  int64_t first_row = 0;       // of q, k, v and out
  int64_t rows = 0;            // positions of this call
  int64_t first_position = 0;  // those before it are in the pages
  // At least as many as the positions to the last row take; no other text writes to those of rows.
  const int32_t* pages = nullptr;
};
struct KeyPages {
  float* data = nullptr;      // page p begins at data + p * page_elements
  int64_t page_elements = 0;  // PageElements(...) (cpu/attention_scratch.h) or more
  int64_t page_tokens = 0;    // a multiple of kWidestPanel
  const PagedText* texts = nullptr;
  int64_t count = 0;
};

// Attention: causal, or every query with all keys of its sequence. q, k, v: element (row, head*D +
// d) at pointer[row * stride + head*D + d]. k and v have H / group heads; query head h uses theirs
// number h / group (Ainslie et al. 2023). s[i,j] = q_i . k_j * scale, with a soft cap (Gemma 2) cap
// * tanh of that / cap; i - window < j <= i, or j < length of the sequence where not causal; p =
// softmax(s); out_i = sum_j dropout(p)[i,j] v_j. lse (sequences, H, T): log sum exp of s[i,:].
// Attention dropout is keyed by the global head first_head + head, query position and key position.
//
// Documents: a sequence may hold several, one after the other, which do not see each other:
// document_starts (sequences, T) has for each position the first one of its document, so that query
// i sees keys from max(document_starts[i], i - window + 1) on. REQUIRES: causal, keys of the same
// stream and no bias; 0 <= document_starts[i] <= i, ascending within a sequence.
//
// Pages: with `pages` the rows are parts of texts, which lie densely. Their keys and values join
// the pages, and queries see those of their own text there. `sequences` counts as 1, and `tokens`
// is the longest that any text may be. lse is not written. REQUIRES: causal, without documents,
// dropout and first_query. Results have the bits that a call over the whole text gives.
//
// Cross attention (Vaswani et al. 2017): the rows of k and v are another stream's, which has a
// stride of its own, and, where the call is not causal and has no bias, may have another number of
// tokens in each sequence.
struct AttentionArgs {
  ConstValues q;
  ConstValues k;
  ConstValues v;
  int64_t stride;
  int64_t key_stride = 0;  // of k and v; 0: stride
  Values out;              // (N, H*D)
  float* lse;
  int64_t sequences, tokens, heads, head_dim;
  int64_t key_tokens = 0;   // of each sequence of k and v; 0: tokens
  int64_t group = 1;        // query heads for each key head; divides heads
  int64_t first_query = 0;  // rows of out before this one of each sequence stay as they are
  int64_t first_head = 0;
  bool causal = true;
  const int32_t* lengths = nullptr;  // where not causal: each in [1, key tokens]; null: all keys
  const int32_t* document_starts = nullptr;  // null: a sequence is one document
  float scale = 0;                           // 0: 1 / sqrt(D)
  float softcap = 0;                         // 0: none
  int64_t window = 0;  // keys that a query sees, its own included (causal only); 0: all
  AttentionBias bias;
  Dropout dropout;
  // AttentionScratch(...) elements (cpu/attention_scratch.h), for backends without a workspace.
  float* scratch;
  const KeyPages* pages = nullptr;  // CPU only; null: keys and values are the rows' own
};

// dq, dk, dv (same strides as q, k, v) are written with =. dbias (H, buckets), if not null, += leaf
// sums, whose leaves are whole sequences: of a query's sums, queries ascending.
struct AttentionBackwardArgs {
  ConstValues dout;
  ConstValues out;
  const float* lse;
  ConstValues q;
  ConstValues k;
  ConstValues v;
  Values dq;
  Values dk;
  Values dv;
  int64_t stride;
  int64_t key_stride = 0;
  int64_t sequences, tokens, heads, head_dim;
  int64_t key_tokens = 0;
  int64_t group = 1;
  int64_t first_head = 0;
  bool causal = true;
  const int32_t* lengths = nullptr;
  const int32_t* document_starts = nullptr;
  float scale = 0;
  float softcap = 0;
  int64_t window = 0;
  AttentionBias bias;
  float* dbias = nullptr;
  Dropout dropout;
  float* scratch;
};

// What scores are multiplied with.
template <typename Args>
float ScaleOf(const Args& attention) {
  if (attention.scale != 0) return attention.scale;
  return 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
}

// Tokens of each sequence of keys and values, and the stride of their rows.
template <typename Args>
int64_t KeyTokensOf(const Args& attention) {
  return attention.key_tokens == 0 ? attention.tokens : attention.key_tokens;
}
template <typename Args>
int64_t KeyStrideOf(const Args& attention) {
  return attention.key_stride == 0 ? attention.stride : attention.key_stride;
}

}  // namespace tercio::kernels
