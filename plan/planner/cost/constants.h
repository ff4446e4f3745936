// The numbers of the cost model that no data sheet gives, with where they come from
// (docs/planner.md). There is one set for all GPUs, software and models; those of CPUs are measured
// on the machine (measured.h).
#pragma once

namespace tercio::plan::cost {

struct Constants {
  // Products.
  // Elements of the inner dimension that a tile's start and end cost.
  double product_depth = 145;
  double fp8_share = 0.91;  // of the best 16-bit share, reached by 8-bit products

  // Memory and kernels.
  double memory_share = 0.73;      // of the data sheet's bandwidth, in elementwise kernels
  double kernel_seconds = 4.5e-6;  // between the end of a kernel and the start of the next

  // Attention in one kernel, as shares of the best product: forward, backward.
  double flash_forward = 0.48;
  double flash_backward = 0.39;
  double flash2_forward = 0.70;
  double flash2_backward = 0.52;
  double hopper_forward = 0.60;
  double hopper_backward = 0.48;
  double flash3_forward = 0.80;
  double flash3_backward = 0.64;
  // Neighbouring queries whose kernel computes all pairs up to the last key that one of them sees.
  double attention_block = 0;

  // Communication.
  double link_share = 0.80;        // of the link's bandwidth inside a node
  double network_share = 0.87;     // likewise between nodes
  double overlap_slowdown = 0.15;  // of compute, while a collective runs beside it

  double step_seconds = 10e-3;  // of the host and of small kernels in each step
};

}  // namespace tercio::plan::cost
