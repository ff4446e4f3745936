// cuBLASLt's functions for emulated devices (include/cublasLt.h).
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulation/control.h"
#include "emulation/product_control.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque {
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  // or the destination of its gradient
  int32_t bias_type = -1;      // that of D
  const void* auxiliary = nullptr;
  int64_t auxiliary_leading = 0;
  int32_t auxiliary_type = -1;  // that of D
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  bool tf32 = false;
  int8_t fast_accumulation = 0;
};
// The library counts by columns: `leading` lies between the beginnings of two of them.
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  int64_t rows;
  int64_t columns;
  int64_t leading;
};
struct cublasLtMatmulPreferenceOpaque {
  uint64_t workspace_bytes = 0;
  // The default allows all schemes of reduction, as the library does.
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};  // alignments of A, B, C, D
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque;

// An algorithm that was not made here, or was damaged, lacks this number.
constexpr uint64_t kMagic = 0x7465726369756c74;
// The split needs a workspace, so that tests see what happens without one.
tercio::emulation::ProductSettings settings;
constexpr int64_t kSplitDepth = 32;  // products of this depth or more can be split
// On the device's clock: number 1, which comes first, takes longer by half unless a test wants the
// opposite.
constexpr int64_t kProductsOfMicrosecond = 1000;
int64_t Microseconds(uint64_t number, int64_t products, cublasLtEpilogue_t epilogue) {
  const int64_t time = products / kProductsOfMicrosecond + 2;
  const auto more = settings.epilogue_microseconds.find(epilogue);
  return ((number == 1) != settings.split_is_faster ? time * 3 / 2 : time) +
         (more == settings.epilogue_microseconds.end() ? 0 : more->second);
}
constexpr uint64_t kSideAlignment = 16;   // alignment of biases and auxiliary matrices
constexpr int64_t kAuxiliaryLeading = 8;  // leading dimensions are multiples of this
constexpr int64_t kEightBitUnit = 16;     // likewise sizes and addresses of factors of 8 bits
// Fast accumulation: the products after which a sum is shortened, and to how many bits.
constexpr int64_t kFastDepth = 32;
constexpr int kFastBits = 14;
// Ada and Hopper are the first to multiply numbers of 8 bits.
constexpr int kEightBitCapability = 89;

// The content of an algorithm, in cublasLtMatmulAlgo_t::data.
enum Word { kIsMagic, kNumber, kProblem, kAlignmentAB, kAlignmentCD, kWorkspace };

struct Problem {
  const cublasLtMatmulDescOpaque* desc;
  const Layout* a;
  const Layout* b;
  const Layout* c;
  const Layout* d;
};

// The reason goes to stderr, since a status says too little to find the mistake by.
cublasStatus_t Refuse(cublasStatus_t status, const std::string& why) {
  std::fprintf(stderr, "cublasLt: %s: %s\n", cublasLtGetStatusName(status), why.c_str());
  return status;
}

uint64_t Alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  // The lowest set bit of an address is its alignment.
  return address == 0 ? 256 : address & ~(address - 1);
}

bool IsEightBits(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

size_t BytesOf(cudaDataType_t type) {
  if (IsEightBits(type)) return 1;
  return type == CUDA_R_32F ? 4 : 2;
}

bool IsType(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF || IsEightBits(type);
}

// The hash stands for the problem in an algorithm, which is refused for any other one.
uint64_t Hash(const Problem& p) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3;
  };
  add(p.desc->transpose_a);
  add(p.desc->transpose_b);
  add(p.desc->epilogue);
  add(p.desc->tf32);
  add(p.desc->fast_accumulation);
  for (const Layout* layout : {p.a, p.b, p.c, p.d}) {
    add(layout->type);
    add(layout->rows);
    add(layout->columns);
    add(layout->leading);
  }
  return hash;
}

