// Measures a coordinator under a cluster of simulated agents: scale.py starts both and prints a
// table. A job must have been submitted that takes all devices.
//   scale_bench --coordinator HOST:PORT --pid N --agents N --job ID [--devices N] [--steady
//   SECONDS]
// Prints one JSON object.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job_service.grpc.pb.h"
#include "tests/bench/scale/simulated_cluster.h"

namespace tercio::bench {
namespace {

struct Usage {
  double seconds = 0;      // time by any steady clock
  double cpu_seconds = 0;  // user and system time of the process
  double resident_bytes = 0;
  double peak_bytes = 0;
};

double NumberAfter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    double value = 0;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() > 1 && absl::SimpleAtod(words[1], &value)) return value;
  }
  return 0;
}

Usage UsageOf(int pid) {
  Usage usage;
  usage.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::string directory = absl::StrCat("/proc/", pid);
  std::ifstream file(directory + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // After the name, which may hold anything: state is the first field, times the 12th and 13th.
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(text.rfind(')') + 1), ' ', absl::SkipEmpty());
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (const size_t field : {11u, 12u}) {
    double value = 0;
    if (fields.size() > field && absl::SimpleAtod(fields[field], &value)) {
      usage.cpu_seconds += value / ticks;
    }
  }
  usage.resident_bytes = NumberAfter(directory + "/status", "VmRSS:") * 1024;
  usage.peak_bytes = NumberAfter(directory + "/status", "VmHWM:") * 1024;
  return usage;
}

// Follows the job's events until it runs; what the coordinator says has happened.
bool WaitUntilRunning(v1::JobService::Stub& jobs, const std::string& job) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  v1::EventsRequest request;
  request.set_job(job);
  request.set_follow(true);
  const auto events = jobs.Events(&context, request);
  v1::JobEvent event;
  bool runs = false;
  while (!runs && events->Read(&event)) {
    runs = event.kind() == "running";
    if (event.kind() == "attempt_broken" || event.kind() == "failed" ||
        event.kind() == "node_lost") {
      std::fprintf(stderr, "%s: %s\n", event.kind().c_str(), event.message().c_str());
    }
  }
  context.TryCancel();
  return runs;
}

nlohmann::ordered_json Describe(const Traffic& traffic, int64_t ranks) {
  const double each = static_cast<double>(ranks);
  return {{"agents_registered", traffic.registered.load()},
          {"faults", traffic.faults.load()},
          {"start_bytes_per_rank", static_cast<double>(traffic.start_bytes) / each},
          {"id_calls_per_rank", static_cast<double>(traffic.id_calls) / each},
          {"id_bytes_per_rank", static_cast<double>(traffic.id_bytes) / each},
          {"ids_received", traffic.ids_received.load()},
          {"messages_to_per_rank", static_cast<double>(traffic.messages_to) / each},
          {"bytes_to_per_rank", static_cast<double>(traffic.bytes_to) / each},
          {"messages_from_per_rank", static_cast<double>(traffic.messages_from) / each},
          {"bytes_from_per_rank", static_cast<double>(traffic.bytes_from) / each}};
}

int Run(const ClusterOptions& options, int pid, const std::string& job, double steady) {
  auto jobs = v1::JobService::NewStub(
      grpc::CreateChannel(options.coordinator, grpc::InsecureChannelCredentials()));
  SimulatedCluster cluster(options);
  const Usage before = UsageOf(pid);
  cluster.Attach();
  if (!WaitUntilRunning(*jobs, job)) {
    std::fprintf(stderr, "the job does not run; %lld agents are registered, %lld ranks run\n",
                 static_cast<long long>(cluster.traffic().registered),
                 static_cast<long long>(cluster.traffic().ranks_running));
    return 1;
  }
  const Usage running = UsageOf(pid);
  const int64_t ranks = int64_t{options.agents} * options.devices;
  nlohmann::ordered_json result = {{"ranks", ranks},
                                   {"agents", options.agents},
                                   {"start_seconds", running.seconds - before.seconds},
                                   {"start_cpu_seconds", running.cpu_seconds - before.cpu_seconds},
                                   {"start_traffic", Describe(cluster.traffic(), ranks)}};
  cluster.BeginSteps();
  if (steady > 0) {
    std::this_thread::sleep_for(std::chrono::seconds(5));  // what is left of the start
    const Usage first = UsageOf(pid);
    std::this_thread::sleep_for(std::chrono::duration<double>(steady));
    const Usage last = UsageOf(pid);
    result["steady_seconds"] = last.seconds - first.seconds;
    result["steady_cores"] =
        (last.cpu_seconds - first.cpu_seconds) / (last.seconds - first.seconds);
    result["resident_bytes"] = last.resident_bytes;
    result["peak_bytes"] = last.peak_bytes;
  }
  result["faults"] = cluster.traffic().faults.load();
  std::cout << result.dump() << "\n";
  return result["faults"] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tercio::bench

int main(int argc, char** argv) {
  tercio::bench::ClusterOptions options;
  int pid = 0;
  std::string job;
  double steady = 30;
  CLI::App app("Measures a coordinator under simulated agents; scale.py starts both.",
               "scale_bench");
  app.add_option("--coordinator", options.coordinator)->required();
  app.add_option("--pid", pid, "of the coordinator")->required();
  app.add_option("--job", job)->required();
  app.add_option("--agents", options.agents);
  app.add_option("--devices", options.devices);
  app.add_option("--connections", options.connections, "0: one for each agent");
  app.add_option("--steady", steady, "seconds of steady state; 0: none");
  CLI11_PARSE(app, argc, argv);
  return tercio::bench::Run(options, pid, job, steady);
}
