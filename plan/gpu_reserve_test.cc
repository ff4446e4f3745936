#include "plan/gpu_reserve.h"

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

v1::Layout LayoutOf(int tensor, int pipeline, int data, int chunks = 1) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  layout.set_virtual_pipeline(chunks);
  layout.set_context_parallel(1);
  return layout;
}

v1::JobSpec GpuJob() {
  v1::JobSpec job;
  job.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
  job.mutable_model()->set_hidden(64);
  job.mutable_model()->set_heads(4);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_LAYOUT);
  return job;
}

TEST(CommunicatorsOfTest, GroupsOfTheSameRanksShareOne) {
  const v1::ModelSpec model = GpuJob().model();
  const NcclCommunicators alone = CommunicatorsOf(model, LayoutOf(1, 1, 1));
  EXPECT_EQ(alone.wide + alone.narrow + alone.edges, 0);
  for (const auto& layout : {LayoutOf(1, 1, 8), LayoutOf(8, 1, 1)}) {
    const NcclCommunicators one = CommunicatorsOf(model, layout);
    EXPECT_TRUE(one.wide_world);
    EXPECT_EQ(one.wide, 1);
    EXPECT_EQ(one.narrow, 0);
  }
  const NcclCommunicators both = CommunicatorsOf(model, LayoutOf(2, 1, 4));
  EXPECT_FALSE(both.wide_world);
  EXPECT_EQ(both.wide, 2);
  EXPECT_EQ(both.narrow, 1);
  EXPECT_EQ(both.edges, 0);
}

TEST(CommunicatorsOfTest, StagesHaveOneForEachEdgeThatIsUsed) {
  v1::ModelSpec model = GpuJob().model();
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 2, 1)).edges, 4);     // 2 of them for the table
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 2, 1, 2)).edges, 6);  // and the ring
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 4, 1)).edges, 4);
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 4, 1, 2)).edges, 6);
  model.set_untied_head(true);
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 2, 1)).edges, 2);
  EXPECT_EQ(CommunicatorsOf(model, LayoutOf(1, 4, 1)).edges, 4);
}

TEST(GpuReserveTest, GrowsWithCommunicatorsAndOnlyWhereNcclIsUsed) {
  v1::JobSpec job = GpuJob();
  EXPECT_EQ(GpuReserveBytes(job, LayoutOf(1, 1, 1)), kGpuContextBytes);
  EXPECT_EQ(GpuReserveBytes(job, LayoutOf(1, 1, 8)), kGpuContextBytes + kWideCommunicatorBytes);
  EXPECT_EQ(NcclBytes(job, LayoutOf(2, 2, 2)),
            2 * kWideCommunicatorBytes + kNarrowCommunicatorBytes + 4 * kEdgeBytes);
  job.mutable_resources()->set_collectives(v1::COLLECTIVES_HOST);
  EXPECT_EQ(NcclBytes(job, LayoutOf(2, 2, 2)), 0);
  job.mutable_resources()->clear_collectives();
  job.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  EXPECT_EQ(NcclBytes(job, LayoutOf(2, 2, 2)), 0);
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  EXPECT_EQ(NcclBytes(job, LayoutOf(2, 2, 2)), 0);
}

}  // namespace
}  // namespace tercio::plan