bool HasBias(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_BGRADB;
}
bool HasAuxiliary(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// These are rules of the library's documentation, which a GPU enforces only for some shapes.
cublasStatus_t CheckSides(const Problem& p) {
  const auto& desc = *p.desc;
  if (HasBias(desc.epilogue)) {
    if (desc.bias == nullptr) return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the bias is null");
    if (desc.bias_type != -1 && desc.bias_type != p.d->type) {
      return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the bias does not have the type of D");
    }
    if (Alignment(desc.bias) < kSideAlignment) {
      return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the bias is not aligned");
    }
  } else if (desc.bias != nullptr) {
    // A bias that nothing reads is a mistake of the caller.
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "there is a bias, but the epilogue has none");
  }
  if (!HasAuxiliary(desc.epilogue)) {
    if (desc.auxiliary == nullptr) return CUBLAS_STATUS_SUCCESS;
    return Refuse(CUBLAS_STATUS_INVALID_VALUE,
                  "an auxiliary matrix that the epilogue does not have");
  }
  if (desc.auxiliary == nullptr || Alignment(desc.auxiliary) < kSideAlignment) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the auxiliary matrix is null, or not aligned");
  }
  if (desc.auxiliary_leading % kAuxiliaryLeading != 0 || desc.auxiliary_leading < p.d->rows) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the leading dimension of the auxiliary matrix");
  }
  if (desc.auxiliary_type != -1 && desc.auxiliary_type != p.d->type) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the auxiliary matrix does not have the type of D");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Compute capability of the current device: 10 * major + minor.
// The capability is a setting of the emulation, so that tests can have an older device.
int Capability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return 10 * major + minor;
}

cublasStatus_t CheckEightBits(const Problem& p) {
  const auto& desc = *p.desc;
  const auto refuse = [](const char* why) { return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, why); };
  if (Capability() < kEightBitCapability) return refuse("8 bits on an older device");
  // cuBLASLt has no product of two factors of E5M2.
  if (p.a->type == CUDA_R_8F_E5M2 && p.b->type == CUDA_R_8F_E5M2) {
    return refuse("both factors are E5M2");
  }
  if (desc.transpose_a != CUBLAS_OP_T || desc.transpose_b != CUBLAS_OP_N) {
    return refuse("8 bits, but A is not transposed or B is");
  }
  if (desc.a_scale == nullptr || desc.b_scale == nullptr) return refuse("8 bits without scales");
  if (desc.tf32) return refuse("TF32 of 8 bits");
  if (desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && desc.epilogue != CUBLASLT_EPILOGUE_BIAS) {
    return refuse("8 bits with this epilogue");
  }
  if (IsEightBits(p.d->type)) return refuse("a result of 8 bits");
  if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS && p.d->type == CUDA_R_32F) {
    return refuse("8 bits with a bias of 32");
  }
  // cuBLASLt demands that 16 divides all sizes of such factors.
  for (const Layout* layout : {p.a, p.b, p.d}) {
    if ((layout->rows | layout->columns | layout->leading) % kEightBitUnit != 0) {
      return refuse("8 bits, but sizes that 16 does not divide");
    }
  }
  return CheckSides(p);
}

cublasStatus_t CheckProblem(const Problem& p) {
  if (p.desc == nullptr || p.a == nullptr || p.b == nullptr || p.c == nullptr || p.d == nullptr) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a descriptor is null");
  }
  const bool transpose_a = p.desc->transpose_a == CUBLAS_OP_T;
  const bool transpose_b = p.desc->transpose_b == CUBLAS_OP_T;
  const int64_t m = transpose_a ? p.a->columns : p.a->rows;
  const int64_t k = transpose_a ? p.a->rows : p.a->columns;
  const int64_t k_of_b = transpose_b ? p.b->columns : p.b->rows;
  const int64_t n = transpose_b ? p.b->rows : p.b->columns;
  if (k != k_of_b || p.d->rows != m || p.d->columns != n || p.c->rows != m || p.c->columns != n) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the sizes of the matrices do not fit");
  }
  // Tercio adds to the result itself, so nothing else needs to be emulated.
  if (p.c->type != p.d->type || p.c->leading != p.d->leading) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "C does not have the layout of D");
  }
  // These products have rules of their own, and only they have scales.
  if (IsEightBits(p.a->type) && IsEightBits(p.b->type)) return CheckEightBits(p);
  if (p.desc->a_scale != nullptr || p.desc->b_scale != nullptr) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "scales of more than 8 bits");
  }
  if (p.desc->fast_accumulation != 0) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "fast accumulation of more than 8 bits");
  }
  // A result may have the format of the factors, or fp32; Tercio needs no other mixture.
  if (p.a->type != p.b->type || (p.d->type != p.a->type && p.d->type != CUDA_R_32F)) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "these types are not multiplied");
  }
  return CheckSides(p);
}

