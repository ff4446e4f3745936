// Attention, and its gradients, as graphs that cuDNN knows: a product, scale, mask, softmax and a
// product. Pure except for the library's descriptors.
//
// The library's requirements on a graph are not in its contract but in the patterns that it
// recognizes (NVIDIA's cudnn-frontend, its documentation of scaled dot product attention); tests
// ask the library itself, which plans for devices that are not here (graph_library_test.cc).
#pragma once

#include <compare>
#include <cstdint>

#include "kernels/cuda/cudnn/graph.h"

namespace tercio::kernels::cuda {

// Everything that a plan depends on. Sizes are elements, names those of ops.h.
struct CudnnAttentionShape {
  cudnnDataType_t type = CUDNN_DATA_BFLOAT16;  // or CUDNN_DATA_HALF
  int64_t sequences = 0, tokens = 0, heads = 0, head_dim = 0;
  int64_t group = 1;
  int64_t stride = 0;      // between rows of q, k and v, and of their gradients
  int64_t out_stride = 0;  // between rows of the result, and of its gradient
  bool causal = true;

  auto operator<=>(const CudnnAttentionShape&) const = default;
};

// The tensors of a graph, by their role.
struct CudnnForwardIds {
  CudnnGraph::Id q, k, v, out, lse;
  CudnnGraph::Id scale;   // 1 / sqrt(D)
  CudnnGraph::Id hidden;  // minus infinity; where causal
};
CudnnForwardIds AddAttention(const CudnnAttentionShape& shape, CudnnGraph& graph);

struct CudnnBackwardIds {
  CudnnGraph::Id q, k, v, out, dout, lse, dq, dk, dv;
  CudnnGraph::Id delta;  // memory for a float for each row and head
  CudnnGraph::Id scale;
  CudnnGraph::Id hidden;
  CudnnGraph::Id one;  // 1
};
CudnnBackwardIds AddAttentionBackward(const CudnnAttentionShape& shape, CudnnGraph& graph);

}  // namespace tercio::kernels::cuda
