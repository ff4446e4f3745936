// Attention, and its gradients, as graphs that cuDNN knows: a product, scale, masks, softmax,
// dropout and a product. Pure except for the library's descriptors.
//
// Dropout multiplies with a mask in memory: that of kernels/random.h, the same in every layout and
// on every backend. The library's own generator would give other masks.
//
// The library's requirements on a graph are not in its contract but in the patterns that it
// recognizes (NVIDIA's cudnn-frontend, its documentation of scaled dot product attention); tests
// ask the library itself, which plans for devices that are not here (graph_library_test.cc).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/cudnn/graph.h"

namespace tercio::kernels::cuda {

// Everything that a plan depends on. Sizes are elements, names those of ops.h.
struct CudnnAttentionShape {
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;  // or CUDNN_DATA_HALF
  int64_t sequences = 0, tokens = 0, heads = 0, head_dim = 0;
  int64_t group = 1;
  int64_t stride = 0;      // between rows of q, k and v, and of their gradients
  int64_t out_stride = 0;  // between rows of the result, and of its gradient
  float scale = 1;         // of scores
  bool causal = true;
  bool padded = false;  // sequences have lengths of their own
  float dropout = 0;    // the probability that a weight is dropped; 0: there is no mask

  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// Elements between rows of a dropout mask: a whole number of 16 bytes.
inline int64_t CudnnMaskStride(int64_t tokens) { return (tokens + 7) / 8 * 8; }

// Tensors that only some shapes have.
struct CudnnOptionalIds {
  CudnnGraph::Id hidden;         // minus infinity; where causal or padded
  CudnnGraph::Id queries, keys;  // lengths of sequences, as 32-bit integers; where padded
  // Where there is dropout: 1 for a kept weight and 0 for others, in the format of q, for all
  // queries and keys of each head; and 1 / (1 - p), the scale of what is kept.
  CudnnGraph::Id mask, kept_scale;
};

// The tensors of a graph, by their role.
struct CudnnForwardIds {
  CudnnGraph::Id q, k, v, out, lse;
  CudnnGraph::Id scale;  // of scores
  CudnnOptionalIds optional;
};
CudnnForwardIds AddAttention(const CudnnAttentionShape& shape, CudnnGraph& graph);

struct CudnnBackwardIds {
  CudnnGraph::Id q, k, v, out, dout, lse, dq, dk, dv;
  CudnnGraph::Id delta;  // memory for a float for each row and head
  CudnnGraph::Id scale;
  CudnnGraph::Id keep;  // 1 - p, and 1 without dropout
  CudnnOptionalIds optional;
};
CudnnBackwardIds AddAttentionBackward(const CudnnAttentionShape& shape, CudnnGraph& graph);

// Whether NVIDIA says that gradients of the shape have the same bits every time, and by which
// engine, if not by any that the library ranks. `capability`: 90 is 9.0.
struct CudnnRepetition {
  bool repeats;
  std::optional<CudnnEngine> engine;
};
CudnnRepetition RepetitionOf(const CudnnAttentionShape& shape, int capability, size_t version);

}  // namespace tercio::kernels::cuda
