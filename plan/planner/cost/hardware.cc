#include "plan/planner/cost/hardware.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/nearest.h"

namespace tercio::plan::cost {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
// Messages between kernels over NVLink and over InfiniBand or RoCE (NCCL's simple protocol).
constexpr double kInsideSeconds = 3.5e-6;
constexpr double kBetweenSeconds = 10e-6;
// BigScience's runs with heads of 108, 150 and 450 (A100) and 145 channels (V100), compared with
// those of whole vectors.
constexpr double kUnaligned = 0.064;
constexpr double kUnalignedOfVolta = 0.22;
// What copies reach over 16 lanes of PCIe 3, 4 and 5, some 80 % of what the lanes carry; and over
// the links from chip to chip of Grace, whose memory is that of one or two GPUs (NVIDIA's data
// sheets).
constexpr double kPcie3 = 12.5e9;
constexpr double kPcie4 = 25e9;
constexpr double kPcie5 = 50e9;
constexpr double kGraceLink = 450e9;
constexpr double kGraceMemory = 384e9;
constexpr double kHalfGraceLink = 225e9;
constexpr double kHalfGraceMemory = 250e9;
constexpr double kHostMemoryOfDevice = 128e9;  // bytes: nodes of eight GPUs have 1 or 2 TB
// Since Hopper, warps that multiply alone leave a part of the tensor cores idle (Shah et al. 2024,
// FlashAttention-3).
constexpr double kLegacyShare = 0.62;

Accelerator Make(std::string_view name, std::string_view driver_name, double tera_16, double tera_8,
                 double tera_tf32, double tera_fp32, double memory_giga, double memory_tera,
                 double link_giga, int processors, double product_share, double sustained_share,
                 std::string_view source) {
  return {.name = name,
          .driver_name = driver_name,
          .flops_16 = tera_16 * kTera,
          .flops_8 = tera_8 * kTera,
          .flops_tf32 = tera_tf32 * kTera,
          .flops_fp32 = tera_fp32 * kTera,
          .memory_bytes = memory_giga * kGiga,
          .memory_bytes_per_second = memory_tera * kTera,
          .link_bytes_per_second = link_giga * kGiga,
          .host_link_bytes_per_second = kPcie4,
          .processors = processors,
          .product_share = product_share,
          .sustained_share = sustained_share,
          .unaligned_share = kUnaligned,
          .source = source};
}

Accelerator Volta(Accelerator accelerator) {
  accelerator.unaligned_share = kUnalignedOfVolta;
  accelerator.host_link_bytes_per_second = kPcie3;
  return accelerator;
}

// And later generations.
Accelerator Hopper(Accelerator accelerator) {
  accelerator.legacy_share = kLegacyShare;
  accelerator.host_link_bytes_per_second = kPcie5;
  return accelerator;
}

Accelerator OnHost(Accelerator accelerator, double link, double memory = 0) {
  accelerator.host_link_bytes_per_second = link;
  accelerator.host_memory_bytes_per_second = memory;
  return accelerator;
}

absl::Status Missing(std::string_view figure, double value, std::string_view instead) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "cluster: %s is %g; give %s", std::string(figure), value, std::string(instead)));
}

}  // namespace

