#include "emulation/cudnn_run.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace tercio::emulation {
namespace {

GraphTensor TensorOf(const Descriptor& d) {
  GraphTensor tensor{};
  tensor.type = d.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  tensor.alignment = d.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  tensor.is_virtual = d.One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  tensor.is_scalar = d.One<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  // The table of rules has checked that there are four of each.
  const auto dims = d.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = d.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  std::copy(dims.begin(), dims.end(), tensor.dims.begin());
  std::copy(strides.begin(), strides.end(), tensor.strides.begin());
  return tensor;
}

// Whether all elements have different addresses.
bool IsInjective(const GraphTensor& tensor) {
  std::array<int, 4> order = {0, 1, 2, 3};
  // In ascending order each stride must clear all that the smaller ones reach.
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return tensor.strides[static_cast<size_t>(a)] < tensor.strides[static_cast<size_t>(b)];
  });
  int64_t span = 1;
  for (const int i : order) {
    const auto at = static_cast<size_t>(i);
    // A single element never moves along its axis, whatever the stride is.
    if (tensor.dims[at] == 1) continue;
    if (tensor.strides[at] < span) return false;
    span += (tensor.dims[at] - 1) * tensor.strides[at];
  }
  return true;
}

bool IsFloat(cudnnDataType_t type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

class Compiler {
 public:
  // The program outlives the compiler, which only fills it.
  explicit Compiler(Program* program) : program_(*program) {}

  std::string Add(const Descriptor& operation) {
    GraphOperation made{operation.type};
    std::string why;
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        // Operands are read before the result is written, so that an operation cannot read its own
        // output.
        why = Read(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, &made.x) +
              Read(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, &made.b) +
              Write(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, &made.y);
        why +=
            ReadSize(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, &made.rows) +
            ReadSize(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, &made.columns) +
            ReadSize(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, &made.depth);
        if (why.empty()) why = CheckMatmul(made, operation);
        break;
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        why = AddPointwise(operation, &made);
        break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
        const Descriptor* kind = operation.Of(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        made.mode = kind->One<int>(CUDNN_ATTR_REDUCTION_OPERATOR);
        why = Read(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &made.x) +
              Write(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &made.y);
        if (why.empty()) why = CheckReduction(made, *kind);
        break;
      }
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        why = Read(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &made.x) +
              Write(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &made.y);
        if (why.empty()) why = CheckReshape(made);
        break;
      default:
        return "the graph contains something that is not an operation";
    }
    // The operation is kept even if it is wrong, as the first fault ends the compilation anyway.
    program_.operations.push_back(made);
    return why;
  }

  std::string Finish() {
    for (const auto& [id, tensor] : program_.tensors) {
      // A virtual tensor that nobody reads is work for nothing, and mostly a forgotten operation.
      if (tensor.is_virtual && read_.count(id) == 0) return Name(id) + " is never read";
    }
    return "";
  }

 private:
  static std::string Name(int64_t id) { return "tensor " + std::to_string(id); }
  const GraphTensor& At(int64_t id) const { return program_.tensors.at(id); }

  std::string Take(const Descriptor& owner, cudnnBackendAttributeName_t name, int64_t* id) {
    const Descriptor* tensor = owner.Of(name);
    if (tensor == nullptr || tensor->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
      return "an operation has an operand that is not a tensor";
    }
    *id = tensor->One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    // One id is one tensor: two descriptors with the same id would be two sizes of the same memory.
    const auto [known, is_new] = known_.emplace(*id, tensor);
    if (!is_new && known->second != tensor) return "two tensors are " + Name(*id);
    if (is_new) program_.tensors.emplace(*id, TensorOf(*tensor));
    return "";
  }
  std::string Read(const Descriptor& owner, cudnnBackendAttributeName_t name, int64_t* id) {
    if (std::string why = Take(owner, name, id); !why.empty()) return why;
    read_.insert(*id);
    // Virtual tensors exist only within the graph, so their values must come from it.
    if (At(*id).is_virtual && written_.count(*id) == 0) return Name(*id) + " is not written yet";
    return "";
  }
  // An optional size of each sequence.
  std::string ReadSize(const Descriptor& owner, cudnnBackendAttributeName_t name, int64_t* id) {
    if (!owner.Has(name)) return "";
    return Read(owner, name, id);
  }
  std::string Write(const Descriptor& owner, cudnnBackendAttributeName_t name, int64_t* id) {
    if (std::string why = Take(owner, name, id); !why.empty()) return why;
    if (At(*id).is_scalar) return Name(*id) + " is a scalar but is written";
    // Operations run in their order, so a later write would not be seen by the earlier read.
    if (read_.count(*id) > 0) return Name(*id) + " is read before it is written";
    if (!written_.insert(*id).second) return Name(*id) + " is written twice";
    // Elements that share an address would depend on the order of the writes.
    if (!IsInjective(At(*id))) return Name(*id) + " overlaps itself";
    return "";
  }

  // b may have 1 where y has more.
  std::string CheckSpread(int64_t b, int64_t y) const {
    for (size_t i = 0; i < 4; ++i) {
      if (At(b).dims[i] != 1 && At(b).dims[i] != At(y).dims[i]) {
        return Name(b) + " does not fit " + Name(y);
      }
    }
    return "";
  }

  std::string AddPointwise(const Descriptor& operation, GraphOperation* made) {
    const Descriptor* kind = operation.Of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    // The kind of function is itself a descriptor, and may be of any type.
    if (kind->type != CUDNN_BACKEND_POINTWISE_DESCRIPTOR) return "no function";
    made->mode = kind->One<int>(CUDNN_ATTR_POINTWISE_MODE);
    made->axis = kind->One<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
    std::string why = Read(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &made->x);
    if (operation.Has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)) {
      why += Read(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &made->b);
    }
    if (operation.Has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)) {
      why += Read(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &made->t);
    }
    why += Write(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &made->y);
    // Sizes can only be compared once all operands are known.
    if (!why.empty()) return why;
    for (const int64_t id : {made->x, made->b, made->t}) {
      if (id >= 0) why += CheckSpread(id, made->y);
    }
    return why + CheckFunction(*made, kind->One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC));
  }

  std::string CheckFunction(const GraphOperation& o, cudnnDataType_t precision) const {
    const cudnnDataType_t y = At(o.y).type;
    const bool has_b = o.b >= 0;
    const bool has_t = o.t >= 0;
    const bool compares = o.mode == CUDNN_POINTWISE_CMP_GE || o.mode == CUDNN_POINTWISE_CMP_LT;
    const bool is_logical = compares || o.mode == CUDNN_POINTWISE_LOGICAL_AND;
    // Comparisons have no numbers to compute with, all others are computed in fp32.
    if (precision != (is_logical ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT)) {
      return Name(o.y) + " is computed in the wrong format";
    }
    switch (o.mode) {
      case CUDNN_POINTWISE_ADD:
      case CUDNN_POINTWISE_MUL:
      case CUDNN_POINTWISE_DIV:
      case CUDNN_POINTWISE_SUB:
        return has_b && !has_t && IsFloat(y) ? ""
                                             : Name(o.y) + " is not a function of two operands";
      case CUDNN_POINTWISE_EXP:
      case CUDNN_POINTWISE_LOG:
        return !has_b && !has_t && IsFloat(y) ? ""
                                              : Name(o.y) + " is not a function of one operand";
      case CUDNN_POINTWISE_GEN_INDEX:
        return !has_b && !has_t && o.axis >= 0 && o.axis < 4 && y == CUDNN_DATA_INT32
                   ? ""
                   : Name(o.y) + " is not an index";
      case CUDNN_POINTWISE_CMP_GE:
      case CUDNN_POINTWISE_CMP_LT:
      case CUDNN_POINTWISE_LOGICAL_AND: {
        const cudnnDataType_t operands = compares ? CUDNN_DATA_INT32 : CUDNN_DATA_BOOLEAN;
        return has_b && !has_t && y == CUDNN_DATA_BOOLEAN && At(o.x).type == operands &&
                       At(o.b).type == operands
                   ? ""
                   : Name(o.y) + " is not a comparison";
      }
      case CUDNN_POINTWISE_BINARY_SELECT:
        return has_b && has_t && At(o.t).type == CUDNN_DATA_BOOLEAN && IsFloat(y)
                   ? ""
                   : Name(o.y) + " is not a selection";
      default:
        return Name(o.y) + " is a function that is not emulated";
    }
  }

  std::string CheckMatmul(const GraphOperation& o, const Descriptor& operation) const {
    const Descriptor* kind = operation.Of(CUDNN_ATTR_OPERATION_MATMUL_DESC);
    // The library could sum in other formats, with other results than those that are compared.
    if (kind->One<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) != CUDNN_DATA_FLOAT) {
      return Name(o.y) + " is not summed in fp32";
    }
    const Extents& a = At(o.x).dims;
    const Extents& b = At(o.b).dims;
    const Extents& c = At(o.y).dims;
    // Groups of query heads share a key head, so the heads of a are a multiple of those of b.
    const bool fits = a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
                      a[3] == b[2] && c[2] == a[2] && c[3] == b[3];
    const bool floats = IsFloat(At(o.x).type) && IsFloat(At(o.b).type) && IsFloat(At(o.y).type);
    if (!floats) return Name(o.y) + " is a product of something other than numbers";
    for (const int64_t size : {o.rows, o.columns, o.depth}) {
      if (size < 0) continue;
      if (At(size).type != CUDNN_DATA_INT32 || At(size).dims != Extents{c[0], 1, 1, 1}) {
        return Name(size) + " is not a number for each sequence";
      }
    }
    return fits ? "" : Name(o.y) + ": the sizes of the factors do not fit";
  }

  std::string CheckReduction(const GraphOperation& o, const Descriptor& kind) const {
    if (o.mode != CUDNN_REDUCE_TENSOR_ADD && o.mode != CUDNN_REDUCE_TENSOR_MAX) {
      return Name(o.y) + " is a reduction that is not emulated";
    }
    if (kind.One<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) != CUDNN_DATA_FLOAT) {
      return Name(o.y) + " is not reduced in fp32";
    }
    // A reduction adds neighbours in equal shares, so the sizes must divide.
    for (size_t i = 0; i < 4; ++i) {
      if (At(o.x).dims[i] % At(o.y).dims[i] != 0) return Name(o.y) + " does not divide its operand";
    }
    return "";
  }

  std::string CheckReshape(const GraphOperation& o) const {
    const GraphTensor& x = At(o.x);
    const GraphTensor& y = At(o.y);
    // A view of memory would have two names for the same bytes.
    if (!y.is_virtual) return Name(o.y) + " is a view in memory";
    return x.Elements() == y.Elements() && x.Span() == y.Span()
               ? ""
               : Name(o.y) + " is not a view of the same elements";
  }

  Program& program_;
  std::map<int64_t, const Descriptor*> known_;
  std::set<int64_t> read_;
  std::set<int64_t> written_;
};

