#include "config/cluster_file.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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
#include "plan/planner/cost/node_groups.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

using plan::cost::Accelerator;
using plan::cost::ClusterModel;
using plan::cost::Link;

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

// The kinds of nodes, and what joins them where there are several.
struct Kinds {
  std::vector<ClusterModel> list;
  Link joining;
  int interfaces = 1;

  ClusterModel Joined() const { return plan::cost::JoinGroups(list, joining, interfaces); }
};

struct Parsed {
  Kinds kinds;
  ClusterFile file;  // without its cluster
};

class ClusterParser {
 public:
  ClusterParser(const YAML::Node& root, Faults* faults)
      : faults_(*faults), root_(root, "", faults) {}

  Parsed Parse() {
    has_interconnect_ = root_.Has("interconnect");
    const YAML::Node nodes = root_.Get("nodes");
    if (!nodes.IsDefined() || !nodes.IsSequence() || nodes.size() == 0) {
      root_.Fault("nodes",
                  "missing; list the nodes, such as [{count: 4, gpus: 8, gpu: a100-80gb}]");
    } else if (nodes.size() > plan::cost::kMostGroups) {
      root_.Fault("nodes", absl::StrCat("has ", nodes.size(), " kinds of nodes; at most ",
                                        plan::cost::kMostGroups, " can be planned for"));
    } else {
      is_several_ = nodes.size() > 1;
      for (size_t i = 0; i < nodes.size(); ++i) {
        const std::string path = absl::StrCat("nodes[", i, "]");
        Section node = MapAt(nodes[i], path);
        if (nodes[i].IsMap()) ParseNode(std::move(node), path);
      }
      ParseInterconnect();
    }
    ClusterFile& file = out_.file;
    if (root_.Has("cost")) file.cost = ParseDeviceCost(root_.Child("cost"));
    if (root_.Has("faults")) file.faults = ParseFaults(root_.Child("faults"));
    root_.Finish();
    return std::move(out_);
  }

 private:
  Section MapAt(const YAML::Node& node, const std::string& path) {
    const int line = node.Mark().line + 1;
    if (!node.IsMap()) faults_.Add(line, path, "expected a map of keys");
    return Section(node, path, &faults_, line);
  }

  void ParseNode(Section node, const std::string& path) {
    if (!node.Has("gpus")) node.Fault("gpus", "missing; the number of GPUs of a node");
    const auto gpus = static_cast<int>(node.Integer("gpus", 1, 1, kMostPerNode));
    const auto count = static_cast<int>(node.Integer("count", 1, 1, kMostNodes));
    const Accelerator gpu = ParseGpu(node);
    ClusterModel& cluster =
        out_.kinds.list.emplace_back(plan::cost::MakeCluster(gpu, gpus, count, 1, 0));
    cluster.name = node.Text("name", absl::StrCat(path, " ", std::string(gpu.name)));
    cluster.inside.bytes_per_second = Figure(node, "intra_node_bandwidth", ParseBytesPerSecond,
                                             "a rate such as 300GB/s", gpu.link_bytes_per_second);
    cluster.inside.seconds = Figure(node, "intra_node_latency", ParseShortTime,
                                    "a time such as 4us", cluster.inside.seconds);
    ParseHost(node, &cluster.host);
    ParseInterfaces(node, path, &cluster);
    node.Finish();
  }

  // Left out: plan::cost::AssumedHost.
  static void ParseHost(Section& node, plan::cost::Host* host) {
    const auto rate = [&](const char* key, const char* expected, double* value) {
      *value = Figure(node, key, ParseBytesPerSecond, expected, *value);
    };
    rate("host_link_bandwidth", "a rate such as 25GB/s", &host->link_bytes_per_second);
    rate("host_memory_bandwidth", "a rate such as 300GB/s", &host->memory_bytes_per_second);
    rate("disk_bandwidth", "a rate such as 3GB/s", &host->disk_bytes_per_second);
    host->memory_bytes =
        Figure(node, "host_memory", ParseBytes, "a size such as 1TB", host->memory_bytes);
  }

  void ParseInterfaces(Section& node, const std::string& path, ClusterModel* cluster) {
    const YAML::Node list = node.Get("nics");
    if (!list.IsDefined()) {
      if (cluster->nodes > 1 || (is_several_ && !has_interconnect_)) {
        node.Fault("nics",
                   "missing; how nodes are linked, such as [{count: 8, bandwidth: 25GB/s}]");
      }
      return;
    }
    if (!list.IsSequence() || list.size() != 1) {
      return node.Fault("nics", "expected a list with one kind of interface");
    }
    Section nic = MapAt(list[0], absl::StrCat(path, ".nics[0]"));
    if (!list[0].IsMap()) return;
    ParseLink(std::move(nic), &cluster->between, &cluster->interfaces_per_node);
  }