// An algorithm from another problem would run on a GPU, with any result.
cublasStatus_t CheckAlgorithm(const Problem& p, const cublasLtMatmulAlgo_t& algorithm) {
  const uint64_t(&words)[8] = algorithm.data;
  if (words[kIsMagic] == kMagic && words[kNumber] <= 1 && words[kProblem] == Hash(p)) {
    return CUBLAS_STATUS_SUCCESS;
  }
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm is for another problem");
}

// All numbers of a format of 8 bits, which products read again and again.
using EightBitNumbers = std::array<float, 256>;
EightBitNumbers NumbersOf(__nv_fp8_interpretation_t format) {
  EightBitNumbers numbers;
  for (int bits = 0; bits < 256; ++bits) {
    numbers[static_cast<size_t>(bits)] =
        tercio::emulation::FloatOf(static_cast<__nv_fp8_storage_t>(bits), format);
  }
  return numbers;
}

double Read(const void* from, cudaDataType_t type, int64_t index) {
  if (IsEightBits(type)) {
    static const EightBitNumbers e4m3 = NumbersOf(__NV_E4M3);
    static const EightBitNumbers e5m2 = NumbersOf(__NV_E5M2);
    return (type == CUDA_R_8F_E4M3 ? e4m3 : e5m2)[static_cast<const uint8_t*>(from)[index]];
  }
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[index];
  if (type == CUDA_R_16BF) return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[index]);
  return __half2float(static_cast<const __half*>(from)[index]);
}

void Write(void* to, cudaDataType_t type, int64_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(to)[index] = value;
  } else if (type == CUDA_R_16BF) {
    static_cast<__nv_bfloat16*>(to)[index] = __float2bfloat16_rn(value);
  } else {
    static_cast<__half*>(to)[index] = __float2half_rn(value);
  }
}

// A product as it was when it was called: descriptors may change afterwards.
struct Product {
  cublasLtMatmulDescOpaque desc;
  Layout a, b, d;
  const void* a_data;
  const void* b_data;
  const void* c_data;
  void* d_data;
  float alpha, beta;
  int64_t parts;  // number of parts that the depth is summed in, and these are added in fp32
};

