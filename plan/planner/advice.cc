#include "plan/planner/advice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plan/combinations.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/planner/candidates.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

class Adviser {
 public:
  Adviser(const v1::JobSpec& job, const v1::Layout& layout, const Cluster& cluster)
      : job_(job), layout_(layout), cluster_(cluster) {
    cluster_.ranks = WorldSize(layout);
    Candidates candidates(job, cluster_);
    seconds_ = candidates.Judge(layout).predicted().step_seconds();
  }

  std::vector<Advice> Get() {
    DivideState();
    Recompute();
    if (advice_.empty()) DivideAndRecompute();
    DivideSequences();
    ShrinkMicroBatch();
    Offload();
    AddRanks();
    return std::move(advice_);
  }

 private:
  // Whether it fits; then it is advice.
  bool Try(const std::string& setting, const v1::Layout& layout) {
    return Try(setting, layout, job_);
  }
  bool Try(const std::string& setting, const v1::Layout& layout, const v1::JobSpec& job) {
    Cluster cluster = cluster_;
    cluster.ranks = WorldSize(layout);
    const v1::LayoutCandidate candidate = Candidates(job, cluster).Judge(layout);
    if (!candidate.predicted_valid() || !candidate.rejected().empty()) return false;
    const v1::Prediction& predicted = candidate.predicted();
    advice_.push_back({setting, predicted.memory_bytes_peak(),
                       seconds_ > 0 ? predicted.step_seconds() / seconds_ : 1});
    return true;
  }

  // The least is enough.
  void DivideState() {
    v1::Layout divided = layout_;
    for (int stage = layout_.zero_stage() + 1; stage <= 3 && layout_.data() > 1; ++stage) {
      divided.set_zero_stage(stage);
      if (Try(absl::StrCat("parallelism.zero_stage=", stage), divided)) return;
    }
  }

  void Recompute() {
    v1::Layout recomputed = layout_;
    for (const auto recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
      if (recompute <= layout_.recompute()) continue;
      recomputed.set_recompute(recompute);
      if (Try(absl::StrCat("parallelism.recompute=", TextOf(recompute)), recomputed)) return;
    }
  }

  void DivideAndRecompute() {
    if (layout_.data() == 1 || layout_.zero_stage() == 3) return;
    if (layout_.recompute() == v1::RECOMPUTE_FULL) return;
    v1::Layout both = layout_;
    both.set_zero_stage(3);
    both.set_recompute(v1::RECOMPUTE_FULL);
    Try("parallelism.zero_stage=3 and parallelism.recompute=full", both);
  }

  void DivideSequences() {
    if (layout_.tensor() == 1 || layout_.sequence_parallel()) return;
    v1::Layout divided = layout_;
    divided.set_sequence_parallel(true);
    Try("parallelism.sequence_parallel=true", divided);
  }

  // The largest that fits is the fastest.
  void ShrinkMicroBatch() {
    for (int size = layout_.micro_batch() - 1; size >= 1; --size) {
      if (layout_.micro_batch() % size != 0) continue;
      v1::Layout smaller = layout_;
      SetMicroBatch(job_, size, &smaller);
      if (Try(absl::StrCat("training.micro_batch=", size), smaller)) return;
    }
  }

  void Offload() {
    if (IsElsewhere(job_, job_.offload().optimizer())) {
      const double share = OffloadedShare(job_, layout_);
      if (share <= kLeastShare || share >= kWholeShare) return;
      v1::Layout whole = layout_;
      whole.set_offload_share(kWholeShare);
      Try("offload.share=1", whole);
      return;
    }
    v1::JobSpec offloaded = job_;
    const auto tier = OnGpu(job_) ? v1::OFFLOAD_TIER_HOST : v1::OFFLOAD_TIER_NVME;
    offloaded.mutable_offload()->set_optimizer(tier);
    v1::Layout divided = layout_;
    divided.set_zero_stage(std::max(1, layout_.zero_stage()));
    offloaded.mutable_parallelism()->set_zero_stage(divided.zero_stage());
    if (!BrokenBy(offloaded).empty()) return;
    std::string setting = absl::StrCat("offload.optimizer=", TextOf(tier));
    if (layout_.zero_stage() == 0) absl::StrAppend(&setting, " and parallelism.zero_stage=1");
    Try(setting, divided, offloaded);
  }

  void AddRanks() {
    constexpr int kMostTimes = 8;
    for (int times = 2; times <= kMostTimes; times *= 2) {
      v1::Layout wider = layout_;
      wider.set_tensor(layout_.tensor() * times);
      v1::Layout deeper = layout_;
      deeper.set_pipeline(layout_.pipeline() * times);
      const std::string ranks =
          absl::StrCat("resources.ranks=", WorldSize(wider), " and parallelism.");
      const bool fits = Try(absl::StrCat(ranks, "tensor=", wider.tensor()), wider) ||
                        Try(absl::StrCat(ranks, "pipeline=", deeper.pipeline()), deeper);
      if (fits) return;
    }
  }

  const v1::JobSpec& job_;
  const v1::Layout& layout_;
  Cluster cluster_;
  double seconds_ = 0;
  std::vector<Advice> advice_;
};

}  // namespace

std::vector<Advice> SettingsThatFit(const v1::JobSpec& job, const v1::Layout& layout,
                                    const Cluster& cluster) {
  return Adviser(job, layout, cluster).Get();
}

std::string AdviceText(const std::vector<Advice>& advice) {
  constexpr double kMiB = 1 << 20;
  if (advice.empty()) return "";
  std::vector<std::string> texts;
  for (const Advice& each : advice) {
    texts.push_back(absl::StrFormat("%s (%.1f MiB, a step takes %.2f times as long)", each.setting,
                                    static_cast<double>(each.memory_bytes) / kMiB,
                                    each.step_ratio));
  }
  return absl::StrCat("; it fits with ", absl::StrJoin(texts, ", or "));
}

}  // namespace tercio::plan