const std::vector<Accelerator>& Accelerators() {
  constexpr char kSheet[] = "NVIDIA's data sheet; best product: stas00/ml-engineering";
  constexpr char kSheetOnly[] = "NVIDIA's data sheet; best product: assumed from its generation";
  constexpr char kAmd[] = "AMD's data sheet; best product: assumed";
  // Driver's names stand before those that they contain.
  // Name, driver's name, TFLOP/s in 16 bits, 8 bits, TF32, fp32, memory GB, TB/s, link GB/s,
  // processors, shares.
  static const auto* const kAll = new std::vector<Accelerator>{
      Hopper(Make("H100-96", "H100 96GB HBM2e", 989, 1979, 494, 67, 96, 2.4, 450, 132, 0.72, 0.80,
                  "pytorch/torchtitan: HBM2e, 500 W; best product: assumed from its power")),
      Volta(Make("V100-16", "V100-SXM2-16GB", 125, 0, 0, 15.7, 16, 0.9, 150, 80, 0.85, 0.89,
                 kSheetOnly)),
      Make("A100-40", "A100-SXM4-40GB", 312, 0, 156, 19.5, 40, 1.555, 300, 108, 0.869, 0.89,
           kSheet),
      Volta(Make("V100-DGX2H", "V100-SXM3", 130, 0, 0, 16.3, 32, 0.9, 150, 80, 0.85, 0.89,
                 kSheetOnly)),
      Make("A100-PCIe", "A100-PCIE", 312, 0, 156, 19.5, 80, 1.94, 32, 108, 0.81, 0.89, kSheet),
      Hopper(Make("H100-PCIe", "H100 PCIe", 756, 1513, 378, 51, 80, 2.0, 64, 114, 0.80, 0.80,
                  kSheetOnly)),
      Hopper(Make("H100-NVL", "H100 NVL", 835, 1671, 417, 60, 94, 3.9, 300, 132, 0.80, 0.80,
                  kSheetOnly)),
      Hopper(Make("H200-NVL", "H200 NVL", 835, 1671, 417, 60, 141, 4.8, 450, 132, 0.80, 0.80,
                  kSheetOnly)),
      // One of its two dies, which programs see as a device.
      Make("MI250X", "MI250X", 191.5, 0, 0, 47.9, 64, 1.6, 100, 110, 0.75, 0.89, kAmd),
      OnHost(Make("MI300X", "MI300X", 1307, 2615, 654, 163, 192, 5.3, 448, 304, 0.58, 0.89, kAmd),
             kPcie5),
      OnHost(Hopper(Make("GH200", "GH200", 989, 1979, 494, 67, 96, 4.0, 450, 132, 0.838, 0.80,
                         kSheet)),
             kGraceLink, kGraceMemory),
      OnHost(Hopper(Make("GB200", "GB200", 2500, 5000, 1250, 80, 186, 8, 900, 148, 0.776, 0.80,
                         kSheetOnly)),
             kHalfGraceLink, kHalfGraceMemory),
      Volta(Make("V100-32", "V100", 125, 0, 0, 15.7, 32, 0.9, 150, 80, 0.85, 0.89, kSheetOnly)),
      Make("A100-80", "A100", 312, 0, 156, 19.5, 80, 2.04, 300, 108, 0.869, 0.89, kSheet),
      Make("A800-80", "A800", 312, 0, 156, 19.5, 80, 2.04, 200, 108, 0.869, 0.89, kSheetOnly),
      Hopper(Make("H100", "H100", 989, 1979, 494, 67, 80, 3.35, 450, 132, 0.803, 0.80, kSheet)),
      Hopper(Make("H800", "H800", 989, 1979, 494, 67, 80, 3.35, 200, 132, 0.803, 0.80, kSheetOnly)),
      Hopper(Make("H200", "H200", 989, 1979, 494, 67, 141, 4.8, 450, 132, 0.803, 0.80, kSheet)),
      Hopper(Make("B200", "B200", 2250, 4500, 1125, 80, 180, 8, 900, 148, 0.776, 0.80, kSheet)),
      Make("L40S", "L40S", 362, 733, 183, 91.6, 48, 0.864, 32, 142, 0.70, 0.80, kSheetOnly),
  };
  return *kAll;
}

const Accelerator* FindDriverName(std::string_view name) {
  for (const Accelerator& accelerator : Accelerators()) {
    if (name.find(accelerator.driver_name) != std::string_view::npos) return &accelerator;
  }
  return nullptr;
}

absl::StatusOr<Accelerator> AcceleratorOf(std::string_view name) {
  std::vector<std::pair<int, std::string_view>> near;
  for (const Accelerator& accelerator : Accelerators()) {
    if (accelerator.name == name) return accelerator;
    near.emplace_back(EditDistance(std::string(accelerator.name), std::string(name)),
                      accelerator.name);
  }
  std::sort(near.begin(), near.end());
  return absl::NotFoundError(absl::StrFormat(
      "no accelerator is named \"%s\"; the nearest are %s, %s and %s", std::string(name),
      std::string(near[0].second), std::string(near[1].second), std::string(near[2].second)));
}

Host AssumedHost(const Accelerator& accelerator, int devices) {
  Host host;
  if (accelerator.host_link_bytes_per_second > 0) {
    host.link_bytes_per_second = accelerator.host_link_bytes_per_second;
  }
  if (accelerator.host_memory_bytes_per_second > 0) {
    host.memory_bytes_per_second = devices * accelerator.host_memory_bytes_per_second;
  }
  host.memory_bytes = devices * kHostMemoryOfDevice;
  return host;
}

ClusterModel MakeCluster(const Accelerator& accelerator, int devices_per_node, int nodes,
                         int interfaces_per_node, double interface_bytes_per_second) {
  return {.accelerator = accelerator,
          .nodes = nodes,
          .devices_per_node = devices_per_node,
          .inside = {accelerator.link_bytes_per_second, kInsideSeconds},
          .between = {interface_bytes_per_second, kBetweenSeconds},
          .interfaces_per_node = interfaces_per_node,
          .host = AssumedHost(accelerator, devices_per_node)};
}