// sqrt(2/pi) (x + 0.044715 x^3): the tanh form, which is the library's.
double GeluArgument(double x) { return 0.7978845608028654 * (x + 0.044715 * x * x * x); }
double Gelu(double x) { return 0.5 * x * (1 + std::tanh(GeluArgument(x))); }
double GeluSlope(double x) {
  const double t = std::tanh(GeluArgument(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// A factor as the tensor cores see it: TF32 has 10 fraction bits.
double Factor(const cublasLtMatmulDescOpaque& desc, const void* from, cudaDataType_t type,
              int64_t index) {
  const double value = Read(from, type, index);
  if (!desc.tf32 || type != CUDA_R_32F) return value;
  int exponent = 0;
  // frexp puts 0 before the point, so 11 bits are the leading one and ten more.
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

// Factors line by line, `depth` values each: decoded once, since every value takes part in as many
// products as the other factor has lines.
std::vector<double> FactorsOf(const cublasLtMatmulDescOpaque& desc, const void* from,
                              cudaDataType_t type, int64_t lines, int64_t line_stride,
                              int64_t depth, int64_t depth_stride) {
  std::vector<double> factors;
  factors.reserve(static_cast<size_t>(lines * depth));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t k = 0; k < depth; ++k) {
      factors.push_back(Factor(desc, from, type, line * line_stride + k * depth_stride));
    }
  }
  return factors;
}

// The value written to D, from the sum; the auxiliary matrix is written or read.
float Finish(const Product& p, int64_t i, int64_t j, float sum) {
  const cublasLtMatmulDescOpaque& desc = p.desc;
  // The gradient of the bias is an output, and not added.
  if (HasBias(desc.epilogue) && desc.epilogue != CUBLASLT_EPILOGUE_BGRADB) {
    sum += static_cast<float>(Read(desc.bias, p.d.type, i));
  }
  if (!HasAuxiliary(desc.epilogue)) return sum;
  const int64_t at = j * desc.auxiliary_leading + i;
  if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    return static_cast<float>(sum * GeluSlope(Read(desc.auxiliary, p.d.type, at)));
  }
  // The forward pass keeps the input of GELU, which the gradient reads.
  Write(const_cast<void*>(desc.auxiliary), p.d.type, at, sum);
  return static_cast<float>(Gelu(sum));
}

// Sums of B over the depth, one for each column of D.
void WriteBiasGradient(const Product& p, int64_t depth, int64_t b_column, int64_t b_depth) {
  for (int64_t j = 0; j < p.d.columns; ++j) {
    // The sum is in double, so that its own rounding does not hide the kernel's.
    double sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += Read(p.b_data, p.b.type, j * b_column + k * b_depth);
    Write(const_cast<void*>(p.desc.bias), p.d.type, j, static_cast<float>(sum));
  }
}

// The value with as many significant bits as fast accumulation keeps.
double KeptBits(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, kFastBits)), exponent - kFastBits);
}

// Lines of A side by side, as many as are summed at once: an addition waits for the one before it,
// and so leaves the processor time for those of other sums.
constexpr int64_t kLines = 8;
std::vector<double> SideBySide(const std::vector<double>& lines, int64_t count, int64_t depth) {
  const int64_t blocks = (count + kLines - 1) / kLines;
  std::vector<double> result(static_cast<size_t>(blocks * kLines * depth));
  for (int64_t line = 0; line < count; ++line) {
    double* to = result.data() + line / kLines * kLines * depth + line % kLines;
    for (int64_t k = 0; k < depth; ++k) {
      to[k * kLines] = lines[static_cast<size_t>(line * depth + k)];
    }
  }
  return result;
}

// The sums of lines of A, which lie side by side, with one of B over [begin, end) of the depth.
using Sums = std::array<double, kLines>;
Sums SumsOf(const double* a, const double* b, int64_t begin, int64_t end, bool fast) {
  Sums sums = {};
  for (int64_t k = begin; k < end; ++k) {
    for (size_t line = 0; line < kLines; ++line) sums[line] += a[k * kLines + line] * b[k];
    if (!fast || (k + 1) % kFastDepth != 0) continue;
    for (double& sum : sums) sum = KeptBits(sum);
  }
  return sums;
}

// Scales the sum, adds to it and writes it.
void WriteResult(const Product& p, int64_t i, int64_t j, float sum) {
  sum *= p.alpha;
  // Scales apply to the sum, before anything is added to it.
  if (p.desc.a_scale != nullptr) sum *= *p.desc.a_scale * *p.desc.b_scale;
  const int64_t at = j * p.d.leading + i;
  // If beta is 0, C may hold anything.
  if (p.beta != 0) sum += p.beta * static_cast<float>(Read(p.c_data, p.d.type, at));
  Write(p.d_data, p.d.type, at, Finish(p, i, j, sum));
}

