#include "kernels/cuda/gemm_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/stream_timer.h"

namespace tercio::kernels::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(ProductAlgorithm::words));

constexpr int64_t kSideUnit = 256;  // alignment of what is taken from the workspace
// The most algorithms of a shape that are timed, if the library ranks as many.
constexpr size_t kCandidates = 32;
// Alignment of biases and of GELU's input, which lie beside the matrices.
constexpr uintptr_t kSideAlignment = 16;
constexpr int64_t kGeluInputColumns = 8;  // their number is a multiple

// The library's objects are handles, which these let unique_ptr own.
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
    case Format::kE4m3:
      return CUDA_R_8F_E4M3;
    case Format::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t lowest = address & (~address + 1);
  // The lowest set bit of an address is its alignment; the address 0 has none.
  return lowest == 0 || lowest > kProductAlignment ? kProductAlignment
                                                   : static_cast<uint32_t>(lowest);
}

// A row-major matrix is its own transpose to a library that counts by columns: so the transpose of
// a result is requested, and factors change places.
//
//   result^T (rows x columns) = first * second, sums over `depth`
struct Product {
  ProductShape shape;
  ConstValues first;
  ConstValues second;
  Values result;
  const void* bias;  // in the result's storage, or the destination of the gradient; or null
  int64_t rows, columns, depth;
  bool transpose_first;                // first lies as (depth x rows)
  bool transpose_second;               // second lies as (columns x depth)
  const void* gelu_input = nullptr;    // as the result; written forward, read backward
  const Scale* first_scale = nullptr;  // for factors of 8 bits
  const Scale* second_scale = nullptr;
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
    // Later calls would report consequences of the first failure.
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
      // Columns are contiguous, so the leading dimension is the number of rows.
      &layout, TypeOf(format), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
  to.reset(layout);
  return status;
}

cublasLtEpilogue_t EpilogueOf(const Product& p) {
  switch (p.shape.epilogue) {
    case ProductEpilogue::kNone:
      return p.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
    case ProductEpilogue::kGelu:
      return p.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case ProductEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case ProductEpilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// The operands beside the matrices. While the library looks for algorithms it uses only the
// alignment of the addresses, which must hold for all that follow.
cublasStatus_t SetSides(cublasLtMatmulDesc_t desc, const Product& p, const void* bias,
                        const void* gelu_input) {
  Calls calls;
  if (p.bias != nullptr) calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  // A pointer without a purpose is an error for the library.
  if (p.gelu_input != nullptr) {
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_input));
  }
  if (p.first_scale != nullptr) {
    const float* const inverses[] = {&p.first_scale->inverse, &p.second_scale->inverse};
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, inverses[0]));
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, inverses[1]));
  }
  return calls.status();
}

cublasStatus_t DescribeEpilogue(const Product& p, cublasLtMatmulDesc_t desc) {
  Calls calls;
  calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(p)));
  if (p.bias != nullptr) {
    const int32_t type = TypeOf(p.result.stored());
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type));
  }
  if (p.gelu_input != nullptr) {
    // Its type is the result's, which is the default: a library may refuse one that is set.
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.rows));
  }
  const void* const like_all = reinterpret_cast<const void*>(kSideAlignment);
  calls(SetSides(desc, p, like_all, like_all));
  return calls.status();
}

// fp32 sums are the same for all operands; TF32 only shortens the factors.
cublasStatus_t Describe(const Product& p, Prepared& to) {
  Calls calls;
  cublasLtMatmulDesc_t desc = nullptr;
  calls(cublasLtMatmulDescCreate(
      &desc, p.shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  if (!calls.ok()) return calls.status();
  to.desc.reset(desc);
  calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_first ? CUBLAS_OP_T : CUBLAS_OP_N));
  calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_second ? CUBLAS_OP_T : CUBLAS_OP_N));
  if (p.shape.kind == ProductKind::kScaledFast) {
    calls(SetDesc(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}));
  }
  calls(DescribeEpilogue(p, desc));
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

