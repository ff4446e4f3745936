#include "common/gpus/gpu_faults.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using testing::HasSubstr;

class GpuFaultsTest : public testing::Test {
 protected:
  std::string Text() const {
    const auto fault = FaultOf(gpu_, sample_, circumstances_);
    return fault.has_value() ? fault->text : "";
  }
  bool EndsRuns() const { return FaultOf(gpu_, sample_, circumstances_).value().ends_runs; }

  Gpu gpu_ = {3, "Fake GPU", "GPU-3", int64_t{80} << 30, ""};
  GpuSample sample_;
  GpuCircumstances circumstances_;
};

TEST_F(GpuFaultsTest, AGpuThatSaysNothingIsWell) { EXPECT_EQ(Text(), ""); }

TEST_F(GpuFaultsTest, XidsAreJudgedByTheCatalog) {
  // Those of programs, those that are only recorded, and one that is not known.
  circumstances_.xids = {31, 13, 43, 45, 94, 63, 4711};
  EXPECT_EQ(Text(), "");
  circumstances_.xids = {31, 74};
  EXPECT_THAT(Text(), HasSubstr("XID 74 (NVLink error): reset it (nvidia-smi --gpu-reset -i 3)"));
  EXPECT_FALSE(EndsRuns());
  circumstances_.xids = {74, 79, 45};
  EXPECT_EQ(Text(), "XID 79 (the GPU has fallen off the bus): restart the node");
  EXPECT_TRUE(EndsRuns());
  for (const int xid : {46, 62, 95, 109, 119, 120, 140, 158}) {
    EXPECT_EQ(EffectOfXid(xid), XidEffect::kEndsAll) << xid;
  }
  // A process gets these errors from CUDA itself; the GPU is reset when it is idle.
  for (const int xid : {48, 64, 136}) EXPECT_EQ(EffectOfXid(xid), XidEffect::kNoNewWork) << xid;
}

TEST_F(GpuFaultsTest, LostOrToBeReset) {
  sample_.lost = true;
  EXPECT_THAT(Text(), HasSubstr("restart the node"));
  EXPECT_TRUE(EndsRuns());
  sample_.lost = false;
  sample_.reset_required = true;
  EXPECT_THAT(Text(), HasSubstr("--gpu-reset -i 3"));
  EXPECT_TRUE(EndsRuns());
}

TEST_F(GpuFaultsTest, ADriverThatKnowsNothing) {
  sample_.error = "Unknown Error";
  EXPECT_THAT(Text(), HasSubstr("Unknown Error"));
  EXPECT_FALSE(EndsRuns());
}

TEST_F(GpuFaultsTest, MemoryThatIsFaulty) {
  sample_.ecc_corrected = 1000;
  sample_.retirement_pending = true;
  EXPECT_EQ(Text(), "");
  sample_.ecc_uncorrected = 1;
  EXPECT_THAT(Text(), HasSubstr("uncorrected ECC errors"));
  EXPECT_FALSE(EndsRuns());
  sample_.remap_failed = true;
  EXPECT_THAT(Text(), HasSubstr("replace it"));
}

TEST_F(GpuFaultsTest, ModesThatKeepTrainersOut) {
  sample_.compute_mode = ComputeMode::kProhibited;
  EXPECT_THAT(Text(), HasSubstr("nvidia-smi -i 3 -c DEFAULT"));
  sample_.compute_mode = ComputeMode::kExclusive;
  EXPECT_EQ(Text(), "");
  circumstances_.shared = true;
  EXPECT_THAT(Text(), HasSubstr("ranks have to share it"));
  sample_.mig = true;
  EXPECT_THAT(Text(), HasSubstr("nvidia-smi -i 3 -mig 0"));
}

TEST_F(GpuFaultsTest, MemoryThatOthersHave) {
  circumstances_.others_bytes = int64_t{1} << 30;
  sample_.processes = {{{4242, int64_t{1} << 30, ""}}};
  EXPECT_EQ(Text(), "");
  sample_.processes->push_back({4243, 1, ""});
  EXPECT_THAT(Text(), HasSubstr("the largest process 4242; "));
  sample_.processes->front().name = "python3";
  EXPECT_THAT(Text(), HasSubstr("the largest process 4242 (python3); "));
  EXPECT_THAT(Text(), HasSubstr("--gpu-others"));
  circumstances_.in_use = true;
  EXPECT_EQ(Text(), "");
}

TEST(CheckDriver, ComparesMajorVersions) {
  EXPECT_TRUE(CheckDriver("580.1", 13000, 13020).ok());
  EXPECT_TRUE(CheckDriver("580.1", 13000, 12080).ok());
  EXPECT_TRUE(CheckDriver("", 0, 13000).ok());
  const absl::Status status = CheckDriver("535.54", 12020, 13000);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("driver 535.54 supports CUDA 12.2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("install driver 580 or newer"));
}

TEST(DeviceErrorIn, FindsErrorsOfTheDeviceOnly) {
  EXPECT_EQ(DeviceErrorIn("the work on the GPU: x (cudaErrorECCUncorrectable); y"),
            "cudaErrorECCUncorrectable");
  EXPECT_EQ(DeviceErrorIn("the work on the GPU: x (cudaErrorIllegalAddress)"), "");
  EXPECT_EQ(DeviceErrorIn("a loss that is not finite"), "");
}

}  // namespace
}  // namespace tercio
