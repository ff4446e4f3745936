// cuDNN's functions for emulated devices (include/cudnn.h): handles, engines, plans and their
// execution.
#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "emulation/control.h"
#include "emulation/cudnn_descriptor.h"
#include "emulation/cudnn_run.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
  int device = 0;
};

namespace tercio::emulation {

// The definition is in cudnn_descriptor.cc, beside the table that it reads.
std::string MissingAttribute(const Descriptor& descriptor);

namespace {

constexpr int kEngines = 4;
// Each engine but the last has a fault that real ones have, so that callers must choose well.
enum Engine { kDrawsBits, kWantsTooMuch, kThinksBetter, kExecutes };
// No device has this much memory.
constexpr int64_t kTooMuch = int64_t{1} << 50;
constexpr uintptr_t kWorkspaceAlignment = 16;

CudnnSettings settings;
// Tests count plans and executions, to see what was kept and what was made again.
std::atomic<int64_t> plans{0};
std::atomic<int64_t> packs{0};
std::atomic<int64_t> executions{0};

const Descriptor& GraphOf(const Descriptor& config) {
  return *config.Of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

// Makes `to` (an engine, or its configuration) a descriptor that the library returns.
// An engine carries its graph, since everything that is asked of it follows from the graph.
void Fill(const Descriptor& from, int engine, Descriptor* to) {
  to->engine = engine;
  to->values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
      from.values.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  to->finalized = true;
}

// The engine of capability 10 whose bits repeat, and its knobs (NVIDIA's cudnn-frontend).
constexpr int64_t kRepeats = 5;
const std::map<int, int64_t> kRepeatsKnobs = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31},
                                              {CUDNN_KNOB_TYPE_STAGES, 2}};

// An engine that was asked for by its number.
cudnnStatus_t FinalizeEngine(Descriptor* engine) {
  int device = 0;
  int major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) != kRepeats || major != 10) {
    return RefuseCudnn(CUDNN_STATUS_NOT_SUPPORTED, "there is no such engine for this device");
  }
  engine->engine = kExecutes;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConfig(Descriptor* config) {
  std::map<int, int64_t> knobs;
  for (cudnnBackendDescriptor_t handle :
       config->All<cudnnBackendDescriptor_t>(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
    const Descriptor* choice = FindDescriptor(handle);
    knobs[choice->One<int>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)] =
        choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  }
  const Descriptor* engine = config->Of(CUDNN_ATTR_ENGINECFG_ENGINE);
  if (engine->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR || knobs != kRepeatsKnobs) {
    return RefuseCudnn(CUDNN_STATUS_NOT_SUPPORTED, "not an engine with the knobs that it has");
  }
  config->engine = engine->engine;
  config->values[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
      engine->values.at(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePlan(const Descriptor& plan) {
  const Descriptor& config = *plan.Of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (config.type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "a plan without an engine");
  }
  // A real library may rank an engine and refuse it only when the plan is made.
  if (config.engine == kThinksBetter) {
    return RefuseCudnn(CUDNN_STATUS_NOT_SUPPORTED,
                       "this engine does not support the graph after all");
  }
  // Only the plans that can be executed count.
  if (config.engine == kExecutes) ++plans;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePack(const Descriptor& pack) {
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  // A second pointer for one tensor would replace the first without notice.
  if (ids.size() != pointers.size() ||
      std::set<int64_t>(ids.begin(), ids.end()).size() != ids.size()) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "there must be one pointer for each tensor");
  }
  if (std::count(pointers.begin(), pointers.end(), nullptr) > 0) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a pointer is null");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CopyOut(const void* from, size_t each, int64_t have, int64_t requested,
                      int64_t* count, void* to) {
  // The number that exists is returned even if fewer are requested, as by the library.
  *count = have;
  if (to != nullptr) std::memcpy(to, from, each * static_cast<size_t>(std::min(have, requested)));
  return CUDNN_STATUS_SUCCESS;
}

// Fills descriptors that the caller has made.
cudnnStatus_t HandOut(const Descriptor& from, cudnnBackendDescriptorType_t type, int first,
                      int64_t requested, void* elements) {
  for (int64_t i = 0; i < requested; ++i) {
    // The caller makes these descriptors, and they must be untouched.
    Descriptor* to = FindDescriptor(static_cast<cudnnBackendDescriptor_t*>(elements)[i]);
    if (to == nullptr || to->type != type || to->finalized) {
      return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a new descriptor of this type");
    }
    Fill(from, first + static_cast<int>(i), to);
  }
  return CUDNN_STATUS_SUCCESS;
}

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  // Ranges overlap if each begins before the other ends.
  return first < second + b_bytes && second < first + a_bytes;
}