// The first `most` of the library's ranking that need at most workspace_bytes; one at least.
cublasStatus_t FindAlgorithms(cublasLtHandle_t handle, const Product& p, const Prepared& prepared,
                              int64_t workspace_bytes, size_t most,
                              std::vector<ProductAlgorithm>& to) {
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
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  if (calls.ok()) {
    calls(cublasLtMatmulAlgoGetHeuristic(handle, prepared.desc.get(), prepared.first.get(),
                                         prepared.second.get(), prepared.result.get(),
                                         prepared.result.get(), preference, static_cast<int>(most),
                                         results.data(), &found));
  }
  if (!calls.ok()) return calls.status();
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    // The library lists results that it could not confirm.
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    ProductAlgorithm algorithm;
    std::memcpy(algorithm.words.data(), &result.algo, sizeof(result.algo));
    algorithm.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
    to.push_back(algorithm);
  }
  return to.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Whether the library has no algorithm; for an epilogue also by the status for one that it never
// has.
bool IsLack(const Product& p, cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ||
         (status == CUBLAS_STATUS_INVALID_VALUE && p.shape.epilogue != ProductEpilogue::kNone);
}

// Products have this much of the workspace, whatever else needs more of it.
CudaContext ForProducts(CudaContext context) {
  context.workspace_bytes = std::min(context.workspace_bytes, kProductWorkspaceBytes);
  return context;
}

// Of the functions the library has GELU by tanh, on 16-bit results. Its ReLU wants a mask of bits
// for the gradient, another buffer of every layer, while the slope follows from the input that is
// kept anyway.
bool GeluFits(ConstValues input, int64_t columns, Activation function) {
  return function == Activation::kGeluTanh && input.stored() != Format::kFloat32 &&
         columns % kGeluInputColumns == 0 &&
         reinterpret_cast<uintptr_t>(input.data()) % kSideAlignment == 0;
}

}  // namespace

class Products::Library {
 public:
  Library(bool times, ProductAlgorithms* algorithms, OperationErrors* errors, OperationNotes* notes)
      : times_(times), algorithms_(*algorithms), errors_(*errors), notes_(notes) {}

  void Multiply(const char* operation, const Product& p, const CudaContext& context) {
    if (TryMultiply(operation, p, context)) return;
    Report(operation, p.shape, CUBLAS_STATUS_NOT_SUPPORTED);
  }

  // False: the library cannot do that.
  bool TryMultiply(const char* operation, Product p, const CudaContext& context) {
    // The library reads what is stored, so emulated formats would be read wrongly.
    for (const ConstValues values : {p.first, p.second, ConstValues(p.result)}) {
      TERCIO_CHECK(values.stored() == values.format());
    }
    TERCIO_CHECK(p.first_scale != nullptr || p.first.stored() == p.second.stored());
    // Alignment is part of the shape, since an algorithm may rely on it.
    p.shape.alignment = {AlignmentOf(p.first.data()), AlignmentOf(p.second.data()),
                         AlignmentOf(p.result.data())};
    Prepared* prepared = Prepare(operation, p, context);
    if (prepared == nullptr) return false;
    if (errors_.first()) return true;
    const cublasStatus_t status = Run(p, *prepared, context);
    return status == CUBLAS_STATUS_SUCCESS || Recover(operation, p, status, *prepared, context);
  }

  // Takes the front of the workspace, for operands that the library needs aligned: even if they
  // are, since products of one shape have one algorithm and so one workspace.
  static std::byte* TakeSide(int64_t bytes, CudaContext& context) {
    const int64_t taken = RoundUp(bytes, kSideUnit);
    auto* side = context.Scratch<std::byte>(taken);
    context.workspace += taken;
    context.workspace_bytes -= taken;
    return side;
  }

  // The bias at a place where the library can read it.
  const void* AlignedBias(const char* operation, ConstValues bias, int64_t count,
                          CudaContext& context) {
    if (bias == nullptr) return nullptr;
    TERCIO_CHECK(bias.stored() == bias.format());
    // The memory is taken even if the bias is aligned, so that one shape has one workspace.
    const int64_t bytes = bias.BytesFor(count);
    std::byte* copy = TakeSide(bytes, context);
    if (reinterpret_cast<uintptr_t>(bias.data()) % kSideAlignment == 0) return bias.data();
    const cudaError_t error = cudaMemcpyAsync(copy, bias.data(), static_cast<size_t>(bytes),
                                              cudaMemcpyDeviceToDevice, context.stream);
    if (error != cudaSuccess) errors_.Report(operation, cudaGetErrorName(error));
    return copy;
  }

