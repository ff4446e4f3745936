#include "kernels/cuda/gemm_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tercio::kernels::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(ProductAlgorithm::words));

constexpr uint32_t kBestAlignment = 256;
constexpr uintptr_t kBiasAlignment = 16;

struct DeleteHandle {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
};
struct DeleteDesc {
  void operator()(cublasLtMatmulDesc_t desc) const { cublasLtMatmulDescDestroy(desc); }
};
struct DeleteLayout {
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DeletePreference {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
template <typename Handle, typename Delete>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Delete>;

cudaDataType_t TypeOf(Format format) {
  switch (format) {
    case Format::kFloat32:
      return CUDA_R_32F;
    case Format::kBfloat16:
      return CUDA_R_16BF;
    case Format::kFloat16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t lowest = address & (~address + 1);
  return lowest == 0 || lowest > kBestAlignment ? kBestAlignment : static_cast<uint32_t>(lowest);
}

// A row-major matrix is, to a library that counts by columns, its own transpose: so a result is
// asked for as its transpose, and factors change places.
//
//   result^T (rows x columns) = first * second, sums over `depth`
struct Product {
  ProductShape shape;
  ConstValues first;
  ConstValues second;
  Values result;
  ConstValues bias;  // or null
  int64_t rows, columns, depth;
  bool transpose_first;   // first lies as (depth x rows)
  bool transpose_second;  // second lies as (columns x depth)
};

struct Prepared {
  Owned<cublasLtMatmulDesc_t, DeleteDesc> desc;
  Owned<cublasLtMatrixLayout_t, DeleteLayout> first, second, result;
  cublasLtMatmulAlgo_t algorithm = {};
};

// The first status that is not success.
class Calls {
 public:
  void operator()(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  bool ok() const { return status_ == CUBLAS_STATUS_SUCCESS; }
  cublasStatus_t status() const { return status_; }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

template <typename T>
cublasStatus_t SetDesc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                       const T& value) {
  return cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value));
}

cublasStatus_t MakeLayout(Format format, int64_t rows, int64_t columns,
                          Owned<cublasLtMatrixLayout_t, DeleteLayout>& to) {
  cublasLtMatrixLayout_t layout = nullptr;
  const cublasStatus_t status = cublasLtMatrixLayoutCreate(
      &layout, TypeOf(format), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
  to.reset(layout);
  return status;
}

cublasStatus_t Describe(const Product& p, Prepared& to) {
  Calls calls;
  cublasLtMatmulDesc_t desc = nullptr;
  calls(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  if (!calls.ok()) return calls.status();
  to.desc.reset(desc);
  calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N));
  calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (p.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t type = TypeOf(p.bias.stored());
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type));
    const void* bias = p.bias.data();
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  }
  calls(p.transpose_first ? MakeLayout(p.first.stored(), p.depth, p.rows, to.first)
                          : MakeLayout(p.first.stored(), p.rows, p.depth, to.first));
  calls(p.transpose_second ? MakeLayout(p.second.stored(), p.columns, p.depth, to.second)
                           : MakeLayout(p.second.stored(), p.depth, p.columns, to.second));
  calls(MakeLayout(p.result.stored(), p.rows, p.columns, to.result));
  return calls.status();
}

template <typename T>
cublasStatus_t Prefer(cublasLtMatmulPreference_t preference,
                      cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value));
}

