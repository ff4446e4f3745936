// Matrix products by cuBLASLt, with the operations that it can fuse; gemm_cublaslt.cc is the only
// file that knows it. Sums are fp32; a result is rounded once, by the library. Descriptors and the
// algorithm of a shape are made at its first product and kept. Algorithms are the first of the
// library's own ranking that fits the workspace, or, if they are timed, the fastest of it, unless
// the table has another; none adds in an order that is not fixed. An algorithm of the table that
// the library refuses, or that wants more workspace, is replaced by the library's choice, and so is
// one that it refuses when the product is called. Where the table says so, an operation that the
// library could fuse is left to the caller.
//
// Threads: thread-compatible. Errors go to OperationErrors; a product that fails writes nothing.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/notes.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/product_algorithms.h"

namespace tercio::kernels::cuda {

struct ProductOptions {
  bool tf32 = false;   // products of fp32 factors may round these
  bool times = false;  // a product runs many times when its shape is new: its buffers are garbage
};

class Products {
 public:
  // `algorithms` is read and added to. All outlive the object; `notes` may be null.
  Products(const ProductOptions& options, ProductAlgorithms* algorithms, OperationErrors* errors,
           OperationNotes* notes);
  ~Products();

  void Matmul(const MatmulArgs& args, const CudaContext& context);
  void MatmulBackwardInput(const MatmulBackwardInputArgs& args, const CudaContext& context);
  void ScaledMatmul(const ScaledMatmulArgs& args, const CudaContext& context);
  // All rows are one leaf. Returns whether the bias gradient is done, too.
  bool MatmulBackwardWeight(const MatmulBackwardWeightArgs& args, const CudaContext& context);

  // Both operations in one, if the library can and the table does not prefer two; false: nothing
  // was done. GELU is then that of the result before it is rounded.
  bool MatmulGelu(const MatmulArgs& args, const ActivationArgs& gelu, const CudaContext& context);
  bool MatmulGeluBackward(const MatmulBackwardInputArgs& args, const ActivationBackwardArgs& gelu,
                          const CudaContext& context);

 private:
  class Library;

  ProductShape ShapeOf(ProductKind kind, Format operands, Format result, int64_t m, int64_t n,
                       int64_t k) const;

  const bool tf32_;
  std::unique_ptr<Library> library_;
};

// Name and version: algorithms are meaningless for another one.
std::string ProductLibrary();

}  // namespace tercio::kernels::cuda
