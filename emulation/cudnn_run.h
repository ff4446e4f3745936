// The computation of a graph of the emulated cuDNN: checked when it is finalized, executed
// operation by operation. Internal to the emulation.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulation/cudnn_descriptor.h"

namespace tercio::emulation {

using Extents = std::array<int64_t, 4>;

struct GraphTensor {
  cudnnDataType_t type;
  Extents dims, strides;
  int64_t alignment;
  bool is_virtual, is_scalar;

  int64_t ElementBytes() const;
  int64_t Elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // From the first element to the end of the last one.
  int64_t Span() const;
  int64_t At(const Extents& index) const {
    return index[0] * strides[0] + index[1] * strides[1] + index[2] * strides[2] +
           index[3] * strides[3];
  }
};

struct GraphOperation {
  cudnnBackendDescriptorType_t kind;  // CUDNN_BACKEND_OPERATION_...
  int mode = 0;                       // a cudnnPointwiseMode_t or cudnnReduceTensorOp_t
  int64_t axis = 0;
  int64_t x = -1, b = -1, t = -1, y = -1;  // ids; of a product A, B and C are x, b and y
  // Tensors with the number of a product's rows, columns and summands in each sequence, or -1.
  int64_t rows = -1, columns = -1, depth = -1;
};

struct Program {
  std::map<int64_t, GraphTensor> tensors;
  std::vector<GraphOperation> operations;
  int64_t workspace_bytes = 0;  // workspace of an engine that can execute it
};

// "" or why the descriptor cannot be finalized.
std::string CheckTensor(const Descriptor& tensor);
// Compiles an OPERATIONGRAPH.
std::string Compile(const Descriptor& graph, Program* program);

// Memory and scalars by id.
using Addresses = std::map<int64_t, void*>;
void Run(const Program& program, const Addresses& addresses,
         const std::map<int64_t, float>& scalars, bool ignore_mask);

}  // namespace tercio::emulation