absl::Status CheckCluster(const ClusterModel& cluster) {
  const Accelerator& device = cluster.accelerator;
  struct Figure {
    std::string_view name;
    double value;
    std::string_view instead;
  };
  const Figure figures[] = {
      {"accelerator.flops_16", device.flops_16, "dense operations a second in 16 bits"},
      {"accelerator.memory_bytes", device.memory_bytes, "bytes of memory"},
      {"accelerator.memory_bytes_per_second", device.memory_bytes_per_second,
       "the memory's bytes a second"},
      {"accelerator.processors", static_cast<double>(device.processors),
       "the number of multiprocessors"},
      {"accelerator.product_share", device.product_share,
       "the share of flops_16 that the best product reaches, above 0 and at most 1"},
      {"accelerator.sustained_share", device.sustained_share,
       "the share of that rate that a long run keeps, above 0 and at most 1"},
      {"nodes", static_cast<double>(cluster.nodes), "the number of nodes"},
      {"devices_per_node", static_cast<double>(cluster.devices_per_node),
       "the accelerators of a node"},
      {"host.link_bytes_per_second", cluster.host.link_bytes_per_second,
       "what a device reads of the host's memory in a second"},
      {"host.memory_bytes_per_second", cluster.host.memory_bytes_per_second,
       "what a node reads and writes of its memory in a second"},
      {"host.disk_bytes_per_second", cluster.host.disk_bytes_per_second,
       "what a node reads and writes of its scratch disk in a second"},
  };
  for (const Figure& figure : figures) {
    if (!(figure.value > 0)) return Missing(figure.name, figure.value, figure.instead);
  }
  if (device.product_share > 1) {
    return Missing("accelerator.product_share", device.product_share, "at most 1");
  }
  if (device.sustained_share > 1) {
    return Missing("accelerator.sustained_share", device.sustained_share, "at most 1");
  }
  if (cluster.devices_per_node > 1 && !(cluster.inside.bytes_per_second > 0)) {
    return Missing("inside.bytes_per_second", cluster.inside.bytes_per_second,
                   "what a device sends to the others of its node in a second, one way");
  }
  if (cluster.nodes > 1 && !(cluster.between.bytes_per_second > 0)) {
    return Missing("between.bytes_per_second", cluster.between.bytes_per_second,
                   "what a network interface sends in a second");
  }
  if (cluster.nodes > 1 && cluster.interfaces_per_node < 1) {
    return Missing("interfaces_per_node", cluster.interfaces_per_node,
                   "the network interfaces of a node");
  }
  if (cluster.inside.seconds < 0 || cluster.between.seconds < 0) {
    return Missing("latency", std::min(cluster.inside.seconds, cluster.between.seconds),
                   "seconds, at least 0");
  }
  return absl::OkStatus();
}

std::vector<std::string> ImplausibleFigures(const ClusterModel& cluster) {
  std::vector<std::string> sentences;
  const auto expect = [&](std::string_view name, double value, double least, double most,
                          std::string_view hint) {
    if (value == 0 || (value >= least && value <= most)) return;
    sentences.push_back(absl::StrFormat("%s is %g, outside %g to %g of known hardware: %s",
                                        std::string(name), value, least, most, std::string(hint)));
  };
  const Accelerator& device = cluster.accelerator;
  expect("accelerator.flops_16", device.flops_16, 1e12, 2e16,
         "operations a second, without sparsity, not TFLOP/s");
  expect("accelerator.memory_bytes", device.memory_bytes, 4e9, 1e12, "bytes, not GB");
  expect("accelerator.memory_bytes_per_second", device.memory_bytes_per_second, 5e10, 5e13,
         "bytes a second, not bits or GB");
  expect("inside.bytes_per_second", cluster.inside.bytes_per_second, 4e9, 2e12,
         "bytes a second, one way, not bits or GB");
  // 800 Gb/s are 100 GB/s; more in one interface are bits that were taken for bytes.
  expect("between.bytes_per_second", cluster.between.bytes_per_second, 1e8, 1.1e11,
         "bytes a second of one interface: 400 Gb/s are 50e9");
  expect("host.link_bytes_per_second", cluster.host.link_bytes_per_second, 1e9, 2e12,
         "bytes a second of one device, one way, not bits or GB");
  expect("host.memory_bytes_per_second", cluster.host.memory_bytes_per_second, 1e9, 5e13,
         "bytes a second of a node, not bits or GB");
  expect("host.memory_bytes", cluster.host.memory_bytes, 1e9, 1e15, "bytes of a node, not GB");
  expect("host.disk_bytes_per_second", cluster.host.disk_bytes_per_second, 1e7, 1e12,
         "bytes a second of a node, not bits or GB");
  expect("inside.seconds", cluster.inside.seconds, 1e-7, 1e-3, "seconds, not microseconds");
  expect("between.seconds", cluster.between.seconds, 5e-7, 1e-2, "seconds, not microseconds");
  return sentences;
}

}  // namespace tercio::plan::cost
