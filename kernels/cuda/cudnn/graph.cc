#include "kernels/cuda/cudnn/graph.h"

#include <algorithm>

namespace tercio::kernels::cuda {
namespace {

CudnnDims Dense(const CudnnDims& dims) {
  // Tensors have four dimensions, the last of which is contiguous.
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

// The format that an operation computes in, by that of its result.
cudnnDataType_t ComputeType(cudnnDataType_t result) {
  // A comparison has no numbers to compute with.
  return result == CUDNN_DATA_BOOLEAN ? result : CUDNN_DATA_FLOAT;
}

}  // namespace

CudnnDescriptor CudnnCalls::Create(cudnnBackendDescriptorType_t type, const std::string& what) {
  // After the first failure nothing is called, so that its reason is the one that is kept.
  if (!ok()) return {};
  // The name is kept before the call, for a message about whatever fails next.
  what_ = what;
  cudnnBackendDescriptor_t descriptor = nullptr;
  Check(library_.create_descriptor(type, &descriptor));
  if (!ok()) return {};
  return {library_, descriptor};
}

void CudnnCalls::Check(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  status_ = status;
  failure_ = what_ + ": " + Explain(library_, status);
}

CudnnGraph::Id CudnnGraph::Tensor(cudnnDataType_t type, const CudnnDims& dims,
                                  const CudnnDims& strides, Place place, int64_t alignment) {
  // Ids begin at 1, so that an id that was never set is no tensor.
  const auto id = static_cast<Id>(tensors_.size()) + 1;
  CudnnDescriptor tensor =
      calls_.Create(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor " + std::to_string(id));
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims.data(), 4);
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(), 4);
  // All pointers that Execute gets are multiples of this.
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  // A virtual tensor never reaches memory, so the library can fuse the operations around it.
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, place == Place::kGraph);
  calls_.Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, place == Place::kArgument);
  calls_.Finalize(tensor);
  tensors_.push_back({kept_.size(), type});
  // Operations refer to descriptors by address, so all of them live as long as the plan.
  kept_.push_back(std::move(tensor));
  return id;
}

CudnnGraph::Id CudnnGraph::Virtual(cudnnDataType_t type, const CudnnDims& dims) {
  return Virtual(type, dims, Dense(dims));
}

void CudnnGraph::Add(CudnnDescriptor operation) {
  calls_.Finalize(operation);
  operations_.push_back(operation.get());
  kept_.push_back(std::move(operation));
}

void CudnnGraph::Matmul(Id a, Id b, Id c, const Sizes& sizes) {
  CudnnDescriptor matmul = calls_.Create(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product");
  // Sums are fp32 whatever the operands are.
  calls_.Set(matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  calls_.Finalize(matmul);
  CudnnDescriptor operation =
      calls_.Create(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "the product " + std::to_string(c));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, matmul);
  calls_.Set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, At(a));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, At(b));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, At(c));
  const auto limit = [&](cudnnBackendAttributeName_t name, std::optional<Id> size) {
    if (size) calls_.Set(operation, name, At(*size));
  };
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.rows);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.columns);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.depth);
  // The descriptor outlives this call, since the operation refers to it.
  kept_.push_back(std::move(matmul));
  Add(std::move(operation));
}

void CudnnGraph::Pointwise(cudnnPointwiseMode_t mode, Id x, std::optional<Id> b,
                           std::optional<Id> where, Id y, int64_t axis) {
  CudnnDescriptor pointwise = calls_.Create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "a function");
  calls_.Set(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  calls_.Set(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
             ComputeType(TypeOf(y)));
  // Only indices have an axis, and the library refuses it elsewhere.
  if (axis >= 0) calls_.Set(pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  calls_.Finalize(pointwise);
  CudnnDescriptor operation = calls_.Create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                            "the function " + std::to_string(y));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise);
  calls_.Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, At(x));
  if (b) calls_.Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, At(*b));
  if (where) calls_.Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, At(*where));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, At(y));
  kept_.push_back(std::move(pointwise));
  Add(std::move(operation));
}

void CudnnGraph::Index(int64_t dimension, Id x, Id y) {
  Pointwise(CUDNN_POINTWISE_GEN_INDEX, x, {}, {}, y, dimension);
}

void CudnnGraph::Reduce(cudnnReduceTensorOp_t reduction, Id x, Id y) {
  CudnnDescriptor reduce = calls_.Create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction");
  calls_.Set(reduce, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, reduction);
  calls_.Set(reduce, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  calls_.Finalize(reduce);
  CudnnDescriptor operation = calls_.Create(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                                            "the reduction " + std::to_string(y));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduce);
  calls_.Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, At(x));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, At(y));
  kept_.push_back(std::move(reduce));
  Add(std::move(operation));
}

void CudnnGraph::Reshape(Id x, Id y) {
  CudnnDescriptor operation =
      calls_.Create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "the view " + std::to_string(y));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, At(x));
  calls_.Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, At(y));
  Add(std::move(operation));
}

