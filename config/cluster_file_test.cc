#include "config/cluster_file.h"

#include <string>
#include <vector>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSelene[] =
    "nodes: [{count: 384, gpus: 8, gpu: a100-80gb, intra_node_bandwidth: 300GB/s,\n"
    "         nics: [{kind: infiniband, count: 8, bandwidth: 25GB/s}]}]\n";

class ClusterFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<ClusterFile> Parse(const std::string& text,
                                    const std::vector<std::string>& what_if = {}) {
    const std::string path = dir_.path() + "/cluster.yaml";
    EXPECT_TRUE(WriteFileDurably(path, text).ok());
    return ParseClusterFile(path, what_if);
  }
  std::string FaultOf(const std::string& text, const std::vector<std::string>& what_if = {}) {
    const auto file = Parse(text, what_if);
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  }

  TempDir dir_;
};

TEST_F(ClusterFileTest, NodesByTheirNames) {
  const auto file = Parse(kSelene);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.devices(), 3072);
  EXPECT_EQ(file->cluster.accelerator.memory_bytes, 80e9);
  EXPECT_EQ(file->cluster.inside.bytes_per_second, 300e9);
  EXPECT_EQ(file->cluster.interfaces_per_node, 8);
  EXPECT_EQ(file->cluster.between.bytes_per_second, 25e9);
  EXPECT_FALSE(file->cost.has_value());
  EXPECT_THAT(file->notices, IsEmpty());
}

TEST_F(ClusterFileTest, NodesByTheirFigures) {
  const auto file = Parse(
      "nodes:\n"
      "  - gpus: 4\n"
      "    gpu: {flops_16: 400TFLOPS, memory: 64GiB, memory_bandwidth: 3TB/s, link_bandwidth: "
      "200GB/s}\n"
      "cost: {per_device_hour: 1.5, currency: EUR}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.devices(), 4);
  EXPECT_EQ(file->cluster.accelerator.flops_16, 400e12);
  EXPECT_EQ(file->cluster.accelerator.memory_bytes, 64.0 * (int64_t{1} << 30));
  EXPECT_EQ(file->cluster.inside.bytes_per_second, 200e9);
  ASSERT_TRUE(file->cost.has_value());
  EXPECT_EQ(file->cost->per_device_hour, 1.5);
  EXPECT_EQ(file->cost->currency, "EUR");
}

constexpr char kTwoKinds[] =
    "nodes:\n"
    "  - {name: new, count: 4, gpus: 8, gpu: a100-80gb, nics: [{count: 8, bandwidth: 25GB/s}]}\n"
    "  - {count: 2, gpus: 4, gpu: v100-32gb, nics: [{count: 2, bandwidth: 12.5GB/s}]}\n";

TEST_F(ClusterFileTest, SeveralKindsOfNodes) {
  const auto file = Parse(kTwoKinds);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.devices(), 40);
  ASSERT_EQ(file->cluster.groups.size(), 2u);
  EXPECT_EQ(file->cluster.groups[0].name, "new");
  EXPECT_EQ(file->cluster.groups[1].name, "nodes[1] V100-32");
  EXPECT_EQ(file->cluster.groups[1].devices(), 8);
  // The slower network joins them where the file names none.
  EXPECT_EQ(file->cluster.between.bytes_per_second, 12.5e9);
  EXPECT_EQ(file->cluster.interfaces_per_node, 2);

  const auto joined = Parse(std::string(kTwoKinds) +
                            "interconnect: {kind: ethernet, bandwidth: 25Gb/s, latency: 30us}\n");
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->cluster.between.bytes_per_second, 25e9 / 8);
  EXPECT_EQ(joined->cluster.between.seconds, 30e-6);
  EXPECT_EQ(joined->cluster.interfaces_per_node, 1);
  EXPECT_EQ(joined->cluster.groups[0].between.bytes_per_second, 25e9);
}

