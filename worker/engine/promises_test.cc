#include "worker/engine/promises.h"

#include <string>

#include "gtest/gtest.h"

namespace tercio::engine {
namespace {

constexpr kernels::Promises kAll = {
    .defined_products = true, .independent_rows = true, .leaf_sums = true};

v1::JobSpec JobOn(v1::DeviceKind device) {
  v1::JobSpec job;
  job.mutable_resources()->set_device(device);
  return job;
}

TEST(Promises, AJobOnCpusNeedsEachOfThem) {
  const v1::JobSpec job = JobOn(v1::DEVICE_KIND_CPU);
  EXPECT_TRUE(CheckPromises(job, kAll).ok());
  for (bool kernels::Promises::*promise :
       {&kernels::Promises::defined_products, &kernels::Promises::independent_rows,
        &kernels::Promises::leaf_sums}) {
    kernels::Promises without = kAll;
    without.*promise = false;
    const absl::Status status = CheckPromises(job, without);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(std::string(status.message()).find(", "), status.message().rfind(", "))
        << "names more than the missing one: " << status;
  }
}

TEST(Promises, AJobOnGpusNeedsNone) {
  v1::JobSpec job = JobOn(v1::DEVICE_KIND_CUDA);
  EXPECT_TRUE(CheckPromises(job, {}).ok());
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  EXPECT_TRUE(CheckPromises(job, {}).ok());
}

}  // namespace
}  // namespace tercio::engine