 private:
  cublasStatus_t Run(const Product& p, const Prepared& prepared, const CudaContext& context) {
    const float alpha = 1;
    // With beta 0 the library does not read the result, which may hold anything.
    const float beta = p.shape.accumulate ? 1 : 0;
    Calls calls;
    calls(SetSides(prepared.desc.get(), p, p.bias, p.gelu_input));
    if (!calls.ok()) return calls.status();
    return cublasLtMatmul(handle_.get(), prepared.desc.get(), &alpha, p.first.data(),
                          prepared.first.get(), p.second.data(), prepared.second.get(), &beta,
                          p.result.data(), prepared.result.get(), p.result.data(),
                          prepared.result.get(), &prepared.algorithm, context.workspace,
                          static_cast<size_t>(context.workspace_bytes), context.stream);
  }

  // After a product that the library has offered an algorithm for and then not started. False: it
  // has to be computed without its epilogue.
  bool Recover(const char* operation, const Product& p, cublasStatus_t status, Prepared& prepared,
               const CudaContext& context) {
    const bool refused =
        status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
    if (refused && p.shape.epilogue != ProductEpilogue::kNone) {
      // The table remembers this, so that the library is not tried again.
      prepared_.erase(p.shape);
      algorithms_[p.shape] = kNoAlgorithm;
      NoteLack(p.shape);
      return false;
    }
    if (!refused || !RunAnother(p, prepared, context)) Report(operation, p.shape, status);
    return true;
  }

