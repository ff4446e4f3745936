#include "worker/engine/promises.h"

#include <map>
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
  const std::map<std::string, bool kernels::Promises::*> promises = {
      {"products of one definition", &kernels::Promises::defined_products},
      {"rows that do not depend on others", &kernels::Promises::independent_rows},
      {"sums over rows in one order", &kernels::Promises::leaf_sums}};
  for (const auto& [missing, promise] : promises) {
    kernels::Promises without = kAll;
    without.*promise = false;
    const absl::Status status = CheckPromises(job, without);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    for (const auto& [name, other] : promises) {
      EXPECT_EQ(status.message().find(name) != std::string::npos, name == missing) << status;
    }
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