TEST_F(ClusterFileTest, FiguresOfOneKindMayChange) {
  const auto file = Parse(kTwoKinds, {"nodes[1].nic.bandwidth=50GB/s", "nodes[0].nodes=1",
                                      "intra_node_latency=5us", "interconnect.bandwidth=1GB/s"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.devices(), 16);
  EXPECT_EQ(file->cluster.groups[0].between.bytes_per_second, 25e9);
  EXPECT_EQ(file->cluster.groups[1].between.bytes_per_second, 50e9);
  EXPECT_EQ(file->cluster.groups[0].inside.seconds, 5e-6);
  EXPECT_EQ(file->cluster.groups[1].inside.seconds, 5e-6);
  EXPECT_EQ(file->cluster.between.bytes_per_second, 1e9);
  EXPECT_THAT(FaultOf(kTwoKinds, {"nodes=2"}), HasSubstr("such as nodes[0].nodes"));
  EXPECT_THAT(FaultOf(kTwoKinds, {"nodes[2].nodes=2"}), HasSubstr("nodes[0].KEY"));
  EXPECT_THAT(FaultOf(kTwoKinds, {"interconnect.bandwidth=0GB/s"}),
              HasSubstr("--what-if interconnect.bandwidth=0GB/s: '0GB/s'"));
  EXPECT_THAT(FaultOf(kSelene, {"interconnect.bandwidth=1GB/s"}), HasSubstr("expected KEY=VALUE"));
}

TEST_F(ClusterFileTest, WhatJoinsKindsOfNodesIsChecked) {
  EXPECT_THAT(FaultOf(std::string(kSelene) + "interconnect: {bandwidth: 1GB/s}\n"),
              HasSubstr("joins several kinds of nodes"));
  EXPECT_THAT(FaultOf(std::string(kTwoKinds) + "interconnect: {count: 2}\n"),
              HasSubstr("interconnect.bandwidth: missing"));
  EXPECT_THAT(FaultOf("nodes: [{gpus: 8, gpu: h100}, {gpus: 8, gpu: a100-80gb}]\n"),
              HasSubstr("nodes[1].nics: missing"));
  EXPECT_THAT(FaultOf("nodes: [{gpus: 1, gpu: h100}, {gpus: 1, gpu: h100}, {gpus: 1, gpu: h100},\n"
                      "  {gpus: 1, gpu: h100}, {gpus: 1, gpu: h100}]\n"),
              HasSubstr("has 5 kinds of nodes; at most 4"));
}

TEST_F(ClusterFileTest, AllFaultsAreReportedWithTheirLines) {
  const std::string faults = FaultOf(
      "nodes:\n"
      "  - count: 0\n"
      "    gpu: a100-81gb\n"
      "    intra_node_bandwidth: fast\n"
      "    nics: [{bandwidth: -1GB/s, colour: red}]\n"
      "cost: {}\n");
  EXPECT_THAT(faults, HasSubstr("cluster.yaml:2: nodes[0].count"));
  EXPECT_THAT(faults, HasSubstr("nodes[0].gpus: missing"));
  EXPECT_THAT(faults, HasSubstr("the nearest are A100"));
  EXPECT_THAT(faults, HasSubstr("is 'fast'; expected a rate such as 300GB/s, above 0"));
  EXPECT_THAT(faults, HasSubstr("is '-1GB/s'"));
  EXPECT_THAT(faults, HasSubstr("colour"));
  EXPECT_THAT(faults, HasSubstr("cost.per_device_hour: missing"));
  EXPECT_THAT(FaultOf("nodes: []\n"), HasSubstr("nodes: missing"));
  EXPECT_THAT(FaultOf("[1]\n"), HasSubstr("expected a cluster"));
  EXPECT_THAT(FaultOf("nodes: [{count: 2, gpus: 8, gpu: h100}]\n"),
              HasSubstr("nics: missing; how nodes are linked"));
  EXPECT_THAT(FaultOf("nodes: [1]\n"), HasSubstr("expected a map of keys"));
}

TEST_F(ClusterFileTest, BitsForBytesAreNoticed) {
  const auto file =
      Parse("nodes: [{count: 2, gpus: 8, gpu: h100, nics: [{bandwidth: 400GB/s}]}]\n");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->notices.size(), 1u);
  EXPECT_THAT(file->notices[0], HasSubstr("400 Gb/s are 50e9"));
}

TEST_F(ClusterFileTest, FiguresCanBeChanged) {
  const auto file = Parse(kSelene, {"nic.bandwidth=50GB/s", "nodes=16", "gpu=h100"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->cluster.between.bytes_per_second, 50e9);
  EXPECT_EQ(file->cluster.devices(), 128);
  EXPECT_EQ(file->cluster.accelerator.flops_16, 989e12);
  EXPECT_EQ(file->cluster.inside.bytes_per_second, 450e9);
  EXPECT_THAT(FaultOf(kSelene, {"nic.speed=1"}), HasSubstr("with one of gpu, nodes"));
  EXPECT_THAT(FaultOf(kSelene, {"nic.bandwidth=none"}), HasSubstr("'none' is no such figure"));
  EXPECT_THAT(FaultOf(kSelene, {"nodes=0"}), HasSubstr("not above 0"));
  EXPECT_THAT(FaultOf(kSelene, {"gpu=g100"}), HasSubstr("no accelerator is named"));
}

// What a node has for state that is offloaded: assumed, given, changed.
TEST_F(ClusterFileTest, HostsOfNodes) {
  const auto assumed = Parse(kSelene);
  ASSERT_TRUE(assumed.ok()) << assumed.status();
  EXPECT_EQ(assumed->cluster.host.link_bytes_per_second, 25e9);
  EXPECT_EQ(assumed->cluster.host.memory_bytes, 8 * 128e9);
  const std::string node =
      "nodes: [{gpus: 4, gpu: h100, host_link_bandwidth: 40GB/s, host_memory: 2TB,\n"
      "         host_memory_bandwidth: 400GB/s, disk_bandwidth: 6GB/s}]\n";
  const auto given = Parse(node);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->cluster.host.link_bytes_per_second, 40e9);
  EXPECT_EQ(given->cluster.host.memory_bytes_per_second, 400e9);
  EXPECT_EQ(given->cluster.host.memory_bytes, 2e12);
  EXPECT_EQ(given->cluster.host.disk_bytes_per_second, 6e9);
  EXPECT_THAT(given->notices, IsEmpty());
  const auto changed = Parse(node, {"host_link_bandwidth=450GB/s", "host_memory_bandwidth=1TB/s",
                                    "host_memory=512GB", "disk_bandwidth=1GB/s"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->cluster.host.link_bytes_per_second, 450e9);
  EXPECT_EQ(changed->cluster.host.memory_bytes_per_second, 1e12);
  EXPECT_EQ(changed->cluster.host.memory_bytes, 512e9);
  EXPECT_EQ(changed->cluster.host.disk_bytes_per_second, 1e9);
  // Another GPU is linked as such GPUs are.
  const auto other = Parse(kSelene, {"gpu=gh200"});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->cluster.host.link_bytes_per_second, 450e9);
  EXPECT_THAT(FaultOf("nodes: [{gpus: 4, gpu: h100, host_memory: much}]\n"),
              HasSubstr("host_memory: is 'much'; expected a size such as 1TB"));
}

