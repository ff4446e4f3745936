// Seconds of one training step of a model in a layout on a cluster, and where they go. Pure.
//
// A step is: passes of all micro-batches through the pipeline (pipeline_time.h), whose parts take
// the time of their units (unit_time.h); what data ranks exchange, as far as it is not hidden
// behind passes; the optimizer. docs/planner.md has the formulas, their sources and the errors on
// published measurements.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/pipeline_time.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan::cost {

// The parts add up to seconds. Those of passes are of the busiest stage.
struct StepCost {
  double seconds = 0;

  double compute = 0;
  double tensor_communication = 0;
  double recompute = 0;  // with what tensor ranks exchange for it
  double pipeline_bubble = 0;
  double pipeline_transfers = 0;
  double data_exposed = 0;  // gradients and weights between data ranks
  double optimizer = 0;
  double other = 0;    // the host's, and waiting for slower ranks
  double offload = 0;  // what state elsewhere adds to passes and to the optimizer (offload_time.h)

  double tokens_per_second = 0;
  // Floating-point operations of each device in a second: those of the model, and with what is
  // computed again.
  double model_flops = 0;
  double hardware_flops = 0;
};

struct StepInput {
  const v1::JobSpec& job;
  const v1::Layout& layout;
  const ClusterModel& cluster;
  const Recipe& recipe;
  Constants constants = {};
  std::vector<int> layers = {};  // of places; empty: LayersOfPlaces (plan/stage_layers.h)
};

// Layers of places so that the slowest one is as fast as can be, with embedding and head as work,
// and on the devices that each stage is on.
std::vector<int> BalancedLayers(const StepInput& input);

// REQUIRES: CheckCluster(cluster), degrees that the model's sizes can be divided by, micro-batches
// that the schedule can be made of, a known vocabulary.
StepCost CostOfStep(const StepInput& input, PipelineWalks* walks);

// A step as it runs: its passes and what follows them. What a drawing or a simulation of it needs.
struct StepTiming {
  ScheduleShape shape;
  PipelineCost pipeline;
  std::vector<double> recompute;  // of each place: the part of a backward pass that it begins with
  double head_gradient = 0;       // what the last stage does behind its last pass
  // What data ranks of each stage exchange behind its last pass, as far as nothing hides it.
  std::vector<double> exchange;
  double optimizer = 0;   // with what it takes longer where its state lies elsewhere
  double tied_table = 0;  // summed between first and last stage when all of that is done
  StepCost cost;
};
// REQUIRES: as CostOfStep.
StepTiming TimingOfStep(const StepInput& input, PipelineWalks* walks);

StepCost CostOfStep(const v1::JobSpec& job, const v1::Layout& layout, const ClusterModel& cluster,
                    const Recipe& recipe);

// The same for many layouts of one job on one cluster: what they have in common, such as the times
// of units or walks through pipelines, is computed once. Not for several threads at a time.
class StepCosts {
 public:
  // All but the constants must outlive it.
  StepCosts(const v1::JobSpec& job, const ClusterModel& cluster, const Recipe& recipe,
            const Constants& constants = {});
  ~StepCosts();
  StepCosts(const StepCosts&) = delete;
  StepCosts& operator=(const StepCosts&) = delete;

  // CostOfStep.
  StepCost Of(const v1::Layout& layout);
  // BalancedLayers.
  std::vector<int> Balanced(const v1::Layout& layout);
  // Seconds that Of does not fall below, for much less work: those of the stage that has most to
  // do, with what has to happen before its first pass and behind its last one, of what the first
  // stage exchanges with its data ranks after that, and of the optimizer.
  double Least(const v1::Layout& layout);
  // PipelineWalks::played.
  int64_t played() const;

 private:
  struct Common;
  std::unique_ptr<Common> common_;
};

}  // namespace tercio::plan::cost