// Like the library's engine for gradients: those of all scores, padded to tiles, and for a group of
// query heads those of each.
int64_t WorkspaceOf(const Program& program) {
  // Even a small graph has some workspace, so that callers do not rely on none.
  int64_t bytes = 256;
  for (const GraphOperation& o : program.operations) {
    const GraphTensor& y = program.tensors.at(o.y);
    if (o.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR && y.dims[2] == y.dims[3]) {
      const auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
      bytes = std::max(bytes, 256 + y.dims[0] * y.dims[1] * up(y.dims[2], 64) * up(y.dims[3], 128) *
                                        y.ElementBytes());
    }
  }
  for (const GraphOperation& o : program.operations) {
    const GraphTensor& x = program.tensors.at(o.x);
    // Only sums over heads keep all channels; those over keys need no memory.
    const bool adds_heads = o.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
                            program.tensors.at(o.y).dims[3] == x.dims[3];
    if (adds_heads) bytes += x.Elements() * x.ElementBytes();
  }
  return bytes;
}

// A tensor while the graph runs.
class Cells {
 public:
  Cells(const GraphTensor& tensor, void* address) : tensor_(tensor), address_(address) {
    // Values that were never written are NaN, and show in results.
    if (address_ == nullptr) own_.assign(static_cast<size_t>(tensor.Span()), std::nanf(""));
  }
  const GraphTensor& tensor() const { return tensor_; }
  float Get(int64_t at) const {
    if (address_ == nullptr) return own_[static_cast<size_t>(at)];
    if (tensor_.type == CUDNN_DATA_FLOAT) return static_cast<const float*>(address_)[at];
    if (tensor_.type == CUDNN_DATA_INT32) {
      return static_cast<float>(static_cast<const int32_t*>(address_)[at]);
    }
    if (tensor_.type == CUDNN_DATA_BFLOAT16) {
      return __bfloat162float(static_cast<const __nv_bfloat16*>(address_)[at]);
    }
    return __half2float(static_cast<const __half*>(address_)[at]);
  }
  void Set(int64_t at, float value) {
    if (tensor_.type == CUDNN_DATA_BFLOAT16) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
      if (address_ != nullptr) static_cast<__nv_bfloat16*>(address_)[at] = rounded;
      // Virtual tensors are rounded to their format, too, as where the library keeps them on the
      // chip.
      value = __bfloat162float(rounded);
    } else if (tensor_.type == CUDNN_DATA_HALF) {
      const __half rounded = __float2half_rn(value);
      if (address_ != nullptr) static_cast<__half*>(address_)[at] = rounded;
      value = __half2float(rounded);
    } else if (address_ != nullptr) {
      static_cast<float*>(address_)[at] = value;
    }
    if (address_ == nullptr) own_[static_cast<size_t>(at)] = value;
  }

 private:
  GraphTensor tensor_;
  void* address_;
  std::vector<float> own_;
};