void Multiply(const Product& p) {
  const bool transpose_a = p.desc.transpose_a == CUBLAS_OP_T;
  const bool transpose_b = p.desc.transpose_b == CUBLAS_OP_T;
  const int64_t depth = transpose_a ? p.a.rows : p.a.columns;
  // These strides make one loop serve all four combinations of transposes.
  const int64_t a_row = transpose_a ? p.a.leading : 1;
  const int64_t a_depth = transpose_a ? 1 : p.a.leading;
  const int64_t b_column = transpose_b ? 1 : p.b.leading;
  const int64_t b_depth = transpose_b ? p.b.leading : 1;
  const std::vector<double> a = SideBySide(
      FactorsOf(p.desc, p.a_data, p.a.type, p.d.rows, a_row, depth, a_depth), p.d.rows, depth);
  const std::vector<double> b =
      FactorsOf(p.desc, p.b_data, p.b.type, p.d.columns, b_column, depth, b_depth);
  for (int64_t j = 0; j < p.d.columns; ++j) {
    for (int64_t i = 0; i < p.d.rows; i += kLines) {
      std::array<float, kLines> sums = {};
      for (int64_t part = 0; part < p.parts; ++part) {
        const Sums partial =
            SumsOf(a.data() + i * depth, b.data() + j * depth, depth * part / p.parts,
                   depth * (part + 1) / p.parts, p.desc.fast_accumulation != 0);
        // Parts are rounded to fp32 one by one, as when they pass through a workspace.
        for (size_t line = 0; line < kLines; ++line)
          sums[line] += static_cast<float>(partial[line]);
      }
      const int64_t lines = std::min(kLines, p.d.rows - i);
      for (int64_t line = 0; line < lines; ++line) {
        WriteResult(p, i + line, j, sums[static_cast<size_t>(line)]);
      }
    }
  }
  if (p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) WriteBiasGradient(p, depth, b_column, b_depth);
}

template <typename T>
cublasStatus_t Set(T& to, const void* value, size_t bytes) {
  // A wrong size of an attribute would read past the caller's variable.
  if (value == nullptr || bytes != sizeof(T)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the attribute has another size");
  }
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Delete(T* object) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

namespace tercio::emulation {

void SetProductSettings(const ProductSettings& to) { settings = to; }

}  // namespace tercio::emulation

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "an allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was passed as an argument";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality is not supported";
  }
  return "";
}

