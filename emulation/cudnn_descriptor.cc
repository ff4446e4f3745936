#include "emulation/cudnn_descriptor.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

namespace tercio::emulation {
namespace {

// Lists have no limit in the library; this one only has to be above all that occur.
constexpr int64_t kAny = 1 << 20;

// An attribute that may be set, and its number of elements.
// Everything that is not in this table is refused, as the library refuses attributes of another
// descriptor.
struct Rule {
  cudnnBackendDescriptorType_t owner;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t least = 1;  // 0: it may be missing
  int64_t most = 1;
};

// The table follows the library's reference; optional attributes are those that it says have a
// default.
constexpr Rule kRules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 0},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 0},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 0},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, kAny},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
     0},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, kAny},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1,
     kAny},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 1, kAny},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR},
};

// Sizes are those of the C types that the library's interface names.
size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return sizeof(int);  // enumerations
  }
}

const Rule* FindRule(const Descriptor& owner, cudnnBackendAttributeName_t name) {
  for (const Rule& rule : kRules) {
    if (rule.owner == owner.type && rule.name == name) return &rule;
  }
  return nullptr;
}

struct Registry {
  // Descriptors may be made by several threads at once.
  std::mutex mutex;
  // Handles are numbers and never addresses, so that one that was destroyed is never found again.
  uintptr_t last = 0;
  std::map<cudnnBackendDescriptor_t, std::unique_ptr<Descriptor>> live;
};
Registry& TheRegistry() {
  // The registry is never destroyed, since descriptors may be released while the process ends.
  static Registry* registry = new Registry();
  return *registry;
}

std::string& LastError() {
  // The last error belongs to a thread, as in the library.
  static thread_local std::string error;
  return error;
}

std::string Name(cudnnBackendAttributeName_t name) { return "attribute " + std::to_string(name); }

}  // namespace

const Descriptor* Descriptor::Of(cudnnBackendAttributeName_t name) const {
  return FindDescriptor(One<cudnnBackendDescriptor_t>(name));
}

cudnnStatus_t RefuseCudnn(cudnnStatus_t status, const std::string& why) {
  std::fprintf(stderr, "cudnn: %s: %s\n", cudnnGetErrorString(status), why.c_str());
  // The reason is kept for cudnnGetLastErrorString, which callers put into their messages.
  LastError() = why;
  return status;
}

Descriptor* FindDescriptor(cudnnBackendDescriptor_t handle) {
  Registry& registry = TheRegistry();
  // The lock covers the search alone: a descriptor itself is used by one thread at a time.
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.live.find(handle);
  return found == registry.live.end() ? nullptr : found->second.get();
}

int64_t LiveDescriptors() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  return static_cast<int64_t>(registry.live.size());
}

// A descriptor is usable only while everything that it refers to is, all the way down.
bool IsUsable(cudnnBackendDescriptor_t handle) {
  const Descriptor* descriptor = FindDescriptor(handle);
  if (descriptor == nullptr || !descriptor->finalized) return false;
  for (const auto& [name, value] : descriptor->values) {
    const Rule* rule = FindRule(*descriptor, name);
    // Results that the library hands out have no rule, and refer to their graph.
    if (rule != nullptr && rule->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
    const auto named = descriptor->All<cudnnBackendDescriptor_t>(name);
    if (!std::all_of(named.begin(), named.end(), IsUsable)) return false;
  }
  return true;
}

}  // namespace tercio::emulation

using tercio::emulation::Descriptor;
using tercio::emulation::FindDescriptor;
using tercio::emulation::RefuseCudnn;

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", tercio::emulation::LastError().c_str());
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  if (descriptor == nullptr) return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "null");
  auto made = std::make_unique<Descriptor>();
  made->type = type;
  auto& registry = tercio::emulation::TheRegistry();
  const std::lock_guard lock(registry.mutex);
  // Numbers begin at 1, so that no handle is null.
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(++registry.last);
  registry.live.emplace(*descriptor, std::move(made));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  auto& registry = tercio::emulation::TheRegistry();
  const std::lock_guard lock(registry.mutex);
  if (registry.live.erase(descriptor) == 1) return CUDNN_STATUS_SUCCESS;
  return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a valid descriptor");
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  Descriptor* descriptor = FindDescriptor(handle);
  if (descriptor == nullptr) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a valid descriptor");
  }
  // The library has read the attributes by now, and would not see a change.
  if (descriptor->finalized) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized");
  }
  const auto* rule = tercio::emulation::FindRule(*descriptor, name);
  if (rule == nullptr) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                       tercio::emulation::Name(name) + " is not an attribute of this descriptor");
  }
  if (rule->type != type) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                       tercio::emulation::Name(name) + " has another type");
  }
  // An optional attribute that is set has at least one element, too.
  if (count < std::max<int64_t>(rule->least, 1) || count > rule->most || elements == nullptr) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, tercio::emulation::Name(name) + " has " +
                                                   std::to_string(count) + " elements");
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* named = static_cast<const cudnnBackendDescriptor_t*>(elements);
    for (int64_t i = 0; i < count; ++i) {
      // The real library refuses this as well, since it copies what it needs when it is set.
      if (tercio::emulation::IsUsable(named[i])) continue;
      return RefuseCudnn(
          CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
          tercio::emulation::Name(name) + " refers to a descriptor that is not finalized");
    }
  }
  const auto* bytes = static_cast<const unsigned char*>(elements);
  // The value is copied, since the caller's memory ends with the call.
  descriptor->values[name].assign(
      bytes, bytes + static_cast<size_t>(count) * tercio::emulation::BytesOf(type));
  return CUDNN_STATUS_SUCCESS;
}

namespace tercio::emulation {

// Names what `descriptor` lacks before it can be finalized; "" if nothing.
std::string MissingAttribute(const Descriptor& descriptor) {
  for (const Rule& rule : kRules) {
    if (rule.owner != descriptor.type || rule.least == 0 || descriptor.Has(rule.name)) continue;
    return Name(rule.name) + " is missing";
  }
  return "";
}

}  // namespace tercio::emulation
