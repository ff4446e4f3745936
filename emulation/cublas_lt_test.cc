// The emulated cuBLASLt multiplies, lazily as a kernel, and refuses what does not fit: each of its
// checks fires.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <utility>
#include <vector>

#include "emulation/control.h"
#include "gtest/gtest.h"

namespace tercio::emulation {
namespace {

// d (3 x 2) = a (3 x 4) * b (4 x 2), by columns; what a test changes before it runs it.
class CublasLtTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Configure({});
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    Layout(a_, CUDA_R_32F, 3, 4);
    Layout(b_, CUDA_R_32F, 4, 2);
    Layout(d_, CUDA_R_32F, 3, 2);
    for (float** buffer : {&a_data_, &b_data_, &d_data_}) {
      ASSERT_EQ(cudaMalloc(buffer, 64 * sizeof(float)), cudaSuccess);
    }
    for (int i = 0; i < 12; ++i) a_data_[i] = static_cast<float>(i + 1);
    for (int i = 0; i < 8; ++i) b_data_[i] = static_cast<float>(1 - i);
  }
  void TearDown() override {
    for (float* buffer : {a_data_, b_data_, d_data_}) EXPECT_EQ(cudaFree(buffer), cudaSuccess);
    for (cublasLtMatrixLayout_t layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(desc_);
    EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  static void Layout(cublasLtMatrixLayout_t& layout, cudaDataType type, uint64_t rows,
                     uint64_t columns) {
    if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, static_cast<int64_t>(rows)),
              CUBLAS_STATUS_SUCCESS);
  }
  template <typename T>
  cublasStatus_t Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value));
  }
  template <typename T>
  cublasStatus_t Prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value));
  }

  cublasStatus_t Find() {
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, desc_, a_, b_, d_, d_,
                                                                 preference_, 1, &result_, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    return status;
  }
  cublasStatus_t Multiply(const float* a) {
    return cublasLtMatmul(handle_, desc_, &one_, a, a_, b_data_, b_, &beta_, d_data_, d_, d_data_,
                          d_, &result_.algo, nullptr, 0, stream_);
  }

  // REQUIRES: an algorithm for factors of 8 bits.
  void ExpectFastAccumulationIsAnotherProblem() {
    ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int32_t{0}), CUBLAS_STATUS_INVALID_VALUE);
    ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0}), CUBLAS_STATUS_SUCCESS);
  }

  const float one_ = 1;
  float beta_ = 0;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulHeuristicResult_t result_ = {};
  float* a_data_ = nullptr;
  float* b_data_ = nullptr;
  float* d_data_ = nullptr;
};

TEST_F(CublasLtTest, MultipliesWhenTheStreamRuns) {
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(d_data_[0], d_data_[0]);  // still NaN
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const std::vector<float> expected = {-26, -28, -30, -114, -132, -150};
  EXPECT_EQ(std::vector<float>(d_data_, d_data_ + 6), expected);
  beta_ = 1;
  ASSERT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(d_data_[5], -300);
}

TEST_F(CublasLtTest, RefusesSizesThatDoNotFit) {
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);
  Layout(a_, CUDA_R_32F, 4, 3);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  Layout(d_, CUDA_R_32F, 2, 3);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtTest, RefusesTypes) {
  Layout(a_, CUDA_R_16BF, 3, 4);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
  Layout(b_, CUDA_R_16BF, 4, 2);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  Layout(d_, CUDA_R_16F, 3, 2);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLtTest, RefusesBiases) {
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // none was given
  const void* bias = b_data_ + 1;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // not aligned
  bias = b_data_;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{CUDA_R_16BF}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // and nobody asked for it
}

TEST_F(CublasLtTest, RefusesAuxiliaryMatrices) {
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // none was given
  const void* auxiliary = b_data_ + 1;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{8}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // not aligned
  auxiliary = b_data_;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{3}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // no multiple of 8
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{8}), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // and nobody asked for it
}

TEST_F(CublasLtTest, BiasGradientsAreSumsOfB) {
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB), CUBLAS_STATUS_SUCCESS);
  const void* sums = d_data_ + 8;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(d_data_[0], -26);
  EXPECT_EQ(d_data_[8], 1 + 0 - 1 - 2);
  EXPECT_EQ(d_data_[9], -3 - 4 - 5 - 6);
}

