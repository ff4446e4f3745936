#include "nlohmann/json.hpp"
#include "worker/device/cpu_device.h"
#include "worker/trainer/device_report.h"
#include "worker/trainer/memory_trial.h"

namespace tercio::trainer {

std::string DescribeLibraries() { return R"({"device": "cpu"})"; }

std::string ExamineDevices() {
  // The keys are those of a report on GPUs, so that readers need not tell the two apart.
  nlohmann::json report = {
      {"device", "cpu"}, {"gpus", nlohmann::json::array()}, {"peers", nlohmann::json::array()}};
  // One thread is enough for a trial of memory.
  const auto device = device::CreateCpuDevice(1);
  const auto trial = TryMemoryPlan(*device, TrialJob(v1::DEVICE_KIND_CPU), nullptr);
  if (trial.ok()) {
    report["memory_plan"] = *trial;
  } else {
    report["memory_plan"] = {{"error", std::string(trial.status().message())}};
  }
  return report.dump();
}

}  // namespace tercio::trainer
