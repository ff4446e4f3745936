#include "config/cluster_file.h"

#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "config/quantity.h"
#include "config/reader.h"
#include "config/yaml_text.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

using plan::cost::Accelerator;
using plan::cost::ClusterModel;

constexpr int64_t kMostNodes = 1 << 20;
constexpr int64_t kMostPerNode = 1024;
// What a GPU that is described in the file is like where the file does not tell.
constexpr int kUsualProcessors = 108;
constexpr double kUsualProductShare = 0.8;
constexpr double kUsualSustainedShare = 0.85;

using Parse = std::optional<double> (*)(std::string_view);

// A figure with a unit; `fallback` where it is left out.
double Figure(Section& section, const std::string& key, Parse parse, const char* expected,
              double fallback) {
  if (!section.Has(key)) return fallback;
  const std::string text = section.Text(key, "");
  const std::optional<double> value = parse(text);
  if (value.has_value() && *value > 0) return *value;
  section.Fault(key, absl::StrCat("is '", text, "'; expected ", expected, ", above 0"));
  return fallback;
}

// Without capitals, and without the unit of the memory: "a100-80gb" is A100-80.
std::string Plain(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  return std::string(absl::StripSuffix(lower, "gb"));
}

// NOT_FOUND names the nearest of the catalogue.
absl::StatusOr<Accelerator> Catalogued(const std::string& name) {
  for (const Accelerator& each : plan::cost::Accelerators()) {
    if (Plain(each.name) == Plain(name)) return each;
  }
  return plan::cost::AcceleratorOf(name);
}

class ClusterParser {
 public:
  ClusterParser(const YAML::Node& root, Faults* faults)
      : faults_(*faults), root_(root, "", faults) {}

  ClusterFile Parse() {
    const YAML::Node nodes = root_.Get("nodes");
    if (!nodes.IsDefined() || !nodes.IsSequence() || nodes.size() == 0) {
      root_.Fault("nodes",
                  "missing; list the nodes, such as [{count: 4, gpus: 8, gpu: a100-80gb}]");
    } else if (nodes.size() > 1) {
      root_.Fault("nodes", "several kinds of nodes are not supported by this version");
    } else if (Section node = MapAt(nodes[0], "nodes[0]"); nodes[0].IsMap()) {
      ParseNode(std::move(node));
    }
    if (root_.Has("cost")) out_.cost = ParseDeviceCost(root_.Child("cost"));
    if (root_.Has("faults")) out_.faults = ParseFaults(root_.Child("faults"));
    root_.Finish();
    return std::move(out_);
  }

 private:
  Section MapAt(const YAML::Node& node, const std::string& path) {
    const int line = node.Mark().line + 1;
    if (!node.IsMap()) faults_.Add(line, path, "expected a map of keys");
    return Section(node, path, &faults_, line);
  }

  void ParseNode(Section node) {
    ClusterModel& cluster = out_.cluster;
    if (!node.Has("gpus")) node.Fault("gpus", "missing; the number of GPUs of a node");
    const auto gpus = static_cast<int>(node.Integer("gpus", 1, 1, kMostPerNode));
    const auto count = static_cast<int>(node.Integer("count", 1, 1, kMostNodes));
    const Accelerator gpu = ParseGpu(node);
    cluster = plan::cost::MakeCluster(gpu, gpus, count, 1, 0);
    cluster.inside.bytes_per_second = Figure(node, "intra_node_bandwidth", ParseBytesPerSecond,
                                             "a rate such as 300GB/s", gpu.link_bytes_per_second);
    cluster.inside.seconds = Figure(node, "intra_node_latency", ParseShortTime,
                                    "a time such as 4us", cluster.inside.seconds);
    ParseInterfaces(node, count);
    node.Finish();
  }

  void ParseInterfaces(Section& node, int nodes) {
    const YAML::Node list = node.Get("nics");
    if (!list.IsDefined()) {
      if (nodes > 1) {
        node.Fault("nics",
                   "missing; how nodes are linked, such as [{count: 8, bandwidth: 25GB/s}]");
      }
      return;
    }
    if (!list.IsSequence() || list.size() != 1) {
      return node.Fault("nics", "expected a list with one kind of interface");
    }
    Section nic = MapAt(list[0], "nodes[0].nics[0]");
    if (!list[0].IsMap()) return;
    ClusterModel& cluster = out_.cluster;
    nic.OneOf("kind", "infiniband", {"infiniband", "roce", "ethernet", "efa"});
    cluster.interfaces_per_node = static_cast<int>(nic.Integer("count", 1, 1, kMostPerNode));
    if (!nic.Has("bandwidth")) nic.Fault("bandwidth", "missing; a rate such as 25GB/s or 200Gb/s");
    cluster.between.bytes_per_second =
        Figure(nic, "bandwidth", ParseBytesPerSecond, "a rate such as 25GB/s or 200Gb/s", 1);
    cluster.between.seconds =
        Figure(nic, "latency", ParseShortTime, "a time such as 10us", cluster.between.seconds);
    nic.Finish();
  }

  Accelerator ParseGpu(Section& node) {
    const YAML::Node gpu = node.Get("gpu");
    if (!gpu.IsDefined()) {
      node.Fault("gpu", "missing; a name such as a100-80gb, or a map of figures");
      return plan::cost::Accelerators().front();
    }
    if (gpu.IsMap()) return ParseOwnGpu(node.Child("gpu"));
    const std::string name = node.Text("gpu", "");
    absl::StatusOr<Accelerator> known = Catalogued(name);
    if (known.ok()) return *known;
    node.Fault("gpu", std::string(known.status().message()));
    return plan::cost::Accelerators().front();
  }

