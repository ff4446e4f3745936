// A forward pass row by row, over the keys and values that are already there, has the bits of one
// over all rows: what generating text with a cache rests on.
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "tests/parity/thread_ranks.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/stage_model.h"

namespace tercio::testing {
namespace {

class OneRank {
 public:
  explicit OneRank(v1::JobSpec spec)
      : spec_(std::move(spec)),
        plan_(plan::SliceForRank(
            *plan::BuildPlan(spec_, *plan::LayoutOfJob(spec_), {{"here", 0}}, 2), 0)),
        device_(device::CreateCpuDevice(2)),
        stream_(*device_->CreateStream(device::Device::StreamKind::kCompute)),
        group_(collective::CreateCommunicator(
            {"self", absl::Seconds(1)}, std::move(collective::CreateThreadTransports(1).front()))),
        arena_(*engine::Arena::Allocate(plan_.stage().memory(), *device_)),
        tensors_(plan::TensorsOfStage(spec_.model(), plan_.layout(), 0)),
        model_(spec_, plan_, tensors_, arena_, *stream_, *group_) {
    float* parameters = arena_.Floats("parameters");
    for (int64_t i = 0; i < tensors_.parameter_elements; ++i) {
      parameters[i] = 0.05f * static_cast<float>((i * 7919) % 101 - 50) / 50.0f;
    }
  }

  // Logits of every row, after passes over rows [0, cuts[0]), [cuts[0], cuts[1]), ...
  std::vector<float> Logits(const std::vector<int32_t>& ids, const std::vector<int64_t>& cuts) {
    engine::MicroBatch batch;
    batch.training = false;
    batch.inputs = ids.data();
    int64_t first = 0;
    for (const int64_t cut : cuts) {
      batch.first_row = first;
      batch.rows = cut - first;
      model_.Forward(batch);
      first = cut;
    }
    std::vector<float> all;
    for (int64_t row = 0; row < first; ++row) {
      const float* logits = model_.Logits(batch, row, 1);
      all.insert(all.end(), logits, logits + spec_.model().vocab_size());
    }
    return all;
  }

 private:
  v1::JobSpec spec_;
  v1::RankPlan plan_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<collective::Communicator> group_;
  engine::Arena arena_;
  plan::StageTensors tensors_;
  engine::StageModel model_;
};

TEST(Incremental, RowsHaveTheBitsOfTheWhole) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_model()->set_context(150);  // three blocks of queries
    spec.mutable_training()->set_global_batch(1);
    spec.mutable_training()->set_micro_batch(1);
    spec.mutable_resources()->set_ranks(1);
    std::vector<int32_t> ids;
    for (int i = 0; i < 150; ++i) ids.push_back(i * i % 61);
    const std::vector<float> whole = OneRank(spec).Logits(ids, {150});
    std::vector<int64_t> one_by_one;
    for (int64_t i = 1; i <= 150; ++i) one_by_one.push_back(i);
    for (const std::vector<int64_t>& cuts : {one_by_one, std::vector<int64_t>{1, 64, 65, 128, 150},
                                             std::vector<int64_t>{100, 101, 150}}) {
      const std::vector<float> parts = OneRank(spec).Logits(ids, cuts);
      ASSERT_EQ(parts.size(), whole.size());
      EXPECT_EQ(std::memcmp(parts.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << plan::TextOf(spec.model().architecture()) << " in " << cuts.size() << " passes";
    }
  }
}

}  // namespace
}  // namespace tercio::testing
