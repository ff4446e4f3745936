// Matrix products by cuBLASLt; gemm_cublaslt.cc is the only file that knows it. Sums are fp32,
// without TF32; a result is rounded once, by the library. Descriptors and the algorithm of a shape
// are made at its first product and kept. Algorithms are the first of the library's own ranking
// that fits the workspace, unless the table says another; none adds in an order that is not fixed.
//
// Threads: thread-compatible. Errors go to OperationErrors; a product that fails writes nothing.
#pragma once

#include <memory>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/product_algorithms.h"

namespace tercio::kernels::cuda {

class Products {
 public:
  // `algorithms` is read and added to; it outlives the object.
  Products(ProductAlgorithms* algorithms, OperationErrors* errors);
  ~Products();

  void Matmul(const MatmulArgs& args, const CudaContext& context);
  void MatmulBackwardInput(const MatmulBackwardInputArgs& args, const CudaContext& context);
  // Without dbias. All rows are one leaf.
  void MatmulBackwardWeight(const MatmulBackwardWeightArgs& args, const CudaContext& context);

 private:
  class Library;
  std::unique_ptr<Library> library_;
};

}  // namespace tercio::kernels::cuda
