#pragma once
#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/figures.pb.h"
namespace tercio::plan::cost {
ClusterModel MeasuredCluster(const v1::MachineFigures& figures, int nodes, int ranks_per_node, double cores_per_rank);
v1::MachineFigures AssumedCpuFigures();
Constants CpuConstants();
const Recipe& CpuRecipe();
}
