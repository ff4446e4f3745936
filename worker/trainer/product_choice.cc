#include "worker/trainer/product_choice.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/product_timing.h"
#include "kernels/cuda/scratch.h"
#include "plan/memory_map.h"
#include "worker/device/cuda_device.h"
#include "worker/engine/product_shapes.h"
#include "worker/trainer/product_table.h"

namespace tercio::trainer {
namespace {

using kernels::cuda::ProductAlgorithms;
using kernels::cuda::ProductEpilogue;
using kernels::cuda::ProductShape;

// How long to wait for another rank's timing, which takes seconds.
constexpr absl::Duration kPatience = absl::Minutes(10);

std::vector<ProductShape> Missing(const std::vector<ProductShape>& shapes,
                                  const ProductAlgorithms& algorithms) {
  std::vector<ProductShape> missing;
  for (const ProductShape& shape : shapes) {
    if (!algorithms.contains(shape)) missing.push_back(shape);
  }
  return missing;
}

// Times the shapes and adds the best to the algorithms. They are timed with what products have of
// any job's workspace, since jobs share the choice.
absl::Status Time(const std::vector<ProductShape>& shapes, device::Device& device,
                  ProductAlgorithms* algorithms) {
  const int64_t workspace_bytes = kernels::cuda::WorkspaceForTiming(shapes);
  // Both are given back when the timing ends, before the engine takes its arena.
  auto operands = device.Allocate(kernels::cuda::BytesForTiming(shapes));
  auto workspace = device.Allocate(workspace_bytes);
  // The library then chooses by itself: a GPU that is nearly full is no reason to fail.
  if (!operands.ok() || !workspace.ok()) {
    LogWarning(
        absl::StrCat("product algorithms are not timed: ",
                     std::string((operands.ok() ? workspace : operands).status().message())));
    return absl::OkStatus();
  }
  TERCIO_ASSIGN_OR_RETURN(const auto stream,
                          device.CreateStream(device::Device::StreamKind::kCompute));
  kernels::cuda::OperationErrors errors;
  kernels::cuda::TimeProducts(shapes, {(*operands)->data(), (*workspace)->data(), workspace_bytes},
                              device::HandleOf(*stream), algorithms, &errors);
  if (!errors.first()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("timing products: ", errors.first()->operation, ": ", errors.first()->what));
}

}  // namespace

absl::StatusOr<v1::ProductTable> ChooseProducts(const v1::TrainerAssignment& assignment,
                                                device::Device& device,
                                                collective::RendezvousStore& rendezvous,
                                                ProductAlgorithms* algorithms) {
  const v1::RankPlan& plan = assignment.plan();
  v1::ProductTable chosen;
  chosen.set_gpu(device.name());
  chosen.set_library(kernels::cuda::ProductLibrary());
  const int64_t workspace =
      std::min(kernels::cuda::kProductWorkspaceBytes,
               plan::FindBuffer(plan.stage().memory(), "workspace.device").size_bytes());
  const auto take = [&](const v1::ProductTable& table) {
    // Algorithms only mean something to the library, and on the GPU, that they were timed with.
    const bool ours = table.gpu() == chosen.gpu() && table.library() == chosen.library();
    if (ours) TakeProducts(table, workspace, algorithms);
  };
  // An earlier attempt has chosen these, and the run continues with the same bits.
  take(plan.stage().products());
  const std::vector<ProductShape> missing =
      Missing(engine::ProductShapes(assignment.spec(), plan), *algorithms);
  // This is the same on all ranks of a stage, so nobody waits for a choice that is not made.
  if (missing.empty()) return v1::ProductTable();
  const std::string key = absl::StrCat("products/", plan.placement().pipeline_index());
  // One rank of a stage times for all of them, since replicas must compute the same bits.
  if (plan.placement().tensor_index() > 0 || plan.placement().data_index() > 0) {
    TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> found, rendezvous.Get({key}, kPatience));
    v1::ProductTable table;
    if (found.size() != 1 || !table.ParseFromString(found[0])) {
      return absl::InternalError("the rendezvous returned something other than products");
    }
    take(table);
    return v1::ProductTable();
  }
  const ProductCache cache(assignment.data_cache_dir() + "/products", chosen.gpu(),
                           chosen.library());
  // Other jobs may have timed some of the products on this node.
  ProductAlgorithms known;
  TakeProducts(cache.Read(), workspace, &known);
  TERCIO_RETURN_IF_ERROR(Time(Missing(missing, known), device, &known));
  int separate = 0;
  for (ProductShape shape : missing) {
    if (known.contains(shape)) AddProduct(shape, known[shape], &chosen);
    if (shape.epilogue == ProductEpilogue::kNone) continue;
    if (known.contains(shape) && known[shape] == kernels::cuda::kSeparateEpilogue) ++separate;
    shape.epilogue = ProductEpilogue::kNone;  // as computed with a separate epilogue
    if (known.contains(shape)) AddProduct(shape, known[shape], &chosen);
  }
  if (separate > 0) {
    LogInfo(absl::StrCat(separate,
                         " products are faster with GELU, its gradient or the gradient of "
                         "the bias in a pass of its own, and are computed so"));
  }
  take(chosen);
  // The other ranks wait for this, so it precedes the cache.
  TERCIO_RETURN_IF_ERROR(rendezvous.Put(key, chosen.SerializeAsString()));
  const absl::Status kept = cache.Add(chosen);
  if (!kept.ok()) {
    LogWarning(absl::StrCat("product algorithms are not cached: ", std::string(kept.message())));
  }
  return chosen;
}

}  // namespace tercio::trainer