// The inputs and outputs of an execution.
struct Call {
  Program program;
  Addresses addresses;
  std::map<int64_t, float> scalars;
  void* workspace = nullptr;
  bool ignore_mask = false;
};

cudnnStatus_t CheckMemory(const Call& call, int64_t id, const GraphTensor& tensor, int device) {
  // The pointer may be any address, so it is checked before anything is read through it.
  const void* pointer = call.addresses.at(id);
  const int64_t bytes = tensor.Span() * tensor.ElementBytes();
  if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(tensor.alignment) != 0) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                       "tensor " + std::to_string(id) + " is less aligned than declared");
  }
  // A host address would work in the emulation and fail on a GPU.
  if (!LiesOnDevice(device, pointer, static_cast<size_t>(bytes), "cudnnBackendExecute")) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                       "tensor " + std::to_string(id) + " is not on the handle's device");
  }
  // The library uses its workspace while it reads and writes tensors.
  if (Overlap(pointer, bytes, call.workspace, call.program.workspace_bytes)) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                       "tensor " + std::to_string(id) + " lies in the workspace");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t Bind(const Descriptor& pack, int device, Call* call) {
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  call->workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  // The size is known from the graph, and the caller must provide all of it.
  const auto bytes = static_cast<size_t>(call->program.workspace_bytes);
  if (reinterpret_cast<uintptr_t>(call->workspace) % kWorkspaceAlignment != 0 ||
      !LiesOnDevice(device, call->workspace, bytes, "cudnnBackendExecute's workspace")) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                       "the workspace is not aligned, or not on the device");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto tensor = call->program.tensors.find(ids[i]);
    if (tensor == call->program.tensors.end() || tensor->second.is_virtual) {
      return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                         "a pointer for tensor " + std::to_string(ids[i]) + ", which has none");
    }
    // Scalars are read now, as the library does, so the caller may change them after the call.
    if (tensor->second.is_scalar) {
      call->scalars[ids[i]] = *static_cast<const float*>(pointers[i]);
    } else {
      call->addresses[ids[i]] = pointers[i];
    }
  }
  // Each tensor in memory needs a pointer, whether the caller uses its values or not.
  for (const auto& [id, tensor] : call->program.tensors) {
    if (tensor.is_virtual) continue;
    if (tensor.is_scalar ? call->scalars.count(id) == 0 : call->addresses.count(id) == 0) {
      return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "no pointer for tensor " + std::to_string(id));
    }
    if (tensor.is_scalar) continue;
    const cudnnStatus_t status = CheckMemory(*call, id, tensor, device);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

void ConfigureCudnn(const CudnnSettings& to) {
  // The counts begin at zero with each configuration, as tests expect.
  settings = to;
  plans = 0;
  packs = 0;
  executions = 0;
}

CudnnCounts GetCudnnCounts() { return {plans, packs, executions, LiveDescriptors()}; }

void* OpenCudnn() { return settings.present ? &settings : nullptr; }