// The first of the library's ranking that needs at most workspace_bytes.
cublasStatus_t FindAlgorithm(cublasLtHandle_t handle, const Product& p, const Prepared& prepared,
                             int64_t workspace_bytes, ProductAlgorithm& to) {
  Calls calls;
  cublasLtMatmulPreference_t preference = nullptr;
  calls(cublasLtMatmulPreferenceCreate(&preference));
  if (!calls.ok()) return calls.status();
  const Owned<cublasLtMatmulPreference_t, DeletePreference> owned(preference);
  const auto& alignment = p.shape.alignment;
  const auto bytes = static_cast<uint64_t>(workspace_bytes);
  // Parts of a sum that are added in the result itself would come in any order.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes));
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]));
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]));
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]));
  calls(Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[2]));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  if (calls.ok()) {
    calls(cublasLtMatmulAlgoGetHeuristic(handle, prepared.desc.get(), prepared.first.get(),
                                         prepared.second.get(), prepared.result.get(),
                                         prepared.result.get(), preference, 1, &result, &found));
  }
  if (!calls.ok()) return calls.status();
  if (found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (result.state != CUBLAS_STATUS_SUCCESS) return result.state;
  std::memcpy(to.words.data(), &result.algo, sizeof(result.algo));
  to.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

class Products::Library {
 public:
  Library(ProductAlgorithms* algorithms, OperationErrors* errors)
      : algorithms_(*algorithms), errors_(*errors) {}

  void Multiply(const char* operation, Product p, const CudaContext& context) {
    for (const ConstValues values : {p.first, p.second, ConstValues(p.result)}) {
      TERCIO_CHECK(values.stored() == values.format());
    }
    TERCIO_CHECK(p.first.stored() == p.second.stored());
    TERCIO_CHECK(p.bias == nullptr || p.bias.stored() == p.result.stored());
    CudaContext rest = context;
    if (p.bias != nullptr) AlignBias(operation, p, rest);
    p.shape.alignment = {AlignmentOf(p.first.data()), AlignmentOf(p.second.data()),
                         AlignmentOf(p.result.data())};
    Prepared* prepared = Prepare(operation, p, rest.workspace_bytes);
    if (prepared == nullptr) return;
    if (p.bias != nullptr) {
      const void* bias = p.bias.data();
      const cublasStatus_t status =
          SetDesc(prepared->desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      if (status != CUBLAS_STATUS_SUCCESS) return Report(operation, p.shape, status);
    }
    const float alpha = 1;
    const float beta = p.shape.accumulate ? 1 : 0;
    const cublasStatus_t status = cublasLtMatmul(
        handle_.get(), prepared->desc.get(), &alpha, p.first.data(), prepared->first.get(),
        p.second.data(), prepared->second.get(), &beta, p.result.data(), prepared->result.get(),
        p.result.data(), prepared->result.get(), &prepared->algorithm, rest.workspace,
        static_cast<size_t>(rest.workspace_bytes), rest.stream);
    if (status != CUBLAS_STATUS_SUCCESS) Report(operation, p.shape, status);
  }

 private:
  // The library wants biases aligned. The front of the workspace is for a copy of this one: also
  // where none is made, for products of one shape have one algorithm, and so one workspace.
  void AlignBias(const char* operation, Product& p, CudaContext& context) {
    const int64_t bytes = p.bias.BytesFor(p.rows);
    const int64_t taken = RoundUp(bytes, kBestAlignment);
    auto* copy = context.Scratch<std::byte>(taken);
    context.workspace += taken;
    context.workspace_bytes -= taken;
    if (reinterpret_cast<uintptr_t>(p.bias.data()) % kBiasAlignment == 0) return;
    const cudaError_t error = cudaMemcpyAsync(copy, p.bias.data(), static_cast<size_t>(bytes),
                                              cudaMemcpyDeviceToDevice, context.stream);
    if (error != cudaSuccess) errors_.Report(operation, cudaGetErrorName(error));
    p.bias = ConstValues(copy, p.bias.format(), p.bias.stored());
  }

  Prepared* Prepare(const char* operation, const Product& p, int64_t workspace_bytes) {
    const auto found = prepared_.find(p.shape);
    if (found != prepared_.end()) return &found->second;
    if (handle_ == nullptr) {
      cublasLtHandle_t handle = nullptr;
      const cublasStatus_t status = cublasLtCreate(&handle);
      if (status != CUBLAS_STATUS_SUCCESS) {
        Report(operation, p.shape, status);
        return nullptr;
      }
      handle_.reset(handle);
    }
    Prepared made;
    cublasStatus_t status = Describe(p, made);
    const auto known = algorithms_.find(p.shape);
    ProductAlgorithm algorithm;
    if (known != algorithms_.end()) {
      algorithm = known->second;
    } else if (status == CUBLAS_STATUS_SUCCESS) {
      status = FindAlgorithm(handle_.get(), p, made, workspace_bytes, algorithm);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      Report(operation, p.shape, status);
      return nullptr;
    }
    algorithms_[p.shape] = algorithm;
    std::memcpy(&made.algorithm, algorithm.words.data(), sizeof(made.algorithm));
    return &prepared_.emplace(p.shape, std::move(made)).first->second;
  }

  void Report(const char* operation, const ProductShape& shape, cublasStatus_t status) {
    errors_.Report(operation, std::string("cuBLASLt, m ") + std::to_string(shape.m) + ", n " +
                                  std::to_string(shape.n) + ", k " + std::to_string(shape.k) +
                                  ": " + cublasLtGetStatusName(status) + ": " +
                                  cublasLtGetStatusString(status));
  }

  ProductAlgorithms& algorithms_;
  OperationErrors& errors_;
  Owned<cublasLtHandle_t, DeleteHandle> handle_;
  std::map<ProductShape, Prepared> prepared_;
};

Products::Products(ProductAlgorithms* algorithms, OperationErrors* errors)
    : library_(std::make_unique<Library>(algorithms, errors)) {}
Products::~Products() = default;

// y^T (n x m) = w (lies as k x n, transposed) * x (k x m)
void Products::Matmul(const MatmulArgs& a, const CudaContext& context) {
  const ProductShape shape{ProductKind::kForward, a.x.format(), a.y.format(), a.m, a.n, a.k,
                           a.bias != nullptr,     a.accumulate};
  library_->Multiply("Matmul", {shape, a.w, a.x, a.y, a.bias, a.n, a.m, a.k, true, false}, context);
}

// dx^T (k x m) = w (k x n) * dy (n x m)
void Products::MatmulBackwardInput(const MatmulBackwardInputArgs& a, const CudaContext& context) {
  const ProductShape shape{ProductKind::kInputGradient,
                           a.dy.format(),
                           a.dx.format(),
                           a.m,
                           a.n,
                           a.k,
                           false,
                           a.accumulate};
  library_->Multiply("MatmulBackwardInput",
                     {shape, a.w, a.dy, a.dx, nullptr, a.k, a.m, a.n, false, false}, context);
}

// dw^T (k x n) = x (k x m) * dy (lies as n x m, transposed)
void Products::MatmulBackwardWeight(const MatmulBackwardWeightArgs& a, const CudaContext& context) {
  const ProductShape shape{ProductKind::kWeightGradient,
                           a.dy.format(),
                           Format::kFloat32,
                           a.m,
                           a.n,
                           a.k,
                           false,
                           a.accumulate};
  library_->Multiply("MatmulBackwardWeight",
                     {shape, a.x, a.dy, a.dw, nullptr, a.k, a.n, a.m, false, true}, context);
}

}  // namespace tercio::kernels::cuda
