#include "cli/commands/findings.h"

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

// A machine with two healthy GPUs, as reported by the driver and the trainer.
GpuEvidence TwoGpus() {
  GpuEvidence evidence;
  evidence.gpus->driver = "580.1";
  evidence.gpus->cuda_version = 13000;
  evidence.gpus->list = {{0, "H200", "GPU-0", 1, ""}, {1, "H200", "GPU-1", 1, ""}};
  evidence.samples.resize(2);
  GpuSample& sample = evidence.samples[0];
  sample.memory_total_bytes = int64_t{80} << 30;
  sample.memory_used_bytes = int64_t{1} << 30;
  sample.temperature_celsius = 40;
  sample.sm_clock_hertz = 1.7e9;
  sample.clock_reasons = 0x4;  // the power cap, as usual
  sample.ecc_enabled = true;
  sample.pcie_generation_limit = 5;
  sample.pcie_lanes = 16;
  sample.pcie_lanes_limit = 16;
  sample.nvlinks = 18;
  sample.nvlinks_active = 18;
  sample.persistence = true;
  sample.processes.emplace();
  evidence.samples[1] = sample;
  evidence.report = nlohmann::json::parse(R"({
    "device": "cuda", "cuda_runtime": 13000, "nccl": "2.28.9", "cublas": "13.1.0",
    "gpus": [
      {"gpu": 0, "name": "H200", "bf16_flops": 6e14, "fp32_flops": 4e13,
       "host_to_device_bytes_per_second": 5.5e10, "device_to_host_bytes_per_second": 5.5e10},
      {"gpu": 1, "name": "H200", "bf16_flops": 6e14, "fp32_flops": 4e13,
       "host_to_device_bytes_per_second": 5.5e10, "device_to_host_bytes_per_second": 5.5e10}],
    "peers": [{"from": 0, "to": 1, "direct": true, "bytes_per_second": 4e11},
              {"from": 1, "to": 0, "direct": true, "bytes_per_second": 4e11}]})");
  return evidence;
}

// The finding of this name; fails the test if there is none.
Finding Find(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& finding : findings) {
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no finding of " << check;
  return {};
}

TEST(GpuFindings, NothingIsWrongWithGoodGpus) {
  const auto findings = GpuFindings(TwoGpus());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.health, Health::kOk) << finding.check << ": " << finding.detail;
    EXPECT_EQ(finding.mend, "") << finding.check;
  }
  EXPECT_EQ(Find(findings, "driver").detail, "NVIDIA 580.1, runs CUDA 13.0");
  EXPECT_EQ(Find(findings, "libraries").detail,
            "CUDA 13.0, NCCL 2.28.9, cuBLAS 13.1.0, cuDNN not found");
  EXPECT_EQ(Find(findings, "cuda 1 products").detail, "bf16 600.00 TFLOP/s, fp32 40.00 TFLOP/s");
  EXPECT_THAT(Find(findings, "cuda 0 host link").detail, HasSubstr("the link can carry 63.0 GB/s"));
  EXPECT_EQ(Find(findings, "peers").detail, "2 of 2 pairs directly, 400.0 GB/s to 400.0 GB/s");
}

nlohmann::json GoodTrial() {
  return nlohmann::json::parse(
      R"({"buffers": 30, "planned_bytes": 3145728, "touched_bytes": 3145728,
    "unused": [], "outside_bytes": 1048576, "most_outside_bytes": 268435456})");
}

TEST(MemoryPlanFinding, SaysHowMuchOfThePlanIsUsed) {
  const Finding finding = MemoryPlanFinding("memory plan", GoodTrial());
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_EQ(finding.detail,
            "a small model used 3.0 MiB of 3.0 MiB in 30 planned buffers, and 1.0 MiB outside "
            "them, where the plan allows 256.0 MiB");
}

TEST(MemoryPlanFinding, WarnsOfWhatIsNotUsedAndOfTooMuchBeside) {
  nlohmann::json trial = GoodTrial();
  trial["unused"] = {"bogus: 4096 bytes are planned, none is touched"};
  Finding finding = MemoryPlanFinding("memory plan", trial);
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_THAT(finding.detail, HasSubstr("; bogus: 4096 bytes are planned"));
  EXPECT_NE(finding.mend, "");
  trial = GoodTrial();
  trial["outside_bytes"] = 300000000;
  finding = MemoryPlanFinding("memory plan", trial);
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_NE(finding.mend, "");
}

TEST(MemoryPlanFinding, ATrialThatFailsIsAnErrorAndOneThatWasNotMadeIsNotKnown) {
  EXPECT_EQ(MemoryPlanFinding("m", nlohmann::json{{"error", "out of memory"}}).health,
            Health::kError);
  EXPECT_EQ(MemoryPlanFinding("m", absl::NotFoundError("no trainer")).health, Health::kUnknown);
}

TEST(GpuFindings, HasTheTrialOfEachGpu) {
  GpuEvidence evidence = TwoGpus();
  (*evidence.report)["gpus"][1]["memory_plan"] = GoodTrial();
  EXPECT_EQ(Find(GpuFindings(evidence), "cuda 1 memory plan").health, Health::kOk);
}

TEST(GpuFindings, WithoutAGpuThereIsOneLine) {
  const auto findings = GpuFindings(GpuEvidence());
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].detail, "no GPU");
  EXPECT_EQ(findings[0].health, Health::kOk);
}