// The order of the elements is fixed, but nothing depends on it.
template <typename Function>
void ForEach(const Extents& dims, const Function& function) {
  Extents i{};
  for (i[0] = 0; i[0] < dims[0]; ++i[0]) {
    for (i[1] = 0; i[1] < dims[1]; ++i[1]) {
      for (i[2] = 0; i[2] < dims[2]; ++i[2]) {
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) function(i);
      }
    }
  }
}

// The size of a sequence where it has one of its own.
int64_t SizeOf(const Cells* sizes, int64_t sequence, int64_t all) {
  if (sizes == nullptr) return all;
  return static_cast<int64_t>(sizes->Get(sizes->tensor().At({sequence, 0, 0, 0})));
}

struct ProductSizes {
  const Cells* rows = nullptr;
  const Cells* columns = nullptr;
  const Cells* depth = nullptr;
};
void Multiply(const Cells& a, const Cells& b, const ProductSizes& sizes, Cells& c) {
  // Query heads of one group have the same key head.
  const int64_t share = a.tensor().dims[1] / b.tensor().dims[1];
  ForEach(c.tensor().dims, [&](const Extents& i) {
    // What lies outside of a sequence is not written, and so not a number unless it lies in memory.
    if (i[2] >= SizeOf(sizes.rows, i[0], c.tensor().dims[2]) ||
        i[3] >= SizeOf(sizes.columns, i[0], c.tensor().dims[3])) {
      return;
    }
    const int64_t depth = SizeOf(sizes.depth, i[0], a.tensor().dims[3]);
    const int64_t a_at = a.tensor().At({i[0], i[1], i[2], 0});
    const int64_t b_at = b.tensor().At({i[0], i[1] / share, 0, i[3]});
    // The sum is in double, so that its own rounding does not hide that of the kernel.
    double sum = 0;
    for (int64_t k = 0; k < depth; ++k) {
      sum += static_cast<double>(a.Get(a_at + k * a.tensor().strides[3])) *
             b.Get(b_at + k * b.tensor().strides[2]);
    }
    c.Set(c.tensor().At(i), static_cast<float>(sum));
  });
}

