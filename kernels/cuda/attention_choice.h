// Which attention cuDNN computes, and which our own kernels, which are slower. Pure and
// free of CUDA, so that plans and calls ask the same functions.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/values.h"

namespace tercio::kernels::cuda {

// A call, or the largest of a job.
struct AttentionTraits {
  Format format;
  int64_t sequences, tokens, heads, head_dim;
  int64_t stride;          // values from a row of q, k or v to the next
  float softcap = 0;       // of scores
  int64_t window = 0;      // keys that a query sees; 0: all
  bool bias = false;       // of relative positions
  bool cross = false;      // keys and values are rows of another stream
  bool documents = false;  // sequences hold several, which do not see each other
};

// Why cuDNN's graph does not express it, as the end of a sentence about the graph; null: it does.
inline const char* WhyNotCudnn(const AttentionTraits& a) {
  // The library writes 16-bit results only.
  if (a.format != Format::kBfloat16 && a.format != Format::kFloat16) {
    return "is for 16-bit values (training.precision)";
  }
  if (a.sequences < 1 || a.tokens < 2 || a.heads < 1) return "needs at least two tokens";
  constexpr int64_t kMaxHeadDim = 256;
  // The library reads 16 bytes at a time, which are eight values.
  if (a.head_dim % 8 != 0 || a.head_dim > kMaxHeadDim) {
    return "takes heads of a multiple of 8 up to 256 (model.hidden / model.heads)";
  }
  if (a.softcap > 0) return "has no soft cap of scores (model.attention_softcap)";
  // Its sizes and strides are those of one tensor with queries, keys and values in each row.
  if (a.cross) return "has no keys and values of another stream (cross attention)";
  if (a.documents) return "does not keep documents apart (data.packing)";
  if (a.bias) return "adds no bias of relative positions to scores";
  // A window of all tokens hides nothing.
  if (a.window > 0 && a.window < a.tokens) return "has no window (model.sliding_window)";
  if (a.stride % 8 != 0) return "takes rows of a multiple of 8 values";
  // The library computes offsets with 32 bits.
  if (a.sequences * a.tokens * a.stride > std::numeric_limits<int32_t>::max()) {
    return "addresses 2^31 values at most (training.micro_batch times model.context)";
  }
  return nullptr;
}

// What decides whether gradients have the same bits every time.
struct GradientTraits {
  int capability;  // the GPU's, its major number
  int64_t head_dim;
  bool has_dropout;  // probabilities are dropped
};

// The same for its gradients: what NVIDIA says of repeated bits. Versions of the library may have
// further limits (cudnn/attention_graph.h).
inline const char* WhyNotCudnnGradients(const GradientTraits& a) {
  // The library's documentation says so of this graph.
  if (a.capability == 8 || a.capability == 9) return nullptr;
  constexpr int64_t kMaxHeadDimOfBlackwell = 128;
  // The rest is what NVIDIA's cudnn-frontend does where a deterministic algorithm is wanted.
  if (a.capability != 10 && a.capability != 12) {
    return "is not guaranteed to repeat bits on this GPU";
  }
  if (a.head_dim > kMaxHeadDimOfBlackwell) {
    return "repeats bits on this GPU for heads of up to 128 only (model.hidden / model.heads)";
  }
  // The library fails to compile it.
  if (a.capability == 10 && a.has_dropout) {
    return "has no dropout on this GPU where it repeats bits (model.dropout)";
  }
  return nullptr;
}

}  // namespace tercio::kernels::cuda
