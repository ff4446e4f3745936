// A forward pass in parts, over the keys and values that are already there, has the bits of one
// over all rows, also beside parts of other sequences: what generating text with a cache, and
// several texts at once, rests on.
#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "tests/parity/thread_ranks.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/stage_model.h"
#include "worker/inference/key_cache.h"

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
    std::vector<float> all;
    int64_t first = 0;
    for (const int64_t cut : cuts) {
      Pass({{.sequence = 0, .first_position = first, .rows = cut - first}}, {ids});
      for (int64_t row = 0; row < cut - first; ++row) AppendLogits(row, &all);
      first = cut;
    }
    return all;
  }

  // The same of several sequences, which begin in one pass after the other and then grow by `step`
  // rows in each.
  std::vector<std::vector<float>> LogitsTogether(const std::vector<std::vector<int32_t>>& ids,
                                                 int64_t step, bool in_pages = false) {
    const inference::CachePlan plan =
        *inference::PlanCache(spec_.model(), static_cast<int64_t>(ids.size()), 0);
    const auto memory = *device_->Allocate(plan.bytes());
    const blocks::KeyCache cache = {.data = reinterpret_cast<float*>(memory->data()),
                                    .pages = plan.pages,
                                    .page_tokens = plan.page_tokens,
                                    .page_elements = plan.page_elements};
    // Sequences take turns with the pages.
    std::vector<std::vector<int32_t>> pages(ids.size());
    for (int64_t page = 0; page < plan.pages; ++page) {
      pages[static_cast<size_t>(page) % ids.size()].push_back(static_cast<int32_t>(page));
    }
    std::vector<std::vector<float>> all(ids.size());
    std::vector<int64_t> known(ids.size());
    for (size_t pass = 0;; ++pass) {
      std::vector<blocks::SequencePart> parts;
      for (size_t i = 0; i < std::min(ids.size(), pass + 1); ++i) {
        const int64_t rows = std::min(step, static_cast<int64_t>(ids[i].size()) - known[i]);
        if (rows > 0) {
          parts.push_back({static_cast<int64_t>(i), known[i], rows, pages[i].data()});
        }
      }
      if (parts.empty()) return all;
      Pass(parts, ids, in_pages ? &cache : nullptr);
      int64_t row = 0;
      for (const blocks::SequencePart& part : parts) {
        const auto i = static_cast<size_t>(part.sequence);
        for (int64_t last = row + part.rows; row < last; ++row) AppendLogits(row, &all[i]);
        known[i] += part.rows;
      }
    }
  }

 private:
  void Pass(const std::vector<blocks::SequencePart>& parts,
            const std::vector<std::vector<int32_t>>& ids, const blocks::KeyCache* cache = nullptr) {
    std::vector<int32_t> inputs;
    std::vector<int32_t> positions;
    for (const blocks::SequencePart& part : parts) {
      const auto begin = ids[static_cast<size_t>(part.sequence)].begin() +
                         static_cast<ptrdiff_t>(part.first_position);
      inputs.insert(inputs.end(), begin, begin + static_cast<ptrdiff_t>(part.rows));
      for (int64_t i = 0; i < part.rows; ++i) {
        positions.push_back(static_cast<int32_t>(part.first_position + i));
      }
    }
    blocks::MicroBatch batch;
    batch.training = false;
    batch.inputs = inputs.data();
    batch.parts = parts;
    batch.cache = cache;
    if (cache != nullptr) batch.positions = positions.data();
    model_.Forward(batch);
  }

  void AppendLogits(int64_t row, std::vector<float>* out) {
    const float* logits = model_.Logits({}, row, 1);
    out->insert(out->end(), logits, logits + spec_.model().vocab_size());
  }

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

TEST(Incremental, SequencesHaveTheBitsOfEachAlone) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_model()->set_context(40);
    spec.mutable_training()->set_global_batch(3);
    spec.mutable_training()->set_micro_batch(3);
    spec.mutable_resources()->set_ranks(1);
    std::vector<std::vector<int32_t>> ids(3);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t k = 0; k < 40 - 9 * i; ++k) {
        ids[i].push_back(static_cast<int32_t>((k * k + 7 * i) % 61));
      }
    }
    for (const int64_t step : {1, 5}) {
      const std::vector<std::vector<float>> together = OneRank(spec).LogitsTogether(ids, step);
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::vector<float> alone =
            OneRank(spec).Logits(ids[i], {static_cast<int64_t>(ids[i].size())});
        ASSERT_EQ(together[i].size(), alone.size());
        EXPECT_EQ(std::memcmp(together[i].data(), alone.data(), alone.size() * sizeof(float)), 0)
            << plan::TextOf(spec.model().architecture()) << ", sequence " << i << " in steps of "
            << step;
      }
    }
  }
}

TEST(Incremental, SequencesInPagesHaveTheBitsOfEachAlone) {
  for (v1::JobSpec spec : {SmallJob(), SmallLlama()}) {
    spec.mutable_model()->set_context(150);  // three pages
    spec.mutable_training()->set_global_batch(3);
    spec.mutable_training()->set_micro_batch(3);
    spec.mutable_resources()->set_ranks(1);
    std::vector<std::vector<int32_t>> ids(3);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t k = 0; k < 150 - 60 * i; ++k) {
        ids[i].push_back(static_cast<int32_t>((k * k + 7 * i) % 61));
      }
    }
    std::vector<std::vector<float>> alone;
    for (const std::vector<int32_t>& one : ids) {
      alone.push_back(OneRank(spec).Logits(one, {static_cast<int64_t>(one.size())}));
    }
    // Layers that share the fields of a pass are what generating text computes with.
    spec.mutable_parallelism()->set_recompute(v1::RECOMPUTE_FULL);
    for (const int64_t step : {1, 37, 150}) {
      const std::vector<std::vector<float>> together =
          OneRank(spec).LogitsTogether(ids, step, /*in_pages=*/true);
      for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(together[i].size(), alone[i].size());
        EXPECT_EQ(std::memcmp(together[i].data(), alone[i].data(), alone[i].size() * sizeof(float)),
                  0)
            << plan::TextOf(spec.model().architecture()) << ", sequence " << i << " in steps of "
            << step;
      }
    }
  }
}

}  // namespace
}  // namespace tercio::testing
