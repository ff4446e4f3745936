#include "plan/planner/methods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plan/gpu_reserve.h"
#include "plan/planner/search.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

constexpr int kMostStages = 64;

v1::Layout WithDegrees(int tensor, int pipeline, int data) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_virtual_pipeline(1);
  layout.set_context_parallel(1);
  layout.set_data(data);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_recompute(v1::RECOMPUTE_NONE);
  layout.set_micro_batch(1);
  // As many as fill the pipeline: each stage holds activations of one for every stage behind it.
  layout.set_micro_batches(pipeline);
  return layout;
}

class Limits {
 public:
  Limits(const v1::JobSpec& job, const cost::ClusterModel& cluster)
      : job_(job), cluster_(cluster) {}

  std::vector<MethodLimit> Get() {
    const int devices = cluster_.devices();
    const int tensor = cluster_.devices_per_node;
    v1::Layout data = WithDegrees(1, 1, devices);
    Add("data parallel", {data});
    for (int stage = 1; stage <= 3 && devices > 1; ++stage) {
      data.set_zero_stage(stage);
      Add(absl::StrCat("data parallel, zero_stage ", stage), {data});
    }
    if (tensor > 1) {
      v1::Layout node = WithDegrees(tensor, 1, devices / tensor);
      Add("tensor parallel within a node", {node});
      node.set_sequence_parallel(true);
      Add("tensor and sequence parallel within a node", {node});
    }
    if (cluster_.nodes > 1) AddPipelines(tensor);
    return std::move(limits_);
  }

 private:
  void AddPipelines(int tensor) {
    std::vector<v1::Layout> layouts;
    for (int stages = 2; stages <= std::min(cluster_.nodes, kMostStages); ++stages) {
      if (cluster_.nodes % stages != 0) continue;
      v1::Layout layout = WithDegrees(tensor, stages, cluster_.nodes / stages);
      layout.set_sequence_parallel(tensor > 1);
      layouts.push_back(layout);
    }
    Add("tensor and pipeline parallel", layouts);
    for (v1::Layout& layout : layouts) layout.set_zero_stage(layout.data() > 1 ? 1 : 0);
    Add("tensor and pipeline parallel, zero_stage 1", layouts);
  }

  // The best of the layouts that are this method.
  void Add(const std::string& method, const std::vector<v1::Layout>& layouts) {
    for (const auto recompute : {v1::RECOMPUTE_NONE, v1::RECOMPUTE_FULL}) {
      MethodLimit best;
      best.method = method;
      for (v1::Layout layout : layouts) {
        layout.set_recompute(recompute);
        std::optional<LargestModel> largest = LargestWith(layout);
        if (best.layout.tensor() > 0 && Parameters(largest) <= Parameters(best.largest)) {
          continue;
        }
        best.layout = layout;
        best.largest = largest;
      }
      if (!layouts.empty()) limits_.push_back(std::move(best));
    }
  }

  static int64_t Parameters(const std::optional<LargestModel>& model) {
    return model.has_value() ? model->parameters : 0;
  }

  std::optional<LargestModel> LargestWith(const v1::Layout& layout) const {
    v1::JobSpec job = WithLayout(job_, layout);
    job.mutable_training()->set_global_batch(int64_t{layout.micro_batches()} * layout.data());
    const double available =
        cluster_.accelerator.memory_bytes - static_cast<double>(GpuReserveBytes(job, layout));
    if (available <= 0) return std::nullopt;
    return LargestModelThatFits(job, layout, /*threads=*/1, static_cast<int64_t>(available));
  }

  const v1::JobSpec& job_;
  const cost::ClusterModel& cluster_;
  std::vector<MethodLimit> limits_;
};

}  // namespace

std::vector<MethodLimit> LargestByMethod(const v1::JobSpec& job,
                                         const cost::ClusterModel& cluster) {
  return Limits(job, cluster).Get();
}

}  // namespace tercio::plan
