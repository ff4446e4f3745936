#include "plan/planner/cost/measured.h"
#include <algorithm>
namespace tercio::plan::cost {
ClusterModel MeasuredCluster(const v1::MachineFigures&, int nodes, int ranks_per_node, double cores_per_rank) {
  ClusterModel model;
  model.nodes = nodes;
  model.devices_per_node = ranks_per_node;
  Accelerator& a = model.accelerator;
  a.name = "cpu";
  a.flops_16 = a.flops_fp32 = a.flops_tf32 = 60e9 * cores_per_rank;
  a.memory_bytes_per_second = 10e9 * cores_per_rank;
  a.tiles_products = false;
  a.processors = 1;
  a.product_share = 1;
  a.sustained_share = 1;
  model.inside = {1e9, 0.3e-3 * std::max(1.0, 1 / cores_per_rank)};
  model.between = {1e9, 0.3e-3};
  model.interfaces_per_node = 1;
  return model;
}
v1::MachineFigures AssumedCpuFigures() { return {}; }
Constants CpuConstants() {
  Constants c;
  c.memory_share = 1;
  c.kernel_seconds = 2e-6;
  c.link_share = 1;
  c.network_share = 1;
  c.overlap_slowdown = 1;
  c.step_seconds = 1e-3;
  return c;
}
const Recipe& CpuRecipe() { return *FindRecipe("tercio"); }
}
