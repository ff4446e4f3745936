// Seconds of a model's units (the embedding, each kind of layer, the head) for one micro-batch on
// one rank: their products, attention, elementwise kernels, and sums over tensor ranks. Pure.
#pragma once

#include <vector>

#include "model/architecture.h"
#include "plan/planner/cost/collective_time.h"
#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan::cost {

// The format of products' factors in the job's precision; those of layers may be of 8 bits.
Factor FactorOf(const v1::JobSpec& job);

struct PassTime {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  double communication = 0;  // over tensor ranks

  double compute() const { return products + attention + elementwise; }
  double total() const { return compute() + communication; }
  PassTime& operator+=(const PassTime& other);
};

struct UnitTime {
  PassTime forward;
  PassTime backward;
  PassTime recompute;  // before the backward pass
  double weights = 0;  // elements on this rank

  UnitTime& operator+=(const UnitTime& other);
};

struct UnitTimes {
  UnitTime embedding;
  std::vector<UnitTime> kinds;  // of model::Architecture
  UnitTime head;
  double head_gradient = 0;  // of its matrix, which is a part of its backward pass
};
UnitTimes TimesOfUnits(const model::Architecture& architecture, const v1::JobSpec& job,
                       const v1::Layout& layout, const ClusterModel& cluster, const Recipe& recipe,
                       const Constants& constants);

}  // namespace tercio::plan::cost
