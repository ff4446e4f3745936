#include "worker/inference/adapter_set.h"

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"
#include "worker/inference/load_weights.h"

namespace tercio::inference {
namespace {

using blocks::ChosenAdapter;

// Rows of one adapter that are worked on at once: as many as leave the scratch in the cache.
constexpr int64_t kScratchRows = 256;
constexpr int64_t kAlignment = 16;  // elements, as in plan::StageTensors

int64_t Aligned(int64_t elements) { return (elements + kAlignment - 1) / kAlignment * kAlignment; }

// What of the model's tensors is the adapter's, with places of their own: those that follow each
// other as one matrix still do.
plan::StageTensors TensorsOfAdapter(const v1::ModelSpec& adapted) {
  v1::Layout one_rank;
  one_rank.set_tensor(1);
  one_rank.set_pipeline(1);
  one_rank.set_virtual_pipeline(1);
  one_rank.set_context_parallel(1);
  one_rank.set_data(1);
  plan::StageTensors of_adapter;
  int64_t end = 0;
  for (plan::StageTensor& entry : plan::TensorsOfStage(adapted, one_rank, 0).tensors) {
    if (!entry.tensor.of_adapter) continue;
    entry.parameter_offset = entry.tensor.continues ? end : Aligned(end);
    end = entry.parameter_offset + entry.elements;
    of_adapter.tensors.push_back(std::move(entry));
  }
  of_adapter.parameter_elements = Aligned(end);
  return of_adapter;
}

// Floats of each scratch.
struct ScratchPlan {
  int64_t kept = 0;
  int64_t output = 0;
  int64_t input = 0;
  int64_t bytes() const { return (kept + output + input) * int64_t{sizeof(float)}; }
};

ScratchPlan PlanScratch(absl::Span<const v1::ModelSpec> adapted, const plan::StageShape& shape) {
  ChosenAdapter::Widths widths;
  for (const v1::ModelSpec& model : adapted) widths.Cover(ChosenAdapter::WidthsOf(model));
  return {.kept = Aligned(kScratchRows * widths.kept),
          .output = Aligned(kScratchRows * widths.output),
          .input = Aligned(shape.most().rows * widths.input)};
}

}  // namespace

int64_t AdapterSet::PlanBytes(absl::Span<const v1::ModelSpec> adapted,
                              const plan::StageShape& shape) {
  int64_t bytes = PlanScratch(adapted, shape).bytes();
  for (const v1::ModelSpec& model : adapted) {
    bytes += TensorsOfAdapter(model).parameter_elements * int64_t{sizeof(float)};
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<AdapterSet>> AdapterSet::Load(
    absl::Span<const std::unique_ptr<checkpoint::WeightSource>> adapted,
    const plan::StageShape& shape, device::Device& device, int threads) {
  std::unique_ptr<AdapterSet> set(new AdapterSet());
  if (adapted.empty()) return set;
  const auto allocate = [&](int64_t bytes) -> absl::StatusOr<float*> {
    TERCIO_ASSIGN_OR_RETURN(auto memory, device.Allocate(bytes));
    TERCIO_CHECK(memory->IsOnHost());
    set->memory_.push_back(std::move(memory));
    return reinterpret_cast<float*>(set->memory_.back()->data());
  };
  std::vector<v1::ModelSpec> models;
  for (const auto& source : adapted) models.push_back(source->model());
  const ScratchPlan plan = PlanScratch(models, shape);
  TERCIO_ASSIGN_OR_RETURN(float* const floats, allocate(plan.bytes()));
  const ChosenAdapter::Scratch scratch = {.rows = kScratchRows,
                                          .kept = floats,
                                          .output = floats + plan.kept,
                                          .input = floats + plan.kept + plan.output};
  for (size_t i = 0; i < models.size(); ++i) {
    const plan::StageTensors tensors = TensorsOfAdapter(models[i]);
    TERCIO_ASSIGN_OR_RETURN(float* const values,
                            allocate(tensors.parameter_elements * int64_t{sizeof(float)}));
    TERCIO_RETURN_IF_ERROR(LoadWeights(*adapted[i], tensors, threads, values));
    set->adapters_.emplace_back(models[i], tensors, values, scratch);
  }
  return set;
}

}  // namespace tercio::inference