  // Runs the product with the first of the library's algorithms that it does start, and keeps that.
  bool RunAnother(const Product& p, Prepared& prepared, const CudaContext& context) {
    const ProductAlgorithm refused = algorithms_[p.shape];
    std::vector<ProductAlgorithm> candidates;
    if (FindAlgorithms(handle_.get(), p, prepared, context.workspace_bytes, kCandidates,
                       candidates) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    for (const ProductAlgorithm& candidate : candidates) {
      if (candidate == refused) continue;
      SetAlgorithm(candidate, prepared);
      if (Run(p, prepared, context) != CUBLAS_STATUS_SUCCESS) continue;
      algorithms_[p.shape] = candidate;
      Note(Fallback::kProductAlgorithm, p.shape, "the library refused the algorithm it had chosen");
      return true;
    }
    return false;
  }

  // Whether the library still computes this with an algorithm of the table, in this workspace. The
  // table may come from a job or a version of the library with other limits.
  bool Fits(const Prepared& prepared, const ProductAlgorithm& algorithm,
            const CudaContext& context) {
    cublasLtMatmulAlgo_t words;
    std::memcpy(&words, algorithm.words.data(), sizeof(words));
    cublasLtMatmulHeuristicResult_t result = {};
    return algorithm.workspace_bytes <= context.workspace_bytes &&
           cublasLtMatmulAlgoCheck(handle_.get(), prepared.desc.get(), prepared.first.get(),
                                   prepared.second.get(), prepared.result.get(),
                                   prepared.result.get(), &words,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           static_cast<int64_t>(result.workspaceSize) <= context.workspace_bytes;
  }

  // The candidates for a shape: that of the table, or those of the library.
  cublasStatus_t Candidates(const Product& p, const Prepared& prepared, const CudaContext& context,
                            std::vector<ProductAlgorithm>& to) {
    const auto known = algorithms_.find(p.shape);
    if (known != algorithms_.end()) {
      if (Fits(prepared, known->second, context)) {
        to.push_back(known->second);
        return CUBLAS_STATUS_SUCCESS;
      }
      Note(Fallback::kTableAlgorithm, p.shape,
           "the algorithm of the table is not possible here; the library chooses another one");
    }
    return FindAlgorithms(handle_.get(), p, prepared, context.workspace_bytes,
                          times_ ? kCandidates : 1, to);
  }

  // Null: there is no algorithm. Other errors are reported, and then the result is not to be used.
  Prepared* Prepare(const char* operation, const Product& p, const CudaContext& context) {
    const auto found = prepared_.find(p.shape);
    // A known shape has its descriptors and its algorithm, and costs one look-up.
    if (found != prepared_.end()) return &found->second;
    if (handle_ == nullptr) {
      cublasLtHandle_t handle = nullptr;
      const cublasStatus_t status = cublasLtCreate(&handle);
      if (status != CUBLAS_STATUS_SUCCESS) {
        Report(operation, p.shape, status);
        return &broken_;
      }
      handle_.reset(handle);
    }
    Prepared made;
    const auto known = algorithms_.find(p.shape);
    // The table remembers a lack as well, so that the library is not asked at each product.
    if (known != algorithms_.end() && known->second == kNoAlgorithm) {
      NoteLack(p.shape);
      return nullptr;
    }
    // The other way was measured to be faster, so nothing is noted.
    if (known != algorithms_.end() && known->second == kSeparateEpilogue) return nullptr;
    cublasStatus_t status = Describe(p, made);
    std::vector<ProductAlgorithm> found_ones;
    if (status == CUBLAS_STATUS_SUCCESS) status = Candidates(p, made, context, found_ones);
    if (IsLack(p, status)) {
      algorithms_[p.shape] = kNoAlgorithm;
      NoteLack(p.shape);
      return nullptr;
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
      Report(operation, p.shape, status);
      return &broken_;
    }
    // Candidates are timed once for each shape of the process.
    const size_t best = found_ones.size() > 1 ? Fastest(p, found_ones, made, context) : 0;
    algorithms_[p.shape] = found_ones[best];
    SetAlgorithm(found_ones[best], made);
    return &prepared_.emplace(p.shape, std::move(made)).first->second;
  }

  static void SetAlgorithm(const ProductAlgorithm& algorithm, Prepared& to) {
    std::memcpy(&to.algorithm, algorithm.words.data(), sizeof(to.algorithm));
  }

  // The index of the fastest; an earlier one in the library's ranking is preferred unless a later
  // one is faster by kTimingNoise.
  size_t Fastest(const Product& p, const std::vector<ProductAlgorithm>& candidates,
                 Prepared& prepared, const CudaContext& context) {
    size_t best = 0;
    float best_milliseconds = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < candidates.size(); ++i) {
      SetAlgorithm(candidates[i], prepared);
      const float milliseconds = TimeRuns(
          context.stream, [&] { return Run(p, prepared, context) == CUBLAS_STATUS_SUCCESS; });
      if (milliseconds >= best_milliseconds * (1 - kTimingNoise)) continue;
      best = i;
      best_milliseconds = milliseconds;
    }
    return best;
  }

  static std::string SizesOf(const ProductShape& shape) {
    return "cuBLASLt, m " + std::to_string(shape.m) + ", n " + std::to_string(shape.n) + ", k " +
           std::to_string(shape.k) + ": ";
  }

  void Report(const char* operation, const ProductShape& shape, cublasStatus_t status) {
    errors_.Report(operation, SizesOf(shape) + cublasLtGetStatusName(status) + ": " +
                                  cublasLtGetStatusString(status));
  }

  void Note(Fallback what, const ProductShape& shape, const char* why) {
    if (notes_ != nullptr) notes_->FellBack(what, SizesOf(shape) + why);
  }

  // Once for each shape, since its products ask again.
  void NoteLack(const ProductShape& shape) {
    if (!lacks_.insert(shape).second) return;
    switch (shape.epilogue) {
      case ProductEpilogue::kNone:
        return;  // an error, which is reported
      case ProductEpilogue::kGelu:
        return Note(Fallback::kGelu, shape, "GELU takes a pass of its own");
      case ProductEpilogue::kGeluGradient:
        return Note(Fallback::kGeluGradient, shape, "the gradient of GELU takes a pass of its own");
      case ProductEpilogue::kBiasGradient:
        return Note(Fallback::kBiasGradient, shape, "the gradient of the bias takes its own pass");
    }
  }

  const bool times_;
  ProductAlgorithms& algorithms_;
  OperationErrors& errors_;
  OperationNotes* const notes_;   // or null
  std::set<ProductShape> lacks_;  // noted
  Owned<cublasLtHandle_t, DeleteHandle> handle_;
  std::map<ProductShape, Prepared> prepared_;
  Prepared broken_;  // returned after a reported error
};

Products::Products(const ProductOptions& options, ProductAlgorithms* algorithms,
                   OperationErrors* errors, OperationNotes* notes)
    : tf32_(options.tf32),
      library_(std::make_unique<Library>(options.times, algorithms, errors, notes)) {}
Products::~Products() = default;

ProductShape Products::ShapeOf(ProductKind kind, Format operands, Format result, int64_t m,
                               int64_t n, int64_t k) const {
  ProductShape shape{.kind = kind, .operands = operands, .result = result, .m = m, .n = n, .k = k};
  // TF32 shortens factors of fp32 alone.
  shape.tf32 = tf32_ && operands == Format::kFloat32;
  return shape;
}

// y^T (n x m) = w (lies as k x n, transposed) * x (k x m)
void Products::Matmul(const MatmulArgs& a, const CudaContext& context) {
  constexpr char kName[] = "Matmul";
  CudaContext rest = ForProducts(context);
  ProductShape shape = ShapeOf(ProductKind::kForward, a.x.format(), a.y.format(), a.m, a.n, a.k);
  shape.bias = a.bias != nullptr;
  shape.accumulate = a.accumulate;
  const void* bias = library_->AlignedBias(kName, a.bias, a.n, rest);
  library_->Multiply(kName,
                     {.shape = shape,
                      .first = a.w,
                      .second = a.x,
                      .result = a.y,
                      .bias = bias,
                      .rows = a.n,
                      .columns = a.m,
                      .depth = a.k,
                      .transpose_first = true,
                      .transpose_second = false},
                     rest);
}

bool Products::MatmulGelu(const MatmulArgs& a, const ActivationArgs& gelu,
                          const CudaContext& context) {
  TERCIO_CHECK(gelu.h.data() == a.y.data() && gelu.rows == a.m && gelu.columns == a.n);
  // The library's epilogue does not add to an earlier result.
  if (!GeluFits(gelu.h, a.n, gelu.function) || a.accumulate) return false;
  constexpr char kName[] = "MatmulGelu";
  CudaContext rest = ForProducts(context);
  ProductShape shape = ShapeOf(ProductKind::kForward, a.x.format(), a.y.format(), a.m, a.n, a.k);
  shape.epilogue = ProductEpilogue::kGelu;
  shape.bias = a.bias != nullptr;
  const void* bias = library_->AlignedBias(kName, a.bias, a.n, rest);
  return library_->TryMultiply(kName,
                               {.shape = shape,
                                .first = a.w,
                                .second = a.x,
                                .result = gelu.g,
                                .bias = bias,
                                .rows = a.n,
                                .columns = a.m,
                                .depth = a.k,
                                .transpose_first = true,
                                .transpose_second = false,
                                .gelu_input = a.y.data()},
                               rest);
}

// c^T (n x m) = b (lies as k x n, transposed) * a (k x m): the one form in which GPUs before
// Blackwell multiply numbers of 8 bits.
void Products::ScaledMatmul(const ScaledMatmulArgs& a, const CudaContext& context) {
  constexpr char kName[] = "ScaledMatmul";
  TERCIO_CHECK_EQ((a.m | a.n | a.k) % kScaledUnit, 0);
  TERCIO_CHECK(IsEightBits(a.a.format()) && a.b.format() == Format::kE4m3);
  for (const void* at : {a.a.data(), a.b.data(), ConstValues(a.c).data()}) {
    TERCIO_CHECK_EQ(reinterpret_cast<uintptr_t>(at) % kScaledUnit, 0);
  }
  CudaContext rest = ForProducts(context);
  const ProductKind kind = a.fast_accumulation ? ProductKind::kScaledFast : ProductKind::kScaled;
  ProductShape shape = ShapeOf(kind, a.a.format(), a.c.format(), a.m, a.n, a.k);
  shape.bias = a.bias != nullptr;
  shape.accumulate = a.accumulate;
  const void* bias = library_->AlignedBias(kName, a.bias, a.n, rest);
  Product product{.shape = shape,
                  .first = a.b,
                  .second = a.a,
                  .result = a.c,
                  .bias = bias,
                  .rows = a.n,
                  .columns = a.m,
                  .depth = a.k,
                  .transpose_first = true,
                  .transpose_second = false};
  product.first_scale = a.b_scale;
  product.second_scale = a.a_scale;
  library_->Multiply(kName, product, rest);
}

// dx^T (k x m) = w (k x n) * dy (n x m)
void Products::MatmulBackwardInput(const MatmulBackwardInputArgs& a, const CudaContext& context) {
  ProductShape shape =
      ShapeOf(ProductKind::kInputGradient, a.dy.format(), a.dx.format(), a.m, a.n, a.k);
  shape.accumulate = a.accumulate;
  library_->Multiply("MatmulBackwardInput",
                     {.shape = shape,
                      .first = a.w,
                      .second = a.dy,
                      .result = a.dx,
                      .bias = nullptr,
                      .rows = a.k,
                      .columns = a.m,
                      .depth = a.n,
                      .transpose_first = false,
                      .transpose_second = false},
                     ForProducts(context));
}

bool Products::MatmulGeluBackward(const MatmulBackwardInputArgs& a,
                                  const ActivationBackwardArgs& gelu, const CudaContext& context) {
  TERCIO_CHECK(gelu.dg.data() == a.dx.data() && gelu.dh.data() == a.dx.data());
  TERCIO_CHECK(gelu.rows == a.m && gelu.columns == a.k);
  if (!GeluFits(gelu.h, a.k, gelu.function) || a.accumulate) return false;
  ProductShape shape =
      ShapeOf(ProductKind::kInputGradient, a.dy.format(), a.dx.format(), a.m, a.n, a.k);
  shape.epilogue = ProductEpilogue::kGeluGradient;
  return library_->TryMultiply("MatmulGeluBackward",
                               {.shape = shape,
                                .first = a.w,
                                .second = a.dy,
                                .result = a.dx,
                                .bias = nullptr,
                                .rows = a.k,
                                .columns = a.m,
                                .depth = a.n,
                                .transpose_first = false,
                                .transpose_second = false,
                                .gelu_input = gelu.h.data()},
                               ForProducts(context));
}

// dw^T (k x n) = x (k x m) * dy (lies as n x m, transposed)
bool Products::MatmulBackwardWeight(const MatmulBackwardWeightArgs& a, const CudaContext& context) {
  constexpr char kName[] = "MatmulBackwardWeight";
  ProductShape shape =
      ShapeOf(ProductKind::kWeightGradient, a.dy.format(), Format::kFloat32, a.m, a.n, a.k);
  shape.accumulate = a.accumulate;
  Product product{.shape = shape,
                  .first = a.x,
                  .second = a.dy,
                  .result = a.dw,
                  .bias = nullptr,
                  .rows = a.k,
                  .columns = a.n,
                  .depth = a.m,
                  .transpose_first = false,
                  .transpose_second = true};
  if (a.dbias == nullptr) {
    library_->Multiply(kName, product, ForProducts(context));
    return true;
  }
  CudaContext rest = ForProducts(context);
  std::byte* sums = library_->TakeSide(a.n * 4, rest);
  // The library writes the sums and cannot add to them, so they take a detour.
  product.shape.epilogue = ProductEpilogue::kBiasGradient;
  product.bias = sums;
  if (!library_->TryMultiply(kName, product, rest)) {
    product.shape.epilogue = ProductEpilogue::kNone;
    product.bias = nullptr;
    library_->Multiply(kName, product, ForProducts(context));
    return false;
  }
  auto* from = reinterpret_cast<const float*>(sums);
  if (a.accumulate) {
    Add(a.dbias, from, a.n, context.stream);
  } else {
    Convert(a.dbias, from, a.n, context.stream);
  }
  return true;
}

std::string ProductLibrary() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

}  // namespace tercio::kernels::cuda
