#include "cli/commands/cluster_plan.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/layout_filter.h"
#include "cli/commands/planned_timeline.h"
#include "cli/commands/run_forecast.h"
#include "cli/output.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/planner/cost/recipe.h"

namespace tercio::cli {
namespace {

// What Tercio's own trainer does.
const plan::cost::Recipe& OwnRecipe() { return *plan::cost::FindRecipe("tercio"); }

// The cluster of `devices` devices: whole nodes, or a part of one.
absl::StatusOr<plan::cost::ClusterModel> OfDevices(plan::cost::ClusterModel cluster, int devices) {
  if (devices < cluster.devices_per_node) {
    cluster.nodes = 1;
    cluster.devices_per_node = devices;
    return cluster;
  }
  if (devices % cluster.devices_per_node != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--scale ", devices, ": is no multiple of the ",
                                                   cluster.devices_per_node, " GPUs of a node"));
  }
  cluster.nodes = devices / cluster.devices_per_node;
  TERCIO_RETURN_IF_ERROR(plan::cost::CheckCluster(cluster));
  return cluster;
}

absl::StatusOr<ScalePoint> AtScale(v1::JobSpec job, const plan::cost::ClusterModel& cluster,
                                   int devices, const PlanOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const plan::cost::ClusterModel scaled, OfDevices(cluster, devices));
  if (options.weak) {
    const int64_t batch =
        job.training().global_batch() * devices / std::max(1, options.scale.front());
    job.mutable_training()->set_global_batch(std::max<int64_t>(1, batch));
  }
  const plan::SearchResult found =
      plan::SearchLayouts(job, scaled, OwnRecipe(), {.most_fitting = 1});
  ScalePoint point;
  point.devices = devices;
  point.global_batch = job.training().global_batch();
  if (!found.fitting.empty()) point.best = found.fitting.front();
  return point;
}

// The fastest layout that a filter accepts, or, where none fits, the fastest that does not.
absl::StatusOr<plan::RankedLayout> BestOf(const v1::JobSpec& job,
                                          const plan::cost::ClusterModel& cluster,
                                          const std::string& filter) {
  plan::SearchOptions options = {.most_fitting = 1, .most_too_large = 1};
  TERCIO_ASSIGN_OR_RETURN(options.accepts, ParseLayoutFilter(filter));
  plan::SearchResult found = plan::SearchLayouts(job, cluster, OwnRecipe(), options);
  if (!found.fitting.empty()) return std::move(found.fitting.front());
  if (!found.too_large.empty()) return std::move(found.too_large.front());
  // Where no candidate is like that, the rules that others break say why.
  if (found.broken.empty()) {
    found = plan::SearchLayouts(job, cluster, OwnRecipe(), {.most_fitting = 1});
  }
  std::string text = absl::StrCat("no layout of ", cluster.devices(), " GPUs is '", filter, "'");
  for (const plan::BrokenRule& broken : found.broken) absl::StrAppend(&text, "\n  ", broken.rule);
  return absl::InvalidArgumentError(text);
}

bool Fits(const v1::JobSpec& job, const plan::cost::ClusterModel& cluster) {
  return !plan::SearchLayouts(job, cluster, OwnRecipe(), {.most_fitting = 1, .most_too_large = 1})
              .fitting.empty();
}

constexpr double kGiga = 1e9;

// Nodes whose memory is no limit.
plan::cost::ClusterModel WithLargeHosts(plan::cost::ClusterModel cluster) {
  cluster.host.memory_bytes = 0;
  return cluster;
}

std::string HostChange(double gigabytes) {
  return absl::StrFormat(" --what-if host_memory=%.0fGB", gigabytes);
}

// The memory in GB that nodes need for the best layout, where they have not enough; 0: they have.
double HostGigabytes(const v1::JobSpec& job, const plan::cost::ClusterModel& cluster) {
  if (Fits(job, cluster)) return 0;
  const plan::SearchResult found =
      plan::SearchLayouts(job, WithLargeHosts(cluster), OwnRecipe(), {.most_fitting = 1});
  if (found.fitting.empty()) return 0;
  return std::ceil(static_cast<double>(found.fitting.front().host_bytes) *
                   cluster.devices_per_node / kGiga);
}

