#include "plan/planner/cost/hardware.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plan::cost {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ClusterModel Selene(int nodes) { return MakeCluster(*AcceleratorOf("A100-80"), 8, nodes, 8, 25e9); }

TEST(Hardware, EveryAcceleratorMakesAPlausibleCluster) {
  for (const Accelerator& accelerator : Accelerators()) {
    const ClusterModel cluster = MakeCluster(accelerator, 8, 2, 8, 25e9);
    EXPECT_TRUE(CheckCluster(cluster).ok()) << accelerator.name << CheckCluster(cluster);
    EXPECT_THAT(ImplausibleFigures(cluster), IsEmpty()) << accelerator.name;
    EXPECT_FALSE(accelerator.source.empty());
  }
}

TEST(Hardware, UnknownNamesGetTheNearestOnes) {
  const absl::Status status = AcceleratorOf("H-100").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("H-100"), HasSubstr("are H100")));
}

TEST(Hardware, DriversNamesAreKnown) {
  const auto name = [](std::string_view driver) {
    const Accelerator* accelerator = FindDriverName(driver);
    return accelerator == nullptr ? "" : std::string(accelerator->name);
  };
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(name("NVIDIA H100 PCIe"), "H100-PCIe");
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB"), "A100-40");
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB"), "A100-80");
  EXPECT_EQ(name("NVIDIA GH200 480GB"), "GH200");
  EXPECT_EQ(name("NVIDIA GB200"), "GB200");
  EXPECT_EQ(name("Tesla V100-SXM2-32GB"), "V100-32");
  EXPECT_EQ(name("GeForce"), "");
}

TEST(Hardware, MissingFiguresAreNamed) {
  ClusterModel cluster = Selene(4);
  EXPECT_EQ(cluster.devices(), 32);
  cluster.between.bytes_per_second = 0;
  EXPECT_THAT(std::string(CheckCluster(cluster).message()),
              AllOf(HasSubstr("between.bytes_per_second is 0"), HasSubstr("give what a network")));
  // One node needs no network.
  cluster.nodes = 1;
  EXPECT_TRUE(CheckCluster(cluster).ok());
  cluster.accelerator.memory_bytes_per_second = -1;
  EXPECT_THAT(std::string(CheckCluster(cluster).message()),
              HasSubstr("accelerator.memory_bytes_per_second is -1"));
  cluster = Selene(4);
  cluster.accelerator.product_share = 87;
  EXPECT_THAT(std::string(CheckCluster(cluster).message()), HasSubstr("at most 1"));
  cluster = Selene(4);
  cluster.inside.seconds = -1e-6;
  EXPECT_THAT(std::string(CheckCluster(cluster).message()), HasSubstr("latency"));
}

// What is assumed of hosts follows from how devices are linked to them.
TEST(Hardware, HostsAreAssumed) {
  const auto host = [](std::string_view name, int devices) {
    return MakeCluster(*AcceleratorOf(name), devices, 1, 1, 25e9).host;
  };
  EXPECT_EQ(host("V100-32", 8).link_bytes_per_second, 12.5e9);
  EXPECT_EQ(host("A100-80", 8).link_bytes_per_second, 25e9);
  EXPECT_EQ(host("H100", 8).link_bytes_per_second, 50e9);
  EXPECT_EQ(host("GH200", 1).link_bytes_per_second, 450e9);
  EXPECT_EQ(host("A100-80", 8).memory_bytes_per_second, host("A100-80", 1).memory_bytes_per_second);
  EXPECT_EQ(host("GH200", 4).memory_bytes_per_second, 4 * host("GH200", 1).memory_bytes_per_second);
  EXPECT_EQ(host("A100-80", 8).memory_bytes, 1024e9);
  // One that nobody has described is on PCIe 4.
  Accelerator own = *AcceleratorOf("H100");
  own.host_link_bytes_per_second = 0;
  EXPECT_EQ(MakeCluster(own, 8, 1, 1, 25e9).host.link_bytes_per_second, 25e9);
  ClusterModel cluster = Selene(1);
  cluster.host.disk_bytes_per_second = 0;
  EXPECT_THAT(std::string(CheckCluster(cluster).message()),
              HasSubstr("host.disk_bytes_per_second is 0"));
}

TEST(Hardware, UnitsThatAreMixedUpAreSuspected) {
  ClusterModel cluster = Selene(4);
  cluster.between.bytes_per_second = 200e9;  // Gb/s
  EXPECT_THAT(ImplausibleFigures(cluster), ElementsAre(HasSubstr("400 Gb/s are 50e9")));
  cluster = Selene(4);
  cluster.accelerator.flops_16 = 312;
  EXPECT_THAT(ImplausibleFigures(cluster), ElementsAre(HasSubstr("not TFLOP/s")));
  cluster = Selene(4);
  cluster.host.memory_bytes = 1024;
  EXPECT_THAT(ImplausibleFigures(cluster), ElementsAre(HasSubstr("bytes of a node, not GB")));
}

}  // namespace
}  // namespace tercio::plan::cost
