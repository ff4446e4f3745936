// The cluster file of `tercio plan --cluster`: what a plan is made for, without the cluster being
// there (docs/planner.md). Strict YAML:
//
//   nodes:
//     - count: 384
//       gpus: 8
//       gpu: a100-80gb                    # a name of the catalogue, or a map of figures
//       intra_node_bandwidth: 300GB/s     # left out: the catalogue's
//       nics: [{kind: infiniband, count: 8, bandwidth: 25GB/s}]
//     - {count: 16, gpus: 8, gpu: v100-32gb, nics: [{count: 4, bandwidth: 12.5GB/s}]}
//   interconnect: {kind: ethernet, count: 1, bandwidth: 25Gb/s}    # between kinds of nodes
//   cost: {per_device_hour: 1.8, currency: EUR}
//   faults: {node_mtbf: 240d, restart: 10m, checkpoint_pause: 5s}
//
// Every fault is reported in one message, one line each: FILE:LINE: KEY: what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/experiment_file.h"
#include "config/faults_section.h"
#include "plan/planner/cost/hardware.h"

namespace tercio::config {

struct ClusterFile {
  plan::cost::ClusterModel cluster;  // its groups are the kinds of nodes, where there are several
  std::optional<DeviceCost> cost;
  FaultFigures faults;
  // What is valid, but hardly meant: bits that were taken for bytes, for example.
  std::vector<std::string> notices;
};

// `what_if`: figures that are changed, "nic.bandwidth=50GB/s", of one of several kinds of nodes
// "nodes[1].nic.bandwidth=50GB/s". NOT_FOUND when there is no such
// file; INVALID_ARGUMENT with all faults.
absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& path,
                                             const std::vector<std::string>& what_if);

}  // namespace tercio::config
