#include "common/gpus/driver_library.h"

#include <cstdlib>
#include <fstream>

#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DriverQuestion OldDriver() {
  return {.driver = "550.54.15",
          .driver_cuda = 12040,
          .runtime = 13000,
          .models = {"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"},
          .compat_folder = "/opt/tercio/lib/compat"};
}

TEST(ChooseDriverLibrary, APackageIsUsedOnlyWhereTheDriverIsOlder) {
  EXPECT_EQ(ChooseDriverLibrary(OldDriver()).value(), "/opt/tercio/lib/compat");
  DriverQuestion question = OldDriver();
  for (const int cuda : {13000, 13020, 14000, 0}) {
    question.driver_cuda = cuda;
    EXPECT_EQ(ChooseDriverLibrary(question).value(), "") << cuda;
  }
}

TEST(ChooseDriverLibrary, WithoutThePackageItSaysWhatHelps) {
  DriverQuestion question = OldDriver();
  question.compat_folder = "";
  const absl::Status status = ChooseDriverLibrary(question).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("driver 550.54.15 supports CUDA 12.4"), HasSubstr("built with CUDA 13.0"),
            HasSubstr("driver 580 or newer"), HasSubstr("cuda-compat-13-0")));
}

TEST(ChooseDriverLibrary, OtherGpusNeedTheDriver) {
  DriverQuestion question = OldDriver();
  question.models.emplace_back("NVIDIA GeForce RTX 4090");
  const absl::Status status = ChooseDriverLibrary(question).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("driver 580 or newer"),
                    HasSubstr("does not support a NVIDIA GeForce RTX 4090")));
}

TEST(IsDataCentreGpu, ByTheNameOfTheModel) {
  for (const char* model :
       {"NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L4", "NVIDIA L40S",
        "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA B200", "Tesla V100-SXM2-32GB",
        "Tesla T4", "NVIDIA T4"}) {
    EXPECT_TRUE(IsDataCentreGpu(model)) << model;
  }
  for (const char* model :
       {"NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000", "NVIDIA TITAN V", "NVIDIA T1000 8GB",
        "Quadro RTX 8000", "Quadro P2000", "Fake GPU", ""}) {
    EXPECT_FALSE(IsDataCentreGpu(model)) << model;
  }
}

TEST(FindCompatFolder, TheOneThatIsNamedThenTheOneBesideTheLibraries) {
  const TempDir folder;
  const std::string libraries = folder.path();
  unsetenv("TERCIO_CUDA_COMPAT");
  // The major version of no CUDA, so that nothing that this machine has counts.
  EXPECT_EQ(FindCompatFolder(libraries, 99000), "");
  ASSERT_EQ(std::system(("mkdir " + libraries + "/compat " + libraries + "/named").c_str()), 0);
  EXPECT_EQ(FindCompatFolder(libraries, 99000), "");
  std::ofstream(libraries + "/compat/libcuda.so.1") << "x";
  EXPECT_EQ(FindCompatFolder(libraries, 99000), libraries + "/compat");
  setenv("TERCIO_CUDA_COMPAT", (libraries + "/named").c_str(), 1);
  EXPECT_EQ(FindCompatFolder(libraries, 99000), libraries + "/compat");
  std::ofstream(libraries + "/named/libcuda.so.1") << "x";
  EXPECT_EQ(FindCompatFolder(libraries, 99000), libraries + "/named");
  unsetenv("TERCIO_CUDA_COMPAT");
}

TEST(PutLibrariesFirst, KeepsWhatWasThere) {
  unsetenv("LD_LIBRARY_PATH");
  PutLibrariesFirst("/a");
  EXPECT_STREQ(std::getenv("LD_LIBRARY_PATH"), "/a");
  PutLibrariesFirst("/b");
  EXPECT_STREQ(std::getenv("LD_LIBRARY_PATH"), "/b:/a");
}

}  // namespace
}  // namespace tercio
