// What a step of training runs on, as numbers: an accelerator, the links inside a node, the network
// between nodes. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/planner/cost/constants.h"

namespace tercio::plan::cost {

// One way, of one device or, between nodes, of one network interface.
struct Link {
  double bytes_per_second = 0;
  double seconds = 0;  // of a message without bytes, from kernel to kernel
};

// Bytes a second of kernels, by the bytes that the model counts for them. 0: the memory's bandwidth
// and memory_share say it.
struct KernelRates {
  double plain = 0;  // norms, residuals, copies
  double activation = 0;
  double loss = 0;
  double update = 0;  // the optimizer's, with the norm of the gradients
};

struct Accelerator {
  std::string_view name;
  std::string_view driver_name;  // a part of what its driver calls it
  // Dense operations a second (data sheet). 0: it has no such units.
  double flops_16 = 0;
  double flops_8 = 0;
  double flops_tf32 = 0;
  double flops_fp32 = 0;
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  // one way, to the other devices of its node
  // One way, to the memory of the host: what copies reach. 0: as of PCIe 4.
  double host_link_bytes_per_second = 0;
  // The rate of the host's memory for each device, where every few of them have a processor of
  // their own beside them; 0: they share that of a node.
  double host_memory_bytes_per_second = 0;
  int processors = 0;  // multiprocessors, which take the tiles of a product
  // Whether products are cut into tiles of fixed sizes; not so on CPUs.
  bool tiles_products = true;
  // Where they are not: seconds for each element of the factors and the result, which are packed,
  // read and written, beside the operations; and of a product without any. Without the first a
  // product takes the longer of operations and memory traffic, as on GPUs.
  double product_element_seconds = 0;
  double product_seconds = 0;
  KernelRates kernels;
  // Bytes of an activation in memory and in messages; 0: those of its format.
  int value_bytes = 0;
  // The best product that anybody has measured in 16 bits, as a share of flops_16.
  double product_share = 0;
  // The share of that product's rate that a long run keeps, at the clock which its power allows.
  double sustained_share = 0;
  // Products whose rows are no whole vectors of 16 bytes, as a share of flops_16; 0: as others.
  double unaligned_share = 0;
  // The share of its rate that kernels reach which use the instructions of earlier generations.
  double legacy_share = 1;
  std::string_view source;
};

// All accelerators with known figures.
const std::vector<Accelerator>& Accelerators();

// By its name in the catalogue; NOT_FOUND names the nearest ones.
absl::StatusOr<Accelerator> AcceleratorOf(std::string_view name);

// By what a driver calls it ("NVIDIA H100 80GB HBM3"); nullptr: none.
const Accelerator* FindDriverName(std::string_view name);

// What a node has beside its devices, for state that is offloaded (offload_time.h). All of it is
// assumed until somebody knows better.
struct Host {
  double link_bytes_per_second = 25e9;     // one way, of each device
  double memory_bytes_per_second = 300e9;  // read and written together, of a node
  double memory_bytes = 0;                 // a node's memory; 0: not known
  double disk_bytes_per_second = 1.1e9;    // read and written together, of a node's scratch disk
};

struct ClusterModel {
  std::string name = {};  // names its kind of nodes, where there are several
  Accelerator accelerator;
  int nodes = 1;
  int devices_per_node = 1;
  Link inside;   // of each device
  Link between;  // of each network interface
  int interfaces_per_node = 1;
  // Devices of a node that its ranks take turns on, where there are fewer than ranks; a rank is
  // never on more than one. 0: every rank has its own.
  double shared_devices = 0;
  Host host;
  // The model's constants where they are not those of GPUs, instead of those of StepInput.
  std::optional<Constants> constants;
  // Kinds of nodes in the order of the ranks, where there are several: all figures above are then
  // those of JoinGroups (plan/planner/cost/node_groups.h).
  std::vector<ClusterModel> groups = {};

  int devices() const {
    if (groups.empty()) return nodes * devices_per_node;
    int all = 0;
    for (const ClusterModel& group : groups) all += group.devices();
    return all;
  }
};

// What is assumed of the host of so many such devices (docs/planner.md).
Host AssumedHost(const Accelerator& accelerator, int devices);

// The cluster of `nodes` nodes in which the accelerators are linked as the catalogue says, and with
// the latencies of NCCL on such links.
ClusterModel MakeCluster(const Accelerator& accelerator, int devices_per_node, int nodes,
                         int interfaces_per_node, double interface_bytes_per_second);

// INVALID_ARGUMENT names the figure that is missing, zero or negative, and what it should be.
absl::Status CheckCluster(const ClusterModel& cluster);

// Sentences about figures that no known hardware has: most likely bits were taken for bytes, or
// giga for tera.
std::vector<std::string> ImplausibleFigures(const ClusterModel& cluster);

}  // namespace tercio::plan::cost
