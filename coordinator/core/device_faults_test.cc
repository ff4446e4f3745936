// GPUs that fail: under a run, before it, and while nobody uses them.
#include "coordinator/core/testing/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLost[] = "XID 79 (the GPU has fallen off the bus): restart the node";

v1::JobSpec GpuSpec(int data) {
  v1::JobSpec spec = SmallSpec(data);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return spec;
}

// Nodes of two GPUs.
class GpuCluster : public Cluster {
 public:
  v1::AgentHello Hello(const std::string& node) {
    v1::AgentHello hello;
    hello.set_node(node);
    hello.set_devices(2);
    hello.set_cores(2);
    hello.set_device_kind(v1::DEVICE_KIND_CUDA);
    hello.set_spool_id("s" + node);
    for (int i = 0; i < 2; ++i) {
      v1::DeviceFacts* facts = hello.add_device_facts();
      facts->set_model("H200");
      facts->set_uuid("GPU-" + node + std::to_string(i));
      facts->set_memory_bytes(int64_t{80} << 30);
    }
    return hello;
  }
  Effects AttachGpus(const std::string& node) { return Do(NodeAttached{Hello(node)}); }
  // The whole truth about the node's GPUs.
  Effects SayFaults(const std::string& node, const std::map<int, std::string>& faults,
                    bool ends_runs = true) {
    v1::AgentMessage message;
    message.mutable_heartbeat();
    for (const auto& [device, text] : faults) {
      v1::DeviceFault* fault = message.mutable_heartbeat()->add_device_faults();
      fault->set_device(device);
      fault->set_fault(text);
      fault->set_ends_runs(ends_runs);
    }
    return Do(NodeSaid{node, message});
  }
  int Free(const std::string& node) { return FreeSlots(state_, node); }
};

std::vector<std::string> Messages(const Effects& effects, const std::string& kind) {
  std::vector<std::string> messages;
  for (const v1::JobEvent& event : effects.events) {
    if (event.kind() == kind) messages.push_back(event.message());
  }
  return messages;
}

TEST(DeviceFaults, AFaultyGpuTakesNoRanksUntilItIsWell) {
  GpuCluster cluster;
  cluster.AttachGpus("a");
  EXPECT_EQ(cluster.Free("a"), 2);
  const Effects effects = cluster.SayFaults("a", {{0, kLost}});
  EXPECT_THAT(Messages(effects, "device_faulty"),
              Contains(AllOf(HasSubstr("GPU 0 (H200, GPU-a0)"), HasSubstr(kLost))));
  EXPECT_TRUE(effects.changed_nodes.contains("a"));
  EXPECT_EQ(cluster.Free("a"), 1);
  cluster.Do(Submitted{kJob, GpuSpec(2)});
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_EQ(cluster.job().error(), std::string("waiting: needs 2 GPUs, 1 of 1 are free; GPU 0 of "
                                               "node a is faulty: ") +
                                       kLost);
  const Effects well = cluster.SayFaults("a", {});
  EXPECT_THAT(Messages(well, "device_recovered"), Contains(HasSubstr("GPU 0")));
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.placement().ranks(), 2);
}

TEST(DeviceFaults, AChangeIsAnEventOnceAlsoOverRestarts) {
  GpuCluster cluster;
  cluster.AttachGpus("a");
  EXPECT_EQ(Messages(cluster.SayFaults("a", {{1, kLost}}), "device_faulty").size(), 1u);
  EXPECT_EQ(Messages(cluster.SayFaults("a", {{1, kLost}}), "device_faulty").size(), 0u);
  EXPECT_EQ(Messages(cluster.SayFaults("a", {{1, "another"}}), "device_faulty").size(), 1u);
  cluster.RestartCoordinator();
  v1::AgentHello hello = cluster.Hello("a");
  hello.mutable_device_facts(1)->set_fault("another");
  const Effects effects = cluster.Do(NodeAttached{hello});
  EXPECT_EQ(Messages(effects, "device_faulty").size(), 0u);
  EXPECT_EQ(cluster.Free("a"), 1);
  // An agent that comes back without the fault.
  EXPECT_EQ(Messages(cluster.AttachGpus("a"), "device_recovered").size(), 1u);
  EXPECT_EQ(cluster.Free("a"), 2);
}

TEST(DeviceFaults, ARunOnAGpuThatIsLostGoesOnElsewhere) {
  GpuCluster cluster;
  cluster.AttachGpus("a");
  cluster.AttachGpus("b");
  cluster.Do(Submitted{kJob, GpuSpec(2)});
  ASSERT_EQ(cluster.NodesOfJob(), std::set<std::string>{"a"});
  cluster.StartAll();
  // Some other fault of it: what runs there runs on.
  cluster.SayFaults("a", {{1, "XID 74"}}, /*ends_runs=*/false);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_RUNNING);
  const Effects effects = cluster.SayFaults("a", {{1, kLost}});
  EXPECT_THAT(
      Messages(effects, "attempt_broken"),
      Contains(AllOf(HasSubstr("GPU 1"), HasSubstr("used by rank 1: "), HasSubstr("XID 79"))));
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_STOPPING);
  // The node is not to blame: its other GPU is well.
  EXPECT_EQ(cluster.state_.nodes.at("a").record.faults_size(), 0);
  cluster.StopAll();
  cluster.now_ += 100;
  cluster.SayFaults("a", {{1, kLost}});
  cluster.Beat();
  cluster.Do(Tick{});
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(cluster.placement().NodeOf(rank) == "a" &&
                 cluster.placement().DeviceOf(rank) == 1);
  }
}