std::vector<CudnnDescriptor> CudnnGraph::Ranking(const CudnnDescriptor& graph,
                                                 const CudnnPlanOptions& options) {
  const CudnnDescriptor ranking =
      calls_.Create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the ranking of engines");
  calls_.Set(ranking, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  // Mode A ranks by the library's own experience, and runs nothing on the device.
  calls_.Set(ranking, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  // With a description of a device the ranking needs no GPU, which the tests use.
  if (options.device != nullptr) {
    calls_.Set(ranking, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               options.device);
  }
  calls_.Finalize(ranking);
  // A query for none returns the number of results.
  const int64_t count = calls_.Get<cudnnBackendDescriptor_t>(
      ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
  std::vector<CudnnDescriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  // The library fills descriptors that exist, so as many are made first.
  for (int64_t i = 0; i < count; ++i) {
    configs.push_back(calls_.Create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine"));
    raw.push_back(configs.back().get());
  }
  if (raw.empty()) return {};
  const int64_t written = calls_.Get(ranking, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, count, raw.data());
  // Fewer may have been written than were announced.
  configs.resize(static_cast<size_t>(std::min(count, written)));
  return configs;
}

// The configuration of the engine that the options name.
CudnnDescriptor CudnnGraph::Configure(const CudnnDescriptor& graph,
                                      const CudnnPlanOptions& options) {
  const std::string name = "engine " + std::to_string(options.engine->index);
  CudnnDescriptor engine = calls_.Create(CUDNN_BACKEND_ENGINE_DESCRIPTOR, name);
  calls_.Set(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  calls_.Set(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, options.engine->index);
  if (options.device != nullptr) {
    calls_.Set(engine, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, options.device);
  }
  calls_.Finalize(engine);
  std::vector<cudnnBackendDescriptor_t> choices;
  for (const auto& [knob, value] : options.engine->knobs) {
    CudnnDescriptor choice = calls_.Create(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                           name + ", knob " + std::to_string(knob));
    calls_.Set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, knob);
    calls_.Set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
    calls_.Finalize(choice);
    choices.push_back(choice.get());
    kept_.push_back(std::move(choice));
  }
  CudnnDescriptor config = calls_.Create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, name);
  calls_.Set(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  calls_.Set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             choices.data(), static_cast<int64_t>(choices.size()));
  calls_.Finalize(config);
  kept_.push_back(std::move(engine));
  return config;
}

std::optional<CudnnPlan> CudnnGraph::Finish(const CudnnDescriptor& config,
                                            const CudnnPlanOptions& options) {
  // An engine that fails must not end the search, so it has calls of its own.
  CudnnCalls calls(library_);
  const CudnnDescriptor engine = calls.Create(CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
  cudnnBackendDescriptor_t raw = engine.get();
  calls.Get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes = {};
  const int64_t count = calls.Get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                  CUDNN_TYPE_NUMERICAL_NOTE, notes.size(), notes.data());
  // Training has to repeat its bits.
  if (std::count(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) {
    failure_ = "an engine whose results do not repeat bit for bit";
    return std::nullopt;
  }
  CudnnPlan made;
  made.plan = calls.Create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
  calls.Set(made.plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (options.device != nullptr) {
    calls.Set(made.plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              options.device);
  } else {
    calls.Set(made.plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, options.handle);
  }
  calls.Finalize(made.plan);
  calls.Get(made.plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
            &made.workspace_bytes);
  failure_ = calls.failure();
  if (!calls.ok()) return std::nullopt;
  // The library would write past its workspace.
  if (made.workspace_bytes > options.workspace_bytes) {
    failure_ = "needs a workspace of " + std::to_string(made.workspace_bytes) +
               " bytes, but there are " + std::to_string(options.workspace_bytes);
    return std::nullopt;
  }
  return made;
}

std::optional<CudnnPlan> CudnnGraph::Plan(const CudnnPlanOptions& options) {
  CudnnDescriptor graph = calls_.Create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
  calls_.Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             operations_.data(), static_cast<int64_t>(operations_.size()));
  // Without a handle the graph belongs to no device, as in the tests.
  if (options.handle != nullptr) {
    calls_.Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, options.handle);
  }
  calls_.Finalize(graph);
  std::vector<CudnnDescriptor> configs;
  if (options.engine) {
    configs.push_back(Configure(graph, options));
  } else {
    configs = Ranking(graph, options);
  }
  failure_ = calls_.ok() ? "no engine supports it" : calls_.failure();
  if (!calls_.ok()) return std::nullopt;
  // The first engine in the library's order that fits is taken.
  for (CudnnDescriptor& config : configs) {
    auto made = Finish(config, options);
    if (!made) continue;
    // What the plan needs is handed over only now, as a failed engine leaves it to the next one.
    made->kept = std::move(kept_);
    made->kept.push_back(std::move(graph));
    made->kept.push_back(std::move(config));
    return made;
  }
  return std::nullopt;
}

namespace {

CudnnDescriptor Pack(const CudnnPointers& pointers, void* workspace, CudnnCalls& calls) {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const auto& [id, pointer] : pointers) {
    ids.push_back(id);
    // The interface has one type for inputs and outputs.
    addresses.push_back(const_cast<void*>(pointer));
  }
  const auto count = static_cast<int64_t>(ids.size());
  CudnnDescriptor pack = calls.Create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the pointers");
  calls.Set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.data(), count);
  calls.Set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses.data(),
            count);
  calls.Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  calls.Finalize(pack);
  return pack;
}

}  // namespace

std::string Execute(const CudnnLibrary& library, cudnnHandle_t handle, CudnnPlan& plan,
                    const CudnnPointers& pointers, void* workspace) {
  std::pair key(pointers, workspace);
  auto known = plan.packs.find(key);
  if (known == plan.packs.end()) {
    CudnnCalls calls(library);
    CudnnDescriptor pack = Pack(pointers, workspace, calls);
    if (!calls.ok()) return calls.failure();
    // A caller whose pointers never come back must not fill the memory.
    if (plan.packs.size() == kMostCudnnPacks) plan.packs.clear();
    known = plan.packs.emplace(std::move(key), std::move(pack)).first;
  }
  const cudnnStatus_t status = library.execute(handle, plan.plan.get(), known->second.get());
  return status == CUDNN_STATUS_SUCCESS ? "" : Explain(library, status);
}

}  // namespace tercio::kernels::cuda