TEST_F(ClusterFileTest, FaultsOfNodes) {
  const std::string selene = kSelene;
  const auto none = Parse(selene);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->faults.node_mtbf.has_value());
  const auto file =
      Parse(selene +
            "faults: {node_mtbf: 240d, detect: 15s, restart: 10m, spare_nodes: 4, replace: 4h,\n"
            "         checkpoint_pause: 5s, checkpoint_bandwidth: 60GB/s, pass_jitter: 0.02,\n"
            "         step_jitter: 0.01, slow_gpus: 0.001, slow_by: 0.1}\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->faults.node_mtbf, 240.0 * 86400);
  EXPECT_EQ(file->faults.detect, 15);
  EXPECT_EQ(file->faults.restart, 600);
  EXPECT_EQ(file->faults.spare_nodes, 4);
  EXPECT_EQ(file->faults.replace, 4 * 3600);
  EXPECT_EQ(file->faults.checkpoint_pause, 5);
  EXPECT_EQ(file->faults.checkpoint_bandwidth, 60e9);
  EXPECT_FALSE(file->faults.checkpoint_write.has_value());
  EXPECT_EQ(file->faults.pass_jitter, 0.02);
  EXPECT_EQ(file->faults.step_jitter, 0.01);
  EXPECT_EQ(file->faults.slow_gpus, 0.001);
  EXPECT_EQ(file->faults.slow_by, 0.1);
}

TEST_F(ClusterFileTest, FaultsOfTheSectionOfFaults) {
  const std::string selene = kSelene;
  const std::string faults = FaultOf(selene +
                                     "faults:\n"
                                     "  node_mtbf: 0d\n"
                                     "  restart: soon\n"
                                     "  spare_nodes: 1.5\n"
                                     "  pass_jitter: 2\n"
                                     "  checkpoint_write: 10s\n"
                                     "  checkpoint_bandwidth: 1GB/s\n"
                                     "  mtbf: 1d\n");
  EXPECT_THAT(faults, HasSubstr("cluster.yaml:4: faults.node_mtbf: is '0d'; expected a time above "
                                "0 such as 240d"));
  EXPECT_THAT(faults, HasSubstr("faults.restart: is 'soon'; expected a time such as 30s"));
  EXPECT_THAT(faults, HasSubstr("faults.spare_nodes: is '1.5'; expected a whole number"));
  EXPECT_THAT(faults, HasSubstr("faults.pass_jitter: is '2'; expected a share"));
  EXPECT_THAT(faults, HasSubstr("checkpoint_bandwidth: is given beside checkpoint_write"));
  EXPECT_THAT(faults, HasSubstr("mtbf"));
}

TEST_F(ClusterFileTest, FaultsCanBeChanged) {
  const std::string text = std::string(kSelene) + "faults: {restart: 10m, checkpoint_write: 1m}\n";
  const auto file = Parse(
      text, {"faults.restart=2m", "faults.node_mtbf=1y", "faults.checkpoint_bandwidth=10GB/s"});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->faults.restart, 120);
  EXPECT_EQ(file->faults.node_mtbf, 365.25 * 86400);
  EXPECT_EQ(file->faults.checkpoint_bandwidth, 10e9);
  EXPECT_FALSE(file->faults.checkpoint_write.has_value());
  EXPECT_THAT(
      FaultOf(text, {"faults.restart=soon"}),
      HasSubstr("--what-if faults.restart=soon: 'soon' is no such figure; expected a time"));
  EXPECT_THAT(FaultOf(text, {"faults.mtbf=1d"}), HasSubstr("faults.node_mtbf"));
}

}  // namespace
}  // namespace tercio::config
