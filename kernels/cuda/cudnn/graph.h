// A graph of cuDNN's operations on tensors of four dimensions, and the plan that executes it. Knows
// nothing of attention; a thin layer over the C interface that owns its descriptors.
//
// A graph is built once: tensors, then operations in the order of computation, then Plan(). The
// first call that fails is kept (`failure`), and the library is not called after it.
//
// Threads: thread-compatible. The library outlives graphs and plans.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cudnn/library.h"

namespace tercio::kernels::cuda {

// A descriptor of the library, destroyed with the object.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnLibrary& library, cudnnBackendDescriptor_t descriptor)
      : library_(&library), descriptor_(descriptor) {}
  CudnnDescriptor(CudnnDescriptor&& other) noexcept { *this = std::move(other); }
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~CudnnDescriptor() {
    if (descriptor_ != nullptr) library_->destroy_descriptor(descriptor_);
  }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  const CudnnLibrary* library_ = nullptr;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

// Makes descriptors. Remembers the first call that did not succeed, and makes none after it.
class CudnnCalls {
 public:
  explicit CudnnCalls(const CudnnLibrary& library) : library_(library) {}

  bool ok() const { return status_ == CUDNN_STATUS_SUCCESS; }
  cudnnStatus_t status() const { return status_; }
  // "tensor 3: CUDNN_STATUS_BAD_PARAM: ..."; "" if all succeeded.
  const std::string& failure() const { return failure_; }

  CudnnDescriptor Create(cudnnBackendDescriptorType_t type, const std::string& what);
  template <typename T>
  void Set(const CudnnDescriptor& to, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, const T* values, int64_t count) {
    if (ok()) Check(library_.set_attribute(to.get(), name, type, count, values));
  }
  template <typename T>
  void Set(const CudnnDescriptor& to, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, const T& value) {
    Set(to, name, type, &value, 1);
  }
  void Set(const CudnnDescriptor& to, cudnnBackendAttributeName_t name,
           const CudnnDescriptor& value) {
    const cudnnBackendDescriptor_t descriptor = value.get();
    Set(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &descriptor, 1);
  }
  // Returns how many there are; at most `most` are written to `values`.
  template <typename T>
  int64_t Get(const CudnnDescriptor& from, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t most, T* values) {
    int64_t count = 0;
    if (ok()) Check(library_.get_attribute(from.get(), name, type, most, &count, values));
    return ok() ? count : 0;
  }
  void Finalize(const CudnnDescriptor& descriptor) {
    if (ok()) Check(library_.finalize(descriptor.get()));
  }

 private:
  void Check(cudnnStatus_t status);

  const CudnnLibrary& library_;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
  std::string what_;  // that is being made
  std::string failure_;
};

// Elements, outermost first. For attention: sequences, heads, rows, channels.
using CudnnDims = std::array<int64_t, 4>;

// Pointers of memory and scalars must be multiples of this, unless a tensor says less.
inline constexpr int64_t kCudnnAlignment = 16;

// One of the library's engines, with choices of its own for some of its knobs.
struct CudnnEngine {
  int64_t index;
  std::vector<std::pair<cudnnBackendKnobType_t, int64_t>> knobs;
};

// The resources of a plan, and the device that it is made for.
struct CudnnPlanOptions {
  cudnnHandle_t handle = nullptr;
  // A finalized CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR instead of the handle, for a device that is not
  // here: such a plan cannot be executed.
  cudnnBackendDescriptor_t device = nullptr;
  int64_t workspace_bytes = 0;  // at most
  // Instead of the engines that the library ranks.
  std::optional<CudnnEngine> engine;
};

// Pointers of tensors, by their numbers: of the device, or for a scalar of the host, where it has
// to stay as long as the plan.
using CudnnPointers = std::vector<std::pair<int64_t, const void*>>;

// The most sets of pointers that a plan remembers: a layer has one for each part of its call.
inline constexpr size_t kMostCudnnPacks = 1024;

struct CudnnPlan {
  CudnnDescriptor plan;
  int64_t workspace_bytes = 0;
  // The library's form of the pointers that the plan was executed with, and the workspace: steps
  // repeat them.
  std::map<std::pair<CudnnPointers, void*>, CudnnDescriptor> packs;
  // The parts of the plan: the library does not document that it copies them.
  std::vector<CudnnDescriptor> kept;
};

class CudnnGraph {
 public:
  // A tensor's number, from 1 on: that of its pointer at execution.
  using Id = int64_t;