void Reduce(int mode, const Cells& x, Cells& y) {
  const bool adds = mode == CUDNN_REDUCE_TENSOR_ADD;
  Extents share{};
  // A reduced axis has a share above 1, one that stays has 1.
  for (size_t i = 0; i < 4; ++i) share[i] = x.tensor().dims[i] / y.tensor().dims[i];
  ForEach(y.tensor().dims, [&](const Extents& i) {
    double sum = 0;
    float max = -std::numeric_limits<float>::infinity();
    ForEach(share, [&](const Extents& j) {
      Extents at{};
      for (size_t d = 0; d < 4; ++d) at[d] = i[d] * share[d] + j[d];
      const float value = x.Get(x.tensor().At(at));
      sum += value;
      // NaN is kept, since a maximum that drops it would hide an error.
      max = value > max || value != value ? value : max;
    });
    y.Set(y.tensor().At(i), adds ? static_cast<float>(sum) : max);
  });
}

// The element of a tensor that may have 1 where the index has more.
float Spread(const Cells* cells, const Extents& index) {
  // Missing operands are 0, which the function does not read.
  if (cells == nullptr) return 0;
  Extents at{};
  for (size_t d = 0; d < 4; ++d) at[d] = cells->tensor().dims[d] == 1 ? 0 : index[d];
  return cells->Get(cells->tensor().At(at));
}