  void ParseLink(Section nic, Link* link, int* count) {
    nic.OneOf("kind", "infiniband", {"infiniband", "roce", "ethernet", "efa"});
    *count = static_cast<int>(nic.Integer("count", 1, 1, kMostPerNode));
    if (!nic.Has("bandwidth")) nic.Fault("bandwidth", "missing; a rate such as 25GB/s or 200Gb/s");
    link->bytes_per_second =
        Figure(nic, "bandwidth", ParseBytesPerSecond, "a rate such as 25GB/s or 200Gb/s", 1);
    link->seconds = Figure(nic, "latency", ParseShortTime, "a time such as 10us", link->seconds);
    nic.Finish();
  }

  // Where the file does not tell, the slowest of the kinds' own interfaces.
  void ParseInterconnect() {
    if (has_interconnect_ && !is_several_) {
      return root_.Fault("interconnect", "joins several kinds of nodes, and `nodes` has one");
    }
    Kinds& kinds = out_.kinds;
    for (const ClusterModel& kind : kinds.list) {
      const auto rate = [](const Link& link, int count) { return link.bytes_per_second * count; };
      const bool is_slower =
          rate(kind.between, kind.interfaces_per_node) < rate(kinds.joining, kinds.interfaces);
      if (kinds.joining.bytes_per_second > 0 && !is_slower) continue;
      kinds.joining = kind.between;
      kinds.interfaces = kind.interfaces_per_node;
    }
    if (!has_interconnect_) return;
    ParseLink(root_.Child("interconnect"), &kinds.joining, &kinds.interfaces);
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
  bool is_several_ = false;
  bool has_interconnect_ = false;
  Parsed out_;
};

absl::StatusOr<Parsed> Read(const std::string& text, const std::string& path) {
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
    Parsed parsed = ClusterParser(root, &faults).Parse();
    TERCIO_RETURN_IF_ERROR(faults.ToStatus());
    return parsed;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

// The figures of a kind of nodes that --what-if may change.
struct Changeable {
  const char* key;
  Parse parse;
  std::function<void(ClusterModel&, double)> set;
};

absl::StatusOr<double> AboveZero(Parse parse, const std::string& text) {
  const std::optional<double> value = parse(text);
  if (value.has_value() && *value > 0 && *value <= 1e18) return *value;
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no such figure, or not above 0"));
}

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
      {"host_link_bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.host.link_bytes_per_second = x; }},
      {"host_memory_bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.host.memory_bytes_per_second = x; }},
      {"host_memory", ParseBytes, [](ClusterModel& c, double x) { c.host.memory_bytes = x; }},
      {"disk_bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.host.disk_bytes_per_second = x; }},
      {"nic.count", ParseBytes,
       [](ClusterModel& c, double x) { c.interfaces_per_node = static_cast<int>(x); }},
      {"nic.bandwidth", ParseBytesPerSecond,
       [](ClusterModel& c, double x) { c.between.bytes_per_second = x; }},
      {"nic.latency", ParseShortTime, [](ClusterModel& c, double x) { c.between.seconds = x; }},
  };
  return *kAll;
}

// Changes a figure of each of these kinds. False: there is no such key.
absl::StatusOr<bool> ChangeNodes(const std::string& key, const std::string& text,
                                 const std::vector<ClusterModel*>& kinds) {
  // Another GPU brings all of its figures.
  if (key == "gpu") {
    TERCIO_ASSIGN_OR_RETURN(const Accelerator gpu, Catalogued(text));
    for (ClusterModel* const kind : kinds) {
      kind->accelerator = gpu;
      kind->inside.bytes_per_second = gpu.link_bytes_per_second;
      const auto host = plan::cost::AssumedHost(gpu, kind->devices_per_node);
      kind->host.link_bytes_per_second = host.link_bytes_per_second;
      kind->host.memory_bytes_per_second = host.memory_bytes_per_second;
    }
    return true;
  }
  for (const Changeable& each : Changeables()) {
    if (key != each.key) continue;
    TERCIO_ASSIGN_OR_RETURN(const double value, AboveZero(each.parse, text));
    for (ClusterModel* const kind : kinds) each.set(*kind, value);
    return true;
  }
  return false;
}

absl::StatusOr<bool> ChangeInterconnect(const std::string& key, const std::string& text,
                                        Kinds* kinds) {
  constexpr absl::string_view kPrefix = "interconnect.";
  if (kinds->list.size() < 2 || !absl::StartsWith(key, kPrefix)) return false;
  // It has what an interface has.
  ClusterModel link;
  link.between = kinds->joining;
  link.interfaces_per_node = kinds->interfaces;
  const std::string nic = absl::StrCat("nic.", key.substr(kPrefix.size()));
  TERCIO_ASSIGN_OR_RETURN(const bool changed, ChangeNodes(nic, text, {&link}));
  kinds->joining = link.between;
  kinds->interfaces = link.interfaces_per_node;
  return changed;
}

// "nodes[1].nic.bandwidth" is a key of one kind; others are those of all kinds.
absl::StatusOr<bool> ChangeKinds(std::string key, const std::string& text, Kinds* kinds) {
  std::vector<ClusterModel*> changed;
  for (size_t i = 0; i < kinds->list.size(); ++i) {
    const std::string prefix = absl::StrCat("nodes[", i, "].");
    if (!absl::StartsWith(key, prefix)) continue;
    changed.push_back(&kinds->list[i]);
    key = key.substr(prefix.size());
    break;
  }
  if (!changed.empty()) return ChangeNodes(key, text, changed);
  for (ClusterModel& kind : kinds->list) changed.push_back(&kind);
  if (changed.size() > 1 && (key == "nodes" || key == "gpus")) {
    return absl::InvalidArgumentError(
        absl::StrCat("say of which kind of nodes, such as nodes[0].", key));
  }
  return ChangeNodes(key, text, changed);
}

std::vector<std::string> KeysOf(const Kinds& kinds) {
  std::vector<std::string> keys = {"gpu"};
  for (const Changeable& each : Changeables()) keys.push_back(each.key);
  if (kinds.list.size() > 1) {
    for (const char* key : {"count", "bandwidth", "latency"}) {
      keys.push_back(absl::StrCat("interconnect.", key));
    }
  }
  const std::vector<std::string> of_faults = FaultKeys();
  keys.insert(keys.end(), of_faults.begin(), of_faults.end());
  return keys;
}

absl::Status ApplyWhatIf(const std::string& change, Parsed* parsed) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(change, absl::MaxSplits('=', 1));
  const auto& [key, text] = parts;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("--what-if ", change, ": ", std::string(status.message())));
  };
  for (const auto& found :
       {ChangeKinds(key, text, &parsed->kinds), ChangeInterconnect(key, text, &parsed->kinds)}) {
    if (!found.ok()) return named(found.status());
    if (*found) return absl::OkStatus();
  }
  const std::vector<std::string> of_faults = FaultKeys();
  if (std::find(of_faults.begin(), of_faults.end(), key) != of_faults.end()) {
    const absl::Status changed = ChangeFault(key, text, &parsed->file.faults);
    return changed.ok() ? changed : named(absl::InvalidArgumentError(changed.message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--what-if ", change, ": expected KEY=VALUE with ", "one of ",
      absl::StrJoin(KeysOf(parsed->kinds), ", "),
      parsed->kinds.list.size() > 1 ? "; those of one kind of nodes as nodes[0].KEY" : ""));
}

}  // namespace

absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& path,
                                             const std::vector<std::string>& what_if) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kMostYamlBytes));
  TERCIO_ASSIGN_OR_RETURN(Parsed parsed, Read(text, path));
  for (const std::string& change : what_if) {
    TERCIO_RETURN_IF_ERROR(ApplyWhatIf(change, &parsed));
  }
  ClusterFile file = std::move(parsed.file);
  for (const ClusterModel& kind : parsed.kinds.list) {
    TERCIO_RETURN_IF_ERROR(plan::cost::CheckCluster(kind));
    for (const std::string& notice : plan::cost::ImplausibleFigures(kind)) {
      const bool is_one = parsed.kinds.list.size() == 1;
      file.notices.push_back(is_one ? notice : absl::StrCat(kind.name, ": ", notice));
    }
  }
  file.cluster = parsed.kinds.Joined();
  TERCIO_RETURN_IF_ERROR(plan::cost::CheckCluster(file.cluster));
  return file;
}

}  // namespace tercio::config