TEST(GpuFindings, ADriverThatDoesNotAnswerOrIsTooOld) {
  GpuEvidence evidence;
  evidence.gpus = absl::UnavailableError("the NVIDIA driver does not answer");
  EXPECT_EQ(Find(GpuFindings(evidence), "driver").health, Health::kError);
  evidence = TwoGpus();
  evidence.driver_library = absl::FailedPreconditionError("the NVIDIA driver 535 supports 12.2");
  const Finding finding = Find(GpuFindings(evidence), "driver");
  EXPECT_EQ(finding.health, Health::kError);
  EXPECT_THAT(finding.detail, HasSubstr("535 supports 12.2"));
}

TEST(GpuFindings, LibrariesForForwardCompatibilityAreNamed) {
  GpuEvidence evidence = TwoGpus();
  evidence.driver_library = "/opt/tercio/lib/compat";
  (*evidence.report)["cuda_driver"] = 13000;
  const Finding good = Find(GpuFindings(evidence), "driver");
  EXPECT_EQ(good.health, Health::kOk);
  EXPECT_THAT(good.detail, HasSubstr("trainers load /opt/tercio/lib/compat"));
  (*evidence.report)["cuda_driver"] = 12080;
  const Finding old = Find(GpuFindings(evidence), "driver");
  EXPECT_EQ(old.health, Health::kError);
  EXPECT_THAT(old.detail, HasSubstr("library in /opt/tercio/lib/compat supports CUDA 12.8"));
}

TEST(GpuFindings, WithoutATrainerRatesAreNotKnown) {
  GpuEvidence evidence = TwoGpus();
  evidence.report = absl::NotFoundError("cannot start tercio-trainer-cuda");
  const auto findings = GpuFindings(evidence);
  EXPECT_EQ(Find(findings, "libraries").health, Health::kUnknown);
  EXPECT_EQ(Find(findings, "gpu 1").health, Health::kOk);
}

TEST(GpuFindings, WhatKeepsRanksOffIsAnError) {
  GpuEvidence evidence = TwoGpus();
  evidence.samples[1].mig = true;
  auto findings = GpuFindings(evidence);
  EXPECT_EQ(Find(findings, "gpu 0").health, Health::kOk);
  EXPECT_EQ(Find(findings, "gpu 1").health, Health::kError);
  EXPECT_THAT(Find(findings, "gpu 1").detail, HasSubstr("nvidia-smi -i 1 -mig 0"));
  (*evidence.report)["gpus"][0] = {{"gpu", 0}, {"error", "allocating: out of memory"}};
  EXPECT_EQ(Find(GpuFindings(evidence), "cuda 0").health, Health::kError);
  evidence = TwoGpus();
  (*evidence.report)["error"] = "looking for GPUs: no device";
  EXPECT_EQ(Find(GpuFindings(evidence), "cuda").health, Health::kError);
}

// Each case breaks one thing.
struct Case {
  const char* check;
  std::function<void(GpuEvidence&)> spoil;
};

TEST(GpuFindings, WhatSlowsOrThreatensIsAWarning) {
  const Case cases[] = {
      {"gpu 1 memory",
       [](GpuEvidence& e) {
         e.samples[1].processes = {{{4242, int64_t{9} << 30, "other"}}};
       }},
      {"gpu 0 ecc", [](GpuEvidence& e) { e.samples[0].ecc_enabled = false; }},
      {"gpu 0 ecc", [](GpuEvidence& e) { e.samples[0].retirement_pending = true; }},
      {"gpu 0 clocks", [](GpuEvidence& e) { e.samples[0].clock_reasons = 0x40; }},
      {"gpu 0 clocks", [](GpuEvidence& e) { e.samples[0].temperature_celsius = 91; }},
      {"gpu 1 persistence", [](GpuEvidence& e) { e.samples[1].persistence = false; }},
      {"gpu 1 compute mode",
       [](GpuEvidence& e) { e.samples[1].compute_mode = ComputeMode::kExclusive; }},
      {"gpu 1 pcie", [](GpuEvidence& e) { e.samples[1].pcie_lanes = 8; }},
      {"gpu 1 nvlink", [](GpuEvidence& e) { e.samples[1].nvlinks_active = 17; }},
      {"cuda 1 products", [](GpuEvidence& e) { (*e.report)["gpus"][1]["bf16_flops"] = 4.7e14; }},
      {"cuda 1 host link",
       [](GpuEvidence& e) { (*e.report)["gpus"][1]["device_to_host_bytes_per_second"] = 2e10; }},
      {"peers", [](GpuEvidence& e) { (*e.report)["peers"][0]["direct"] = false; }},
  };
  for (const Case& one : cases) {
    GpuEvidence evidence = TwoGpus();
    one.spoil(evidence);
    for (const Finding& finding : GpuFindings(evidence)) {
      if (finding.check != one.check) {
        EXPECT_EQ(finding.health, Health::kOk) << one.check << " spoils " << finding.check;
      }
    }
    const Finding finding = Find(GpuFindings(evidence), one.check);
    EXPECT_EQ(finding.health, Health::kWarning) << one.check;
    EXPECT_NE(finding.mend, "") << one.check;
  }
}

TEST(MachineFindings, LookAtTheDiskThatIsNamed) {
  const TempDir directory;
  const Finding good = Find(MachineFindings(directory.path() + "/not/yet"), "disk");
  EXPECT_NE(good.health, Health::kError);
  EXPECT_THAT(good.detail, HasSubstr(directory.path() + ": "));
  const Finding bad = Find(MachineFindings("/proc"), "disk");
  EXPECT_EQ(bad.health, Health::kError);
  EXPECT_THAT(bad.mend, HasSubstr("--state-dir"));
}

}  // namespace
}  // namespace tercio::cli