// What of the cluster would have to be larger for the job to fit: its nodes, or the memory of its
// GPUs, to within a tenth. Empty: neither is enough.
std::string WhatWouldSuffice(const v1::JobSpec& job, const plan::cost::ClusterModel& cluster) {
  // Which of several kinds there should be more of is not for this search to say.
  if (!cluster.groups.empty()) return "";
  constexpr int kMostTimes = 64;
  std::vector<std::string> ways;
  // How nodes would be linked is not known of a single one.
  const bool is_linked = cluster.between.bytes_per_second > 0;
  for (int times = 2; is_linked && times <= kMostTimes; times *= 2) {
    plan::cost::ClusterModel more = cluster;
    more.nodes = cluster.nodes * times;
    if (!Fits(job, more)) continue;
    ways.push_back(absl::StrCat(more.devices(), " GPUs (--what-if nodes=", more.nodes, ")"));
    break;
  }
  plan::cost::ClusterModel larger = WithLargeHosts(cluster);
  double& memory = larger.accelerator.memory_bytes;
  const double most = kMostTimes * cluster.accelerator.memory_bytes;
  while (memory < most && !Fits(job, larger)) memory *= 2;
  // Not where hosts alone are too small.
  if (memory < most && memory > cluster.accelerator.memory_bytes) {
    double low = memory / 2;
    double high = memory;
    while (high > 1.1 * low) {
      memory = (low + high) / 2;
      (Fits(job, larger) ? high : low) = memory;
    }
    const double enough = std::ceil(high / kGiga);
    plan::cost::ClusterModel with_hosts = cluster;
    with_hosts.accelerator.memory_bytes = enough * kGiga;
    const double host = HostGigabytes(job, with_hosts);
    ways.push_back(absl::StrFormat("GPUs with %.0f GB (--what-if gpu.memory=%.0fGB%s)", enough,
                                   enough, host > 0 ? HostChange(host) : ""));
  }
  if (const double host = HostGigabytes(job, cluster); host > 0) {
    ways.push_back(absl::StrFormat("nodes with %.0f GB of memory (%s)", host,
                                   absl::StripAsciiWhitespace(HostChange(host))));
  }
  if (ways.empty()) return "";
  return absl::StrCat("; it would fit on ", absl::StrJoin(ways, ", or on "));
}

// What only clusters of one kind of nodes have.
absl::Status CheckOneKind(const plan::cost::ClusterModel& cluster, const PlanOptions& options) {
  if (cluster.groups.empty()) return absl::OkStatus();
  const char* const option = !options.scale.empty() ? "--scale"
                             : options.largest      ? "--largest"
                                                    : "";
  if (*option == '\0') return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": needs nodes of one kind, and the cluster file has ",
                   cluster.groups.size(), " kinds; plan for each of them with a file of its own"));
}

}  // namespace

plan::cost::ClusterModel ClusterOf(const ClusterPlan& plan, const plan::RankedLayout& ranked) {
  const plan::cost::ClusterModel& cluster = plan.file.cluster;
  return ranked.order.empty() ? cluster : plan::cost::InOrder(cluster, ranked.order);
}

absl::StatusOr<ClusterPlan> MakeClusterPlan(const v1::JobSpec& job, config::ClusterFile file,
                                            const PlanOptions& options) {
  ClusterPlan plan;
  plan.job = job;
  plan.file = std::move(file);
  plan.tokens = options.tokens;
  const plan::cost::ClusterModel& cluster = plan.file.cluster;
  TERCIO_RETURN_IF_ERROR(CheckOneKind(cluster, options));
  plan::SearchOptions search;
  if (!options.explain.empty()) {
    TERCIO_ASSIGN_OR_RETURN(search.accepts, ParseLayoutFilter(options.explain));
  }
  plan.found = plan::SearchLayouts(job, cluster, OwnRecipe(), search);
  if (!options.explain.empty() && plan.found.considered == 0) {
    return BestOf(job, cluster, options.explain).status();
  }
  for (const std::string& filter : options.compare) {
    TERCIO_ASSIGN_OR_RETURN(plan::RankedLayout best, BestOf(job, cluster, filter));
    plan.compared.push_back(std::move(best));
  }
  for (const int devices : options.scale) {
    TERCIO_ASSIGN_OR_RETURN(ScalePoint point, AtScale(job, cluster, devices, options));
    plan.scale.push_back(std::move(point));
  }
  if (options.largest) plan.largest = plan::LargestByMethod(job, cluster);
  return plan;
}

absl::StatusOr<int> PlanOnCluster(const v1::JobSpec& spec, const PlanOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(config::ClusterFile file,
                          config::ParseClusterFile(options.cluster, options.what_if));
  PrintNotices(file.notices);
  v1::JobSpec job = spec;
  if (job.resources().device() != v1::DEVICE_KIND_CUDA) {
    PrintNotices({"the plan is for GPUs (resources.device=cuda)"});
    job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  }
  TERCIO_ASSIGN_OR_RETURN(const ClusterPlan plan, MakeClusterPlan(job, std::move(file), options));
  TERCIO_ASSIGN_OR_RETURN(const std::optional<RunForecast> forecast, ForecastRun(plan, options));
  TERCIO_RETURN_IF_ERROR(WriteTimelines(plan, options));
  if (options.format() != Output::kTable) {
    nlohmann::ordered_json json = ClusterPlanJson(plan);
    json["forecast"] = forecast.has_value() ? ForecastJson(*forecast) : nlohmann::ordered_json();
    PrintJson(json, options.format());
  } else {
    std::cout << ClusterPlanText(plan);
    if (forecast.has_value()) std::cout << "\n" << ForecastText(*forecast);
  }
  if (!plan.found.fitting.empty()) return kExitOk;
  const std::string reason = !plan.found.too_large.empty() ? plan.found.too_large.front().rejected
                             : !plan.found.broken.empty()  ? plan.found.broken.front().rule
                                                           : "the job names a layout that is none";
  // Only room is a matter of the cluster.
  const std::string way =
      plan.found.too_large.empty() ? "" : WhatWouldSuffice(job, plan.file.cluster);
  return absl::InvalidArgumentError(absl::StrCat("no layout of ", plan.file.cluster.devices(),
                                                 " GPUs works for this model: ", reason, way));
}

}  // namespace tercio::cli