  Accelerator ParseOwnGpu(Section gpu) {
    Accelerator own;
    own.name = "own";
    own.source = "the cluster file";
    for (const char* key : {"flops_16", "memory", "memory_bandwidth"}) {
      if (!gpu.Has(key)) gpu.Fault(key, "missing; a GPU that is described needs it");
    }
    const char* const rate = "a rate such as 312TFLOPS";
    own.flops_16 = Figure(gpu, "flops_16", ParseFlops, rate, 1);
    own.flops_8 = Figure(gpu, "flops_8", ParseFlops, rate, 0);
    own.flops_tf32 = Figure(gpu, "flops_tf32", ParseFlops, rate, own.flops_16 / 2);
    own.flops_fp32 = Figure(gpu, "flops_fp32", ParseFlops, rate, own.flops_16 / 16);
    own.memory_bytes = Figure(gpu, "memory", ParseBytes, "a size such as 80GB", 1);
    own.memory_bytes_per_second =
        Figure(gpu, "memory_bandwidth", ParseBytesPerSecond, "a rate such as 2TB/s", 1);
    own.link_bytes_per_second =
        Figure(gpu, "link_bandwidth", ParseBytesPerSecond, "a rate such as 300GB/s", 0);
    own.processors =
        static_cast<int>(gpu.Integer("processors", kUsualProcessors, 1, int64_t{1} << 16));
    own.product_share = gpu.Number("product_share", kUsualProductShare, 0.01, 1);
    own.sustained_share = gpu.Number("sustained_share", kUsualSustainedShare, 0.01, 1);
    gpu.Finish();
    return own;
  }

  Faults& faults_;
  Section root_;
  ClusterFile out_;
};

absl::StatusOr<ClusterFile> Read(const std::string& text, const std::string& path) {
  TERCIO_RETURN_IF_ERROR(CheckUtf8(text, path));
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": expected a cluster (a map of keys)"));
    }
    Faults faults(path);
    if (const int line = LineOfSecondDocument(text); line > 0) {
      faults.Add(line, "", "a second document (after ---); a file holds one cluster");
    }
    ClusterFile file = ClusterParser(root, &faults).Parse();
    TERCIO_RETURN_IF_ERROR(faults.ToStatus());
    return file;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

// The figures that --what-if may change.
struct Changeable {
  const char* key;
  Parse parse;
  std::function<void(ClusterModel&, double)> set;
};

const std::vector<Changeable>& Changeables() {
  static const auto* const kAll = new std::vector<Changeable>{
      {"nodes", ParseBytes, [](ClusterModel& c, double x) { c.nodes = static_cast<int>(x); }},
      {"gpus", ParseBytes,
       [](ClusterModel& c, double x) { c.devices_per_node = static_cast<int>(x); }},
      {"gpu.flops_16", ParseFlops, [](ClusterModel& c, double x) { c.accelerator.flops_16 = x; }},
      {"gpu.memory", ParseBytes, [](ClusterModel& c, double x) { c.accelerator.memory_bytes = x; }},
      {"gpu.memory_bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.accelerator.memory_bytes_per_second = x; }},
      {"intra_node_bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.inside.bytes_per_second = x; }},
      {"intra_node_latency", ParseShortTime,
       [](ClusterModel& c, double x) { c.inside.seconds = x; }},
      {"nic.count", ParseBytes,
       [](ClusterModel& c, double x) { c.interfaces_per_node = static_cast<int>(x); }},
      {"nic.bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.between.bytes_per_second = x; }},
      {"nic.latency", ParseShortTime, [](ClusterModel& c, double x) { c.between.seconds = x; }},
  };
  return *kAll;
}

absl::Status ApplyWhatIf(const std::string& change, ClusterFile* file) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(change, absl::MaxSplits('=', 1));
  ClusterModel* const cluster = &file->cluster;
  // Another kind of GPU brings all of its figures.
  if (parts.first == "gpu") {
    TERCIO_ASSIGN_OR_RETURN(cluster->accelerator, Catalogued(parts.second));
    cluster->inside.bytes_per_second = cluster->accelerator.link_bytes_per_second;
    return absl::OkStatus();
  }
  std::vector<std::string> keys = {"gpu"};
  for (const Changeable& each : Changeables()) {
    keys.push_back(each.key);
    if (parts.first != each.key) continue;
    const std::optional<double> value = each.parse(parts.second);
    if (!value.has_value() || !(*value > 0) || *value > 1e18) {
      return absl::InvalidArgumentError(absl::StrCat("--what-if ", change, ": '", parts.second,
                                                     "' is no such figure, or not above 0"));
    }
    each.set(*cluster, *value);
    return absl::OkStatus();
  }
  for (const std::string& key : FaultKeys()) {
    keys.push_back(key);
    if (parts.first != key) continue;
    const absl::Status changed = ChangeFault(key, parts.second, &file->faults);
    if (changed.ok()) return changed;
    return absl::InvalidArgumentError(
        absl::StrCat("--what-if ", change, ": ", std::string(changed.message())));
  }
  return absl::InvalidArgumentError(absl::StrCat("--what-if ", change, ": expected KEY=VALUE with ",
                                                 "one of ", absl::StrJoin(keys, ", ")));
}

}  // namespace

absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& path,
                                             const std::vector<std::string>& what_if) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kMostYamlBytes));
  TERCIO_ASSIGN_OR_RETURN(ClusterFile file, Read(text, path));
  for (const std::string& change : what_if) {
    TERCIO_RETURN_IF_ERROR(ApplyWhatIf(change, &file));
  }
  TERCIO_RETURN_IF_ERROR(plan::cost::CheckCluster(file.cluster));
  file.notices = plan::cost::ImplausibleFigures(file.cluster);
  return file;
}

}  // namespace tercio::config