// 16 x 32 = (16 x 16, transposed) * (16 x 32), of 8 bits.
TEST_F(CublasLtTest, FactorsOfEightBits) {
  Settings settings;
  settings.major = 9;
  TearDown();
  Configure(settings);
  for (cublasLtMatrixLayout_t* layout : {&a_, &b_, &d_}) *layout = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
  for (float** buffer : {&a_data_, &b_data_, &d_data_}) {
    ASSERT_EQ(cudaMalloc(buffer, 1024 * sizeof(float)), cudaSuccess);
  }
  auto* a = reinterpret_cast<unsigned char*>(a_data_);
  auto* b = reinterpret_cast<unsigned char*>(b_data_);
  for (int i = 0; i < 16 * 16; ++i) a[i] = __nv_cvt_float_to_fp8(2, __NV_SATFINITE, __NV_E4M3);
  for (int i = 0; i < 16 * 32; ++i) b[i] = __nv_cvt_float_to_fp8(3, __NV_SATFINITE, __NV_E5M2);
  float* scales = b_data_ + 512;
  scales[0] = 0.5f;
  scales[1] = 4.0f;
  Layout(a_, CUDA_R_8F_E4M3, 16, 16);
  Layout(b_, CUDA_R_8F_E5M2, 16, 32);
  Layout(d_, CUDA_R_32F, 16, 32);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // A is not transposed
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // no scales
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales + 1), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
  scales[0] = 0.25f;  // read when the stream runs
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(d_data_[0], 16 * 6 * 0.25f * 4);
  EXPECT_EQ(d_data_[16 * 32 - 1], 16 * 6 * 0.25f * 4);
  ExpectFastAccumulationIsAnotherProblem();
  for (const auto& [attribute, value] :
       {std::pair(CUBLASLT_MATMUL_DESC_EPILOGUE, int32_t{CUBLASLT_EPILOGUE_GELU_AUX}),
        std::pair(CUBLASLT_MATMUL_DESC_EPILOGUE, int32_t{CUBLASLT_EPILOGUE_BGRADB}),
        std::pair(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{CUBLAS_OP_T})}) {
    ASSERT_EQ(Set(attribute, value), CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(Find(), CUBLAS_STATUS_SUCCESS) << attribute << " " << value;
    const bool epilogue = attribute == CUBLASLT_MATMUL_DESC_EPILOGUE;
    const int32_t plain = epilogue ? int32_t{CUBLASLT_EPILOGUE_DEFAULT} : int32_t{CUBLAS_OP_N};
    ASSERT_EQ(Set(attribute, plain), CUBLAS_STATUS_SUCCESS);
  }
  EXPECT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{8}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16}),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  Layout(d_, CUDA_R_8F_E4M3, 16, 32);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
  Layout(d_, CUDA_R_16BF, 16, 32);
  EXPECT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  Layout(a_, CUDA_R_8F_E5M2, 16, 16);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // both E5M2
  Layout(a_, CUDA_R_8F_E4M3, 24, 16);
  Layout(b_, CUDA_R_8F_E4M3, 24, 32);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // 16 does not divide 24
  Layout(a_, CUDA_R_16BF, 16, 16);
  Layout(b_, CUDA_R_16BF, 16, 32);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);  // scales of 16 bits
}

TEST_F(CublasLtTest, OnlyFactorsOfEightBitsHaveFastAccumulation) {
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLtTest, OldDevicesHaveNoFactorsOfEightBits) {
  const float* scale = a_data_;
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale), CUBLAS_STATUS_SUCCESS);
  Layout(a_, CUDA_R_8F_E4M3, 16, 16);
  Layout(b_, CUDA_R_8F_E4M3, 16, 16);
  Layout(d_, CUDA_R_16BF, 16, 16);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(CublasLtTest, RefusesDescriptors) {
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 3, 4, 2), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 0, 4, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Set(CUBLASLT_MATMUL_DESC_TRANSA, int64_t{1}), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, int32_t{1}),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(layout, nullptr);
}

TEST_F(CublasLtTest, AnAlgorithmServesItsProblemAndAlignment) {
  EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_NOT_SUPPORTED);  // none was found yet
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a_data_ + 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{2}), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Find(), CUBLAS_STATUS_NOT_SUPPORTED);  // less than an element
  EXPECT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{4}), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(a_data_ + 1), CUBLAS_STATUS_SUCCESS);
  Layout(b_, CUDA_R_32F, 4, 5);
  Layout(d_, CUDA_R_32F, 3, 5);
  EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(CublasLtTest, AnAlgorithmWantsItsWorkspaceAndItsWayOfAdding) {
  Layout(a_, CUDA_R_32F, 1, 60);
  Layout(b_, CUDA_R_32F, 60, 1);
  Layout(d_, CUDA_R_32F, 1, 1);
  ASSERT_EQ(Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_GT(result_.workspaceSize, 0u);
  EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_INVALID_VALUE);  // gives none
  ASSERT_EQ(Prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE}),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(Find(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(result_.workspaceSize, 0u);
  EXPECT_EQ(Multiply(a_data_), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

}  // namespace
}  // namespace tercio::emulation