  explicit CudnnGraph(const CudnnLibrary& library) : library_(library), calls_(library) {}

  Id Memory(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides,
            int64_t alignment = kCudnnAlignment) {
    return Tensor(type, dims, strides, Place::kMemory, alignment);
  }
  // One float, which the host gives at execution.
  Id Scalar() { return Tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, Place::kArgument); }
  // A tensor inside the graph; dense, or with these strides.
  Id Virtual(cudnnDataType_t type, const CudnnDims& dims);
  Id Virtual(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides) {
    return Tensor(type, dims, strides, Place::kGraph);
  }

  // c = a * b, over the two inner dimensions; if b has fewer heads, several of a share one.
  void Matmul(Id a, Id b, Id c) { Matmul(a, b, c, {}); }
  // Tensors of 32-bit integers, one for each of the outermost dimension: how many rows and columns
  // of its result are wanted, and how many products each sums. Other elements are undefined.
  struct Sizes {
    std::optional<Id> rows, columns, depth;
  };
  void Matmul(Id a, Id b, Id c, const Sizes& sizes);
  // y = mode(x), mode(x, b).
  void Pointwise(cudnnPointwiseMode_t mode, Id x, Id y) { Pointwise(mode, x, {}, {}, y); }
  void Pointwise(cudnnPointwiseMode_t mode, Id x, Id b, Id y) { Pointwise(mode, x, b, {}, y); }
  // y = where ? x : b
  void Select(Id x, Id b, Id where, Id y) {
    Pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, b, where, y);
  }
  // y: the index of each element of x along a dimension.
  void Index(int64_t dimension, Id x, Id y);
  // Over the dimensions of which y has 1 (or fewer: heads that share one).
  void Reduce(cudnnReduceTensorOp_t operation, Id x, Id y);
  // y: the same elements in other dimensions.
  void Reshape(Id x, Id y);

  // The first plan of the library's ranking that it does not call nondeterministic, and that needs
  // no more workspace than there is. None: see failure(). Called once, last.
  std::optional<CudnnPlan> Plan(const CudnnPlanOptions& options);

  // Why there is no plan.
  const std::string& failure() const { return failure_; }

 private:
  struct MadeTensor {
    size_t at;  // in kept_
    cudnnDataType_t type;
  };

  // Where a tensor's values are: in memory, inside the graph, or beside it.
  enum class Place { kMemory, kGraph, kArgument };
  Id Tensor(cudnnDataType_t type, const CudnnDims& dims, const CudnnDims& strides, Place place,
            int64_t alignment = kCudnnAlignment);
  void Pointwise(cudnnPointwiseMode_t mode, Id x, std::optional<Id> b, std::optional<Id> where,
                 Id y, int64_t axis = -1);
  const MadeTensor& Made(Id id) const { return tensors_[static_cast<size_t>(id - 1)]; }
  const CudnnDescriptor& At(Id id) const { return kept_[Made(id).at]; }
  cudnnDataType_t TypeOf(Id id) const { return Made(id).type; }
  void Add(CudnnDescriptor operation);
  std::vector<CudnnDescriptor> Ranking(const CudnnDescriptor& graph,
                                       const CudnnPlanOptions& options);
  CudnnDescriptor Configure(const CudnnDescriptor& graph, const CudnnPlanOptions& options);
  std::optional<CudnnPlan> Finish(const CudnnDescriptor& config, const CudnnPlanOptions& options);

  const CudnnLibrary& library_;
  CudnnCalls calls_;
  std::vector<MadeTensor> tensors_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::vector<CudnnDescriptor> kept_;
  std::string failure_;
};

// Enqueues the plan on the handle's stream. "" or what failed.
std::string Execute(const CudnnLibrary& library, cudnnHandle_t handle, CudnnPlan& plan,
                    const CudnnPointers& pointers, void* workspace);

}  // namespace tercio::kernels::cuda