void* FindInCudnn(void* library, const char* name) {
  // Only the handle that OpenCudnn gave out is a library.
  if (library != &settings) return nullptr;
  // Callers look functions up by name, as with dlsym, so a missing one shows here as there.
  static const std::map<std::string, void*> functions = {
      {"cudnnGetVersion", reinterpret_cast<void*>(&cudnnGetVersion)},
      {"cudnnGetErrorString", reinterpret_cast<void*>(&cudnnGetErrorString)},
      {"cudnnGetLastErrorString", reinterpret_cast<void*>(&cudnnGetLastErrorString)},
      {"cudnnCreate", reinterpret_cast<void*>(&cudnnCreate)},
      {"cudnnDestroy", reinterpret_cast<void*>(&cudnnDestroy)},
      {"cudnnSetStream", reinterpret_cast<void*>(&cudnnSetStream)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(&cudnnBackendCreateDescriptor)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void*>(&cudnnBackendDestroyDescriptor)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(&cudnnBackendSetAttribute)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void*>(&cudnnBackendGetAttribute)},
      {"cudnnBackendFinalize", reinterpret_cast<void*>(&cudnnBackendFinalize)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(&cudnnBackendExecute)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace tercio::emulation

using namespace tercio::emulation;  // NOLINT: the library's functions have no namespace

size_t cudnnGetVersion() { return settings.version; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER:
      return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED:
      return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH:
      return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE:
      return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  // The fault makes the library present but unusable, as with a wrong driver.
  if (settings.fault == CudnnFault::kNoHandle) {
    return RefuseCudnn(CUDNN_STATUS_NOT_INITIALIZED, "the library does not start");
  }
  auto made = std::make_unique<cudnnContext>();
  if (cudaGetDevice(&made->device) != cudaSuccess) {
    return RefuseCudnn(CUDNN_STATUS_NOT_INITIALIZED, "there is no device");
  }
  *handle = made.release();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (handle == nullptr) return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  Descriptor* descriptor = FindDescriptor(handle);
  if (descriptor == nullptr || descriptor->finalized) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a descriptor that can be finalized");
  }
  std::string why = MissingAttribute(*descriptor);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  // Further checks read the attributes, so they need all of them.
  if (why.empty()) {
    Program program;
    switch (descriptor->type) {
      case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        why = CheckTensor(*descriptor);
        break;
      case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        // A graph is compiled when it is finalized, to find its mistakes as early as the library
        // does.
        why = Compile(*descriptor, &program);
        break;
      case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        status = FinalizeEngine(descriptor);
        break;
      case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        status = FinalizeConfig(descriptor);
        break;
      case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        status = FinalizePlan(*descriptor);
        break;
      case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        status = FinalizePack(*descriptor);
        if (status == CUDNN_STATUS_SUCCESS) ++packs;
        break;
      default:
        break;
    }
  }
  if (!why.empty()) return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, why);
  // A descriptor that was refused stays open, and cannot be used.
  descriptor->finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements) {
  const Descriptor* from = FindDescriptor(handle);
  // A query for none has no memory to write to.
  if (!IsUsable(handle) || count == nullptr || (requested > 0) != (elements != nullptr)) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a finalized descriptor, or nowhere to write");
  }
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
      from->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const int64_t have = settings.fault == CudnnFault::kNoEngine ? 0 : kEngines;
    *count = requested == 0 ? have : std::min(have, requested);
    return HandOut(*from, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 0, requested == 0 ? 0 : *count,
                   elements);
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR &&
      from->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && requested == 1) {
    *count = 1;
    return HandOut(*from, CUDNN_BACKEND_ENGINE_DESCRIPTOR, from->engine, 1, elements);
  }
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE &&
      from->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    const cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                                 CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    // The first engine says that its bits do not repeat, which callers must heed.
    return CopyOut(notes, sizeof(notes[0]), from->engine == kDrawsBits ? 2 : 1, requested, count,
                   elements);
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 &&
      from->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Descriptor& config = *from->Of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    // The program is made again each time, since descriptors hold nothing but attributes.
    Program program;
    Compile(GraphOf(config), &program);
    const int64_t bytes = config.engine == kWantsTooMuch ? kTooMuch : program.workspace_bytes;
    return CopyOut(&bytes, sizeof(bytes), 1, requested, count, elements);
  }
  return RefuseCudnn(CUDNN_STATUS_BAD_PARAM,
                     "attribute " + std::to_string(name) + " cannot be queried like this");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_handle,
                                  cudnnBackendDescriptor_t pack_handle) {
  // The fault comes before all checks, as a real failure can come at any call.
  if (settings.fault == CudnnFault::kCannotExecute) {
    return RefuseCudnn(CUDNN_STATUS_EXECUTION_FAILED, "an injected fault");
  }
  if (handle == nullptr || !IsUsable(plan_handle) || !IsUsable(pack_handle)) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                       "the plan, the pointers, or what they were made of no longer exist");
  }
  const Descriptor& plan = *FindDescriptor(plan_handle);
  const Descriptor& pack = *FindDescriptor(pack_handle);
  if (plan.type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      pack.type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "not a plan and its pointers");
  }
  // A plan holds kernels of one device and one handle.
  if (plan.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != handle) {
    return RefuseCudnn(CUDNN_STATUS_BAD_PARAM, "the plan belongs to another handle");
  }
  const Descriptor& config = *plan.Of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (config.engine != kExecutes) {
    return RefuseCudnn(CUDNN_STATUS_NOT_SUPPORTED, "this engine is not emulated");
  }
  // The call outlives this function: its work runs later.
  auto call = std::make_shared<Call>();
  Compile(GraphOf(config), &call->program);
  call->ignore_mask = settings.fault == CudnnFault::kIgnoresMask;
  const cudnnStatus_t status = Bind(pack, handle->device, call.get());
  if (status != CUDNN_STATUS_SUCCESS) return status;
  ++executions;
  const cudaError_t error = EnqueueWork(handle->stream, "cudnnBackendExecute", [call] {
    // A workspace has no defined content, so a program that relies on it must fail.
    std::memset(call->workspace, 0xff, static_cast<size_t>(call->program.workspace_bytes));
    Run(call->program, call->addresses, call->scalars, call->ignore_mask);
    return true;
  });
  return error == cudaSuccess
             ? CUDNN_STATUS_SUCCESS
             : RefuseCudnn(CUDNN_STATUS_EXECUTION_FAILED, "the stream cannot be used");
}