TEST(DeviceFaults, AJobThatHasNotStartedIsPlacedAnew) {
  GpuCluster cluster;
  cluster.AttachGpus("a");
  cluster.AttachGpus("b");
  cluster.Do(Submitted{kJob, GpuSpec(2)});
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  cluster.SayFaults("a", {{0, "its memory is taken"}}, /*ends_runs=*/false);
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
  EXPECT_EQ(cluster.placement().NodeOf(0), "a");
  EXPECT_EQ(cluster.placement().DeviceOf(0), 1);
  EXPECT_EQ(cluster.placement().NodeOf(1), "b");
  EXPECT_EQ(cluster.job().restarts(), 0);
}

TEST(DeviceFaults, SlotsThatShareAFaultyGpuAreAllOut) {
  GpuCluster cluster;
  v1::AgentHello hello = cluster.Hello("a");
  hello.set_devices(6);
  hello.mutable_device_facts(1)->set_fault("prohibited");
  cluster.Do(NodeAttached{hello});
  EXPECT_EQ(cluster.Free("a"), 3);
}

TEST(DeviceFaults, ADeviceThatFailedUnderARankIsAvoidedWherePossible) {
  GpuCluster cluster;
  cluster.AttachGpus("a");
  cluster.AttachGpus("b");
  cluster.Do(Submitted{kJob, GpuSpec(1)});
  for (int fault = 0; fault < 5; ++fault) {
    cluster.StartAll();
    cluster.Say(cluster.placement().NodeOf(0), [&](v1::AgentMessage& m) {
      *m.mutable_rank_exited()->mutable_run() = RunWith(cluster.job().attempt());
      m.mutable_rank_exited()->mutable_exit()->set_exit_code(1);
      m.mutable_rank_exited()->mutable_exit()->set_reason("a product");
      m.mutable_rank_exited()->mutable_exit()->set_device_error("GPU: cudaErrorUnknown");
    });
    EXPECT_THAT(cluster.job().error(), HasSubstr("a product; GPU: cudaErrorUnknown"));
    cluster.StopAll();
    ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_BACKING_OFF) << "after fault " << fault;
    cluster.now_ += 1000;  // nobody is quarantined
    cluster.AttachGpus("a");
    cluster.AttachGpus("b");
    cluster.Do(Tick{});
    // a0, a1, b0, b1 in turn; then what there is.
    ASSERT_EQ(cluster.placement().ranks(), 1);
    EXPECT_EQ(cluster.placement().NodeOf(0), fault == 0 || fault > 2 ? "a" : "b") << fault;
    EXPECT_EQ(cluster.placement().DeviceOf(0), fault == 0 || fault == 2 ? 1 : 0) << fault;
  }
}

TEST(DeviceFaults, ATensorGroupIsPutOnGpusOfOneModel) {
  GpuCluster cluster;
  for (const char* node : {"a", "b", "c"}) {
    v1::AgentHello hello = cluster.Hello(node);
    if (node[0] != 'a') hello.mutable_device_facts(0)->set_model("A100");
    cluster.Do(NodeAttached{hello});
  }
  v1::JobSpec spec = GpuSpec(1);
  spec.mutable_parallelism()->set_tensor(4);
  spec.mutable_resources()->set_ranks(4);
  cluster.Do(Submitted{kJob, spec});
  ASSERT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING) << cluster.job().error();
  for (int rank = 0; rank < 4; ++rank) {
    const bool first = rank < 2;
    EXPECT_EQ(cluster.placement().NodeOf(rank), first ? "a" : rank == 2 ? "b" : "c");
    EXPECT_EQ(cluster.placement().DeviceOf(rank), first ? rank : 1);
  }
  // Five are left, and yet not enough of either model.
  cluster.SayFaults("a", {{0, kLost}});
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(
      cluster.job().error(),
      HasSubstr("the 4 GPUs of a tensor group must be of the same model: 3 x H200, 2 x A100"));
}

TEST(DeviceFaults, AJobWaitsForNodesWithTheSameNccl) {
  GpuCluster cluster;
  for (const char* node : {"a", "b"}) {
    v1::AgentHello hello = cluster.Hello(node);
    for (int i = 0; i < 2; ++i)
      hello.mutable_device_facts(i)->set_nccl(node[0] == 'a' ? "2.27.3" : "2.28.9");
    cluster.Do(NodeAttached{hello});
  }
  cluster.Do(Submitted{kJob, GpuSpec(4)});
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  EXPECT_THAT(cluster.job().error(), HasSubstr("the same NCCL version"));
  cluster.AttachGpus("b");  // now of a version that nobody knows
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_QUEUED);
  v1::AgentHello hello = cluster.Hello("b");
  for (int i = 0; i < 2; ++i) hello.mutable_device_facts(i)->set_nccl("2.27.3");
  cluster.Do(NodeAttached{hello});
  EXPECT_EQ(cluster.job().phase(), v1::JOB_PHASE_PREPARING);
}

}  // namespace
}  // namespace tercio::coordinator