float Apply(const GraphOperation& o, float x, float b, float t, const Extents& index,
            bool ignore_mask) {
  switch (o.mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_GEN_INDEX:
      return static_cast<float>(index[static_cast<size_t>(o.axis)]);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_CMP_LT:
      return x < b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_LOGICAL_AND:
      return x != 0 && b != 0 ? 1.0f : 0.0f;
    default:
      // A fault of the tests ignores the mask, as an engine with a bug would.
      return t != 0 || ignore_mask ? x : b;
  }
}

}  // namespace

int64_t GraphTensor::ElementBytes() const {
  return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4;
}

int64_t GraphTensor::Span() const {
  // The last element has the largest offset, since strides are positive.
  return At({dims[0] - 1, dims[1] - 1, dims[2] - 1, dims[3] - 1}) + 1;
}

std::string CheckTensor(const Descriptor& descriptor) {
  const GraphTensor tensor = TensorOf(descriptor);
  for (size_t i = 0; i < 4; ++i) {
    if (tensor.dims[i] < 1 || tensor.strides[i] < 1) return "an empty tensor, or a stride below 1";
  }
  if (tensor.is_virtual && tensor.is_scalar) return "a scalar that is virtual";
  if (tensor.is_scalar && (tensor.Elements() != 1 || tensor.type != CUDNN_DATA_FLOAT)) {
    return "a scalar that is not one float";
  }
  // Booleans are virtual only: memory holds numbers.
  if (!tensor.is_virtual && !IsFloat(tensor.type) && tensor.type != CUDNN_DATA_INT32) {
    return "this type cannot lie in memory";
  }
  // The library demands a power of two that holds an element.
  if (tensor.alignment < tensor.ElementBytes() ||
      (tensor.alignment & (tensor.alignment - 1)) != 0) {
    return "the alignment is invalid";
  }
  return "";
}

std::string Compile(const Descriptor& graph, Program* program) {
  Compiler compiler(program);
  // The operations were given in the order of computation.
  for (cudnnBackendDescriptor_t operation :
       graph.All<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const std::string why = compiler.Add(*FindDescriptor(operation));
    if (!why.empty()) return why;
  }
  const std::string why = compiler.Finish();
  // The size follows from the graph alone, so it is known before any execution.
  if (why.empty()) program->workspace_bytes = WorkspaceOf(*program);
  return why;
}

void Run(const Program& program, const Addresses& addresses,
         const std::map<int64_t, float>& scalars, bool ignore_mask) {
  std::map<int64_t, Cells> cells;
  for (const auto& [id, tensor] : program.tensors) {
    const auto address = addresses.find(id);
    cells.emplace(id, Cells(tensor, address == addresses.end() ? nullptr : address->second));
  }
  // Scalars are values of the host, and were read when the call was made.
  for (const auto& [id, value] : scalars) cells.at(id).Set(0, value);
  const auto at = [&](int64_t id) { return id < 0 ? nullptr : &cells.at(id); };
  for (const GraphOperation& o : program.operations) {
    const Cells& x = cells.at(o.x);
    Cells& y = cells.at(o.y);
    switch (o.kind) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        // An engine that ignores masks has numbers behind the end of a sequence, too.
        Multiply(
            x, cells.at(o.b),
            ignore_mask ? ProductSizes{} : ProductSizes{at(o.rows), at(o.columns), at(o.depth)}, y);
        break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        Reduce(o.mode, x, y);
        break;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        // Other dimensions, the same addresses.
        ForEach(y.tensor().dims, [&](const Extents& i) {
          const int64_t place = y.tensor().At(i);
          y.Set(place, x.Get(place));
        });
        break;
      default: {
        const Cells* b = at(o.b);
        const Cells* t = at(o.t);
        ForEach(y.tensor().dims, [&](const Extents& i) {
          y.Set(y.tensor().At(i),
                Apply(o, Spread(&x, i), Spread(b, i), Spread(t, i), i, ignore_mask));
        });
      }
    }
  }
}

}  // namespace tercio::emulation