size_t cublasLtGetVersion() { return CUDART_VERSION * 10; }  // as CUDA's: 130000

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return Delete(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  // Any other kind of sum would need arithmetic that nobody tests here.
  if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
      scale != CUDA_R_32F) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "sums in other formats than fp32");
  }
  *desc = new cublasLtMatmulDescOpaque;
  (*desc)->tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return Delete(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Set(desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Set(desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Set(desc->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Set(desc->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Set(desc->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Set(desc->auxiliary, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Set(desc->auxiliary_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return Set(desc->auxiliary_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return Set(desc->fast_accumulation, value, bytes);
  }
  return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an unknown attribute of a product");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  if (!IsType(type)) return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an unknown type");
  // The real library refuses empty matrices, so callers have to avoid them.
  if (rows == 0 || columns == 0) return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an empty matrix");
  if (leading < static_cast<int64_t>(rows)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "columns that overlap");
  }
  *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return Delete(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Delete(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(preference->alignment[3], value, bytes);
  }
  return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an unknown preference");
}

// Number 1 sums the depth in two parts, with a workspace; number 0 sums it at once.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* returned) {
  // The checks come before anything is read through these pointers.
  if (handle == nullptr || preference == nullptr || results == nullptr || returned == nullptr ||
      requested < 1) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument");
  }
  const Problem problem{desc, a, b, c, d};
  const cublasStatus_t status = CheckProblem(problem);
  // An impossible problem has no algorithms, and its reason was reported.
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (settings.lacking_epilogues.contains(desc->epilogue)) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the settings lack this epilogue");
  }
  *returned = 0;
  const uint32_t(&alignment)[4] = preference->alignment;
  const Layout* layouts[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    // An alignment below an element's size can never be met.
    const size_t least = IsEightBits(a->type) ? kEightBitUnit : BytesOf(layouts[i]->type);
    if (alignment[i] < least) {
      return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "elements that are not aligned");
    }
  }
  // Both conditions decide whether a second algorithm is offered, for which callers have to
  // prepare.
  const int64_t depth = desc->transpose_a == CUBLAS_OP_T ? a->rows : a->columns;
  const bool splits = depth >= kSplitDepth &&
                      preference->workspace_bytes >= settings.split_workspace &&
                      (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  for (uint64_t number = splits ? 1 : 0; *returned < requested; --number) {
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    const uint64_t workspace = number == 1 ? settings.split_workspace : 0;
    // The declared alignments travel in the algorithm, so that a call can be held to them.
    result.algo = {{kMagic, number, Hash(problem), uint64_t{alignment[0]} << 32 | alignment[1],
                    uint64_t{alignment[2]} << 32 | alignment[3], workspace, 0, 0}};
    result.workspaceSize = workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
    // The numbers have no sign, so the loop ends here and not by its condition.
    if (number == 0) break;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr || algorithm == nullptr || result == nullptr) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument");
  }
  const Problem problem{desc, a, b, c, d};
  const cublasStatus_t status = CheckProblem(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cublasStatus_t fits = CheckAlgorithm(problem, *algorithm);
  if (fits != CUBLAS_STATUS_SUCCESS) return fits;
  if (!settings.knows_algorithms) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the settings know no algorithm");
  }
  *result = {};
  result->algo = *algorithm;
  result->workspaceSize = algorithm->data[kWorkspace];
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  // c may be null where beta is 0.
  if (handle == nullptr || alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr ||
      d == nullptr || algorithm == nullptr) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a null argument");
  }
  const Problem problem{desc, a_layout, b_layout, c_layout, d_layout};
  const cublasStatus_t status = CheckProblem(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const cublasStatus_t fits = CheckAlgorithm(problem, *algorithm);
  if (fits != CUBLAS_STATUS_SUCCESS) return fits;
  const uint64_t(&words)[8] = algorithm->data;
  if (settings.refused_epilogues.contains(desc->epilogue) ||
      (settings.refuses_split && words[kNumber] == 1)) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the settings refuse this product");
  }
  float beta_value = 0;
  // beta may lie at any alignment.
  std::memcpy(&beta_value, beta, sizeof(float));
  if (Alignment(a) < words[kAlignmentAB] >> 32 || Alignment(b) < (words[kAlignmentAB] & ~0u) ||
      Alignment(d) < (words[kAlignmentCD] & ~0u) ||
      (beta_value != 0 && Alignment(c) < words[kAlignmentCD] >> 32)) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a matrix is less aligned than declared");
  }
  // A GPU would write past a workspace that is too small.
  if (words[kWorkspace] > workspace_bytes ||
      (words[kWorkspace] > 0 && Alignment(workspace) < 256)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace is too small, or not aligned");
  }
  // The library may support this, but Tercio never needs it, so it is taken for a mistake.
  if (beta_value != 0 && c != d) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "C is not D");
  }
  float alpha_value = 0;
  std::memcpy(&alpha_value, alpha, sizeof(float));
  // The descriptors are copied, since the caller may change them before the work runs.
  const Product product{*desc,
                        *a_layout,
                        *b_layout,
                        *d_layout,
                        a,
                        b,
                        c,
                        d,
                        alpha_value,
                        beta_value,
                        words[kNumber] == 1 ? 2 : 1};
  const int64_t depth = desc->transpose_a == CUBLAS_OP_T ? a_layout->rows : a_layout->columns;
  // The work runs later, in an order that the emulation chooses.
  const auto run = [product] {
    Multiply(product);
    return true;
  };
  const cudaError_t error = tercio::emulation::EnqueueWork(
      stream, "cublasLtMatmul", run,
      Microseconds(words[kNumber], depth * d_layout->rows * d_layout->columns, desc->epilogue));
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
