// The emulated cuDNN executes a graph as its descriptors say, lazily as a kernel, and refuses what
// does not fit: each of its checks fires.
#include <cuda_bf16.h>
#include <cudnn.h>

#include <cmath>
#include <utility>
#include <vector>

#include "emulation/control.h"
#include "gtest/gtest.h"

namespace tercio::emulation {
namespace {

using Four = std::vector<int64_t>;

// sum over channels of (a * b * factor): a (1, 2, 3, 4), b (1, 1, 4, 5) for both heads of a. What a
// test changes before it plans it.
class CudnnTest : public ::testing::Test {
 protected:
  static constexpr int64_t kWorkspace = 4096;
  enum Id : int64_t { kA, kB, kFactor, kProduct, kScaled, kSum, kRows };

  virtual Settings Devices() const { return {}; }
  void SetUp() override {
    Configure(Devices());
    ConfigureCudnn({});
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetStream(handle_, stream_), CUDNN_STATUS_SUCCESS);
    for (float** buffer : {&a_data_, &b_data_, &sum_data_, &workspace_}) {
      ASSERT_EQ(cudaMalloc(buffer, kWorkspace), cudaSuccess);
    }
    for (int i = 0; i < 24; ++i) a_data_[i] = static_cast<float>(i);
    for (int i = 0; i < 20; ++i) b_data_[i] = static_cast<float>(i % 7);
  }
  void TearDown() override {
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (float* buffer : {a_data_, b_data_, sum_data_, workspace_}) {
      EXPECT_EQ(cudaFree(buffer), cudaSuccess);
    }
    for (cudnnBackendDescriptor_t one : made_) cudnnBackendDestroyDescriptor(one);
    EXPECT_EQ(GetCudnnCounts().descriptors, 0);
    EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &made), CUDNN_STATUS_SUCCESS);
    made_.push_back(made);
    return made;
  }
  template <typename T>
  static cudnnStatus_t Set(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, const T& value) {
    return cudnnBackendSetAttribute(to, name, type, 1, &value);
  }
  static cudnnStatus_t Set(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                           const Four& values) {
    return cudnnBackendSetAttribute(to, name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()),
                                    values.data());
  }
  static cudnnStatus_t Set(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    return cudnnBackendSetAttribute(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }

  struct Tensor {
    int64_t id;
    Four dims, strides;
    bool is_virtual = false;
    bool is_scalar = false;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t alignment = 16;
  };
  cudnnStatus_t MakeTensor(const Tensor& t, cudnnBackendDescriptor_t* made) {
    *made = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    Set(*made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, t.id);
    Set(*made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, t.type);
    Set(*made, CUDNN_ATTR_TENSOR_DIMENSIONS, t.dims);
    Set(*made, CUDNN_ATTR_TENSOR_STRIDES, t.strides);
    Set(*made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, t.alignment);
    Set(*made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, t.is_virtual);
    Set(*made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, t.is_scalar);
    return cudnnBackendFinalize(*made);
  }
  cudnnBackendDescriptor_t Finalized(const Tensor& t) {
    cudnnBackendDescriptor_t made = nullptr;
    EXPECT_EQ(MakeTensor(t, &made), CUDNN_STATUS_SUCCESS);
    return made;
  }
  cudnnBackendDescriptor_t Function(cudnnPointwiseMode_t mode) {
    cudnnBackendDescriptor_t made = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    Set(made, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    Set(made, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    EXPECT_EQ(cudnnBackendFinalize(made), CUDNN_STATUS_SUCCESS);
    return made;
  }

  cudnnStatus_t MakeGraph() {
    cudnnBackendDescriptor_t matmul = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    Set(matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    cudnnBackendFinalize(matmul);
    cudnnBackendDescriptor_t product = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnBackendDescriptor_t product_tensor = Finalized(product_);
    Set(product, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
    Set(product, CUDNN_ATTR_OPERATION_MATMUL_ADESC, Finalized(a_));
    Set(product, CUDNN_ATTR_OPERATION_MATMUL_BDESC, Finalized(b_));
    Set(product, CUDNN_ATTR_OPERATION_MATMUL_CDESC, product_tensor);
    if (has_rows_) {
      Set(product, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, Finalized(rows_));
    }
    cudnnBackendFinalize(product);

    cudnnBackendDescriptor_t scale = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnnBackendDescriptor_t scaled_tensor = Finalized(scaled_);
    Set(scale, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, Function(CUDNN_POINTWISE_MUL));
    Set(scale, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, product_tensor);
    if (has_factor_) Set(scale, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, Finalized(factor_));
    Set(scale, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, scaled_tensor);
    cudnnBackendFinalize(scale);

    cudnnBackendDescriptor_t add = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    Set(add, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
        CUDNN_REDUCE_TENSOR_ADD);
    Set(add, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    cudnnBackendFinalize(add);
    cudnnBackendDescriptor_t reduce = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    Set(reduce, CUDNN_ATTR_OPERATION_REDUCTION_DESC, add);
    Set(reduce, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, scaled_tensor);
    Set(reduce, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, Finalized(sum_));
    cudnnBackendFinalize(reduce);

    std::vector<cudnnBackendDescriptor_t> operations = {product, scale, reduce};
    if (reversed_) std::swap(operations[0], operations[1]);
    graph_ = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnnBackendSetAttribute(graph_, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                             3, operations.data());
    return cudnnBackendFinalize(graph_);
  }

  // Makes the configuration of an engine that is asked for.
  cudnnStatus_t Configured(int64_t index, int64_t stages) {
    cudnnBackendDescriptor_t engine = Make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    Set(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph_);
    Set(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
    const cudnnStatus_t status = cudnnBackendFinalize(engine);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    std::vector<cudnnBackendDescriptor_t> choices;
    for (const auto& [knob, value] : {std::pair(CUDNN_KNOB_TYPE_KERNEL_CFG, int64_t{31}),
                                      std::pair(CUDNN_KNOB_TYPE_STAGES, stages)}) {
      choices.push_back(Make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
      Set(choices.back(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, knob);
      Set(choices.back(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
      EXPECT_EQ(cudnnBackendFinalize(choices.back()), CUDNN_STATUS_SUCCESS);
    }
    config_ = Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    Set(config_, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    cudnnBackendSetAttribute(config_, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, choices.data());
    return cudnnBackendFinalize(config_);
  }

  // Makes a plan of the engine with this number.
  cudnnStatus_t MakePlan(int engine) {
    cudnnBackendDescriptor_t ranking = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Set(ranking, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
    Set(ranking, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    EXPECT_EQ(cudnnBackendFinalize(ranking), CUDNN_STATUS_SUCCESS);
    int64_t count = 0;
    cudnnBackendGetAttribute(ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                             0, &count, nullptr);
    EXPECT_EQ(count, 4);
    std::vector<cudnnBackendDescriptor_t> configs;
    for (int64_t i = 0; i < count; ++i) configs.push_back(Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    EXPECT_EQ(
        cudnnBackendGetAttribute(ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, configs.data()),
        CUDNN_STATUS_SUCCESS);
    config_ = configs[static_cast<size_t>(engine)];
    plan_ = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Set(plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    Set(plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
    return cudnnBackendFinalize(plan_);
  }

  cudnnStatus_t Execute() {
    cudnnBackendDescriptor_t pack = Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void* workspace = workspace_;
    const auto count = static_cast<int64_t>(ids_.size());
    cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count,
                             ids_.data());
    cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                             static_cast<int64_t>(pointers_.size()), pointers_.data());
    Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
    const cudnnStatus_t status = cudnnBackendFinalize(pack);
    return status == CUDNN_STATUS_SUCCESS ? cudnnBackendExecute(handle_, plan_, pack) : status;
  }
  void PlanAndBind() {
    ASSERT_EQ(MakeGraph(), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(MakePlan(3), CUDNN_STATUS_SUCCESS);
    ids_ = {kA, kB, kFactor, kSum};
    pointers_ = {a_data_, b_data_, &factor_value_, sum_data_};
  }

  Tensor a_{kA, {1, 2, 3, 4}, {24, 4, 8, 1}};  // rows of both heads beside each other
  Tensor b_{kB, {1, 1, 4, 5}, {20, 20, 1, 4}};
  Tensor factor_{kFactor, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true};
  Tensor product_{kProduct, {1, 2, 3, 5}, {30, 15, 5, 1}, true};
  Tensor scaled_{kScaled, {1, 2, 3, 5}, {30, 15, 5, 1}, true};
  Tensor sum_{kSum, {1, 2, 3, 1}, {6, 3, 1, 1}};
  Tensor rows_{kRows, {1, 1, 1, 1}, {1, 1, 1, 1}, false, false, CUDNN_DATA_INT32, 4};
  bool has_rows_ = false;
  bool has_factor_ = true;
  bool reversed_ = false;
  cudaStream_t stream_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
  cudnnBackendDescriptor_t graph_ = nullptr, config_ = nullptr, plan_ = nullptr;
  std::vector<cudnnBackendDescriptor_t> made_;
  float* a_data_ = nullptr;
  float* b_data_ = nullptr;
  float* sum_data_ = nullptr;
  float* workspace_ = nullptr;
  float factor_value_ = 0.5f;
  std::vector<int64_t> ids_;
  std::vector<void*> pointers_;
};

TEST_F(CudnnTest, ExecutesWhatTheDescriptorsSayWhenTheStreamRuns) {
  PlanAndBind();
  ASSERT_EQ(Execute(), CUDNN_STATUS_SUCCESS);
  factor_value_ = 100;                    // was read at the call
  EXPECT_TRUE(std::isnan(sum_data_[0]));  // not yet
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < 3; ++row) {
      float expected = 0;
      for (int column = 0; column < 5; ++column) {
        for (int k = 0; k < 4; ++k) {
          expected += 0.5f * a_data_[row * 8 + head * 4 + k] * b_data_[column * 4 + k];
        }
      }
      EXPECT_EQ(sum_data_[head * 3 + row], expected);
    }
  }
  EXPECT_TRUE(std::isnan(workspace_[0]));
  EXPECT_EQ(GetCudnnCounts().executions, 1);
}

TEST_F(CudnnTest, RowsOutsideOfASequenceAreUndefined) {
  has_rows_ = true;
  ASSERT_EQ(cudaMemsetAsync(workspace_, 0, kWorkspace, stream_), cudaSuccess);
  int32_t* rows = nullptr;
  ASSERT_EQ(cudaMalloc(&rows, sizeof(*rows)), cudaSuccess);
  *rows = 2;
  PlanAndBind();
  ids_.push_back(kRows);
  pointers_.push_back(rows);
  ASSERT_EQ(Execute(), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  for (int row = 0; row < 3; ++row) EXPECT_EQ(std::isnan(sum_data_[row]), row == 2) << row;
  EXPECT_EQ(cudaFree(rows), cudaSuccess);
  rows_.dims = {1, 2, 1, 1};  // a number for each head
  EXPECT_EQ(MakeGraph(), CUDNN_STATUS_BAD_PARAM);
  rows_.dims = {1, 1, 1, 1};
  rows_.type = CUDNN_DATA_FLOAT;
  EXPECT_EQ(MakeGraph(), CUDNN_STATUS_BAD_PARAM);
}

TEST_F(CudnnTest, RoundsToTheTypeOfATensor) {
  product_.type = CUDNN_DATA_BFLOAT16;
  a_data_[0] = 1;
  b_data_[0] = 257;  // no bf16 number
  for (int k = 1; k < 4; ++k) a_data_[k] = 0;
  for (int column = 1; column < 5; ++column) b_data_[column * 4] = 0;
  PlanAndBind();
  ASSERT_EQ(Execute(), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(sum_data_[0], 128.0f);
}

TEST_F(CudnnTest, RefusesGraphs) {
  const auto refused = [this](auto change, auto undo) {
    change();
    EXPECT_EQ(MakeGraph(), CUDNN_STATUS_BAD_PARAM);
    undo();
  };
  const auto dims = [this](Tensor& tensor, const Four& other) {
    const Four before = tensor.dims;
    tensor.dims = other;
    EXPECT_EQ(MakeGraph(), CUDNN_STATUS_BAD_PARAM);
    tensor.dims = before;
  };
  EXPECT_EQ(MakeGraph(), CUDNN_STATUS_SUCCESS);
  dims(b_, {1, 1, 3, 5});       // another depth
  dims(a_, {1, 3, 3, 4});       // another number of heads
  dims(scaled_, {1, 2, 3, 4});  // not that of the operand
  dims(sum_, {1, 2, 2, 1});     // does not divide it
  refused([&] { scaled_.id = kProduct; }, [&] { scaled_.id = kScaled; });  // two of one number
  refused([&] { reversed_ = true; }, [&] { reversed_ = false; });  // read before it is written
  refused([&] { has_factor_ = false; }, [&] { has_factor_ = true; });
  refused([&] { sum_.strides[1] = 2; }, [&] { sum_.strides[1] = 3; });         // overlaps itself
  refused([&] { sum_.is_virtual = true; }, [&] { sum_.is_virtual = false; });  // nobody reads it
}

TEST_F(CudnnTest, RefusesTensors) {
  cudnnBackendDescriptor_t made = nullptr;
  EXPECT_EQ(MakeTensor({kA, {1, 0, 3, 4}, {24, 4, 8, 1}}, &made), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(MakeTensor({kA, {1, 2, 3, 4}, {24, 4, 8, 0}}, &made), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(MakeTensor({kA, {1, 2, 3}, {24, 4, 8, 1}}, &made), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(MakeTensor({kA, {1, 2, 3, 4}, {24, 4, 8, 1}, false, true}, &made),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(MakeTensor({kA, {1, 1, 1, 1}, {1, 1, 1, 1}, true, true}, &made),
            CUDNN_STATUS_BAD_PARAM);
  Tensor odd = a_;
  odd.alignment = 2;
  EXPECT_EQ(MakeTensor(odd, &made), CUDNN_STATUS_BAD_PARAM);
  odd = a_;
  odd.type = CUDNN_DATA_BOOLEAN;
  EXPECT_EQ(MakeTensor(odd, &made), CUDNN_STATUS_BAD_PARAM);
}

TEST_F(CudnnTest, RefusesAttributes) {
  cudnnBackendDescriptor_t tensor = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_EQ(Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_BOOLEAN, true),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(Set(tensor, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendFinalize(tensor), CUDNN_STATUS_BAD_PARAM);  // all is missing
  cudnnBackendDescriptor_t operation = Make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  EXPECT_EQ(Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor),
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  cudnnBackendDescriptor_t good = Finalized(a_);
  EXPECT_EQ(Set(good, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, int64_t{5}),
            CUDNN_STATUS_BAD_PARAM);  // too late
  EXPECT_EQ(cudnnBackendFinalize(good), CUDNN_STATUS_BAD_PARAM);
  int64_t count = 0;
  EXPECT_EQ(cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 0,
                                     &count, nullptr),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(&count), CUDNN_STATUS_BAD_PARAM);
}

TEST_F(CudnnTest, EnginesAreNotAllWanted) {
  ASSERT_EQ(MakeGraph(), CUDNN_STATUS_SUCCESS);
  for (const int engine : {0, 1, 2, 3}) {
    const cudnnStatus_t status = MakePlan(engine);
    EXPECT_EQ(status, engine == 2 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS);
    cudnnBackendDescriptor_t one = Make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    ASSERT_EQ(cudnnBackendGetAttribute(config_, CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &one),
              CUDNN_STATUS_SUCCESS);
    cudnnBackendNumericalNote_t notes[4] = {};
    ASSERT_EQ(cudnnBackendGetAttribute(one, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                       CUDNN_TYPE_NUMERICAL_NOTE, 4, &count, notes),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(count, engine == 0 ? 2 : 1);
    if (status != CUDNN_STATUS_SUCCESS) continue;
    int64_t bytes = 0;
    ASSERT_EQ(cudnnBackendGetAttribute(plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &count, &bytes),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(bytes, engine == 1 ? int64_t{1} << 50 : 256);
  }
}

// By its number, with the knobs that make its bits repeat.
class CudnnOfCapability10 : public CudnnTest {
 protected:
  Settings Devices() const override { return {.major = 10}; }
};

TEST_F(CudnnOfCapability10, HasAnEngineThatIsAskedFor) {
  ASSERT_EQ(MakeGraph(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(Configured(4, 2), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Configured(5, 3), CUDNN_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(Configured(5, 2), CUDNN_STATUS_SUCCESS);
  plan_ = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  Set(plan_, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  Set(plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
  EXPECT_EQ(cudnnBackendFinalize(plan_), CUDNN_STATUS_SUCCESS);
}

TEST_F(CudnnTest, OtherDevicesHaveNoSuchEngine) {
  ASSERT_EQ(MakeGraph(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(Configured(5, 2), CUDNN_STATUS_NOT_SUPPORTED);
}

TEST_F(CudnnTest, RefusesExecutions) {
  PlanAndBind();
  const auto ids = ids_;
  const auto pointers = pointers_;
  const auto refused = [&](cudnnStatus_t status) {
    EXPECT_EQ(Execute(), status);
    ids_ = ids;
    pointers_ = pointers;
  };
  pointers_[0] = a_data_ + 1;
  refused(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  alignas(16) float host[64] = {};
  pointers_[0] = host;
  refused(CUDNN_STATUS_BAD_PARAM);
  pointers_[0] = nullptr;
  refused(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  pointers_[0] = workspace_;
  refused(CUDNN_STATUS_BAD_PARAM);
  pointers_.pop_back();
  refused(CUDNN_STATUS_BAD_PARAM);
  ids_.pop_back();
  pointers_.pop_back();
  refused(CUDNN_STATUS_BAD_PARAM);
  ids_.back() = kProduct;
  refused(CUDNN_STATUS_BAD_PARAM);
  ids_.back() = ids_.front();
  refused(CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(Execute(), CUDNN_STATUS_SUCCESS);
  // The plan outlives what it was made of.
  cudnnBackendDestroyDescriptor(graph_);
  refused(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
}

TEST_F(CudnnTest, WhatATestMakesOfTheLibrary) {
  ConfigureCudnn({.present = false});
  EXPECT_EQ(OpenCudnn(), nullptr);
  ConfigureCudnn({.version = 90100, .fault = CudnnFault::kNoHandle});
  EXPECT_EQ(FindInCudnn(OpenCudnn(), "cudnnConvolutionForward"), nullptr);
  EXPECT_EQ(FindInCudnn(OpenCudnn(), "cudnnGetVersion"), reinterpret_cast<void*>(&cudnnGetVersion));
  EXPECT_EQ(cudnnGetVersion(), 90100u);
  cudnnHandle_t handle = nullptr;
  EXPECT_EQ(cudnnCreate(&handle), CUDNN_STATUS_NOT_INITIALIZED);
  ConfigureCudnn({.fault = CudnnFault::kCannotExecute});
  PlanAndBind();
  EXPECT_EQ(Execute(), CUDNN_STATUS_EXECUTION_FAILED);
}

}  // namespace
}  // namespace tercio::emulation
