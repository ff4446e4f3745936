// What a rank takes of its GPU's memory beside its plan: CUDA's context, and the communicators of
// NCCL, which depend on the layout. Pure; the planner, the check of a job that is submitted and the
// trainer's bound use the same functions.
#pragma once

#include <cstdint>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// The communicators of a rank. Groups of the same ranks share one, a group of one rank has none,
// and pipeline stages have one for each direction of each edge, since calls of a communicator run
// one after the other.
struct NcclCommunicators {
  bool wide_world = false;   // the world's is also that of its tensor or data group
  bool closes_ring = false;  // messages between the last stage and the first: of several chunks
  bool is_tied = false;      // gradients of a tied embedding between the same two
  int wide = 0;              // of groups that sum gradients or activations
  int narrow = 0;            // the world's, where it sums only losses and norms
  int edges = 0;             // of the stage that has most
};
NcclCommunicators CommunicatorsOf(const v1::ModelSpec& model, const v1::Layout& layout);

// Channels of NCCL, each a block of a GPU and buffers of its own. A narrow communicator sums some
// kilobytes; an edge carries activations beside products, to one other GPU.
inline constexpr int kNarrowChannels = 1;
inline constexpr int kEdgeChannels = 8;

// Driver and context (0.5 GiB on an H100), and the modules of cuBLASLt, cuDNN and our own kernels,
// which are loaded at their first use.
inline constexpr int64_t kGpuContextBytes = int64_t{1536} << 20;
// Reported for A100s on NVLink: 544 MiB for a group of two, 688 MiB for more (NVIDIA/nccl issue
// 964). From Hopper on there are buffers of NVLink SHARP, too.
inline constexpr int64_t kWideCommunicatorBytes = int64_t{768} << 20;
inline constexpr int64_t kNarrowCommunicatorBytes = int64_t{64} << 20;
// 10 MiB to receive and 2 MiB to send for each channel (NVIDIA/nccl issue 1685).
inline constexpr int64_t kEdgeBytes = int64_t{128} << 20;

// What communicators of the job take on a GPU; 0 where its collectives go over the host.
int64_t NcclBytes(const v1::JobSpec& job, const v1::Layout& layout);
// With the context: what plans leave free. Not measured on a GPU yet.
int64_t GpuReserveBytes(const v1::JobSpec& job, const v1::Layout& layout);

}  // namespace tercio::plan
