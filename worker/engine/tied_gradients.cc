#include "worker/engine/tied_gradients.h"

#include <algorithm>

namespace tercio::engine {

TiedGradients::TiedGradients(const v1::RankPlan& plan, const plan::StageTensors& tensors,
                             const plan::RankShards& shards, bool is_tied, float* received)
    : stages_(plan.layout().pipeline()), received_(received) {
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    if (entry.frozen) continue;
    const bool is_head = entry.further_use && entry.use == plan::kHeadMatrix;
    if (entry.use == model::kTokenTable) {
      lookup_ = &entry;
      lookup_part_ = shards.own.part(i);
    }
    if (is_head) {
      head_ = &entry;
      head_part_ = shards.own.part(i);
    }
  }
  if (!is_tied) lookup_ = nullptr;
  if (lookup_ == nullptr || head_ == nullptr) return;
  const auto& buckets = plan.stage().buckets();
  comes_first_ = std::none_of(buckets.begin(), buckets.end(), [&](const v1::BucketRange& bucket) {
    return bucket.begin() <= head_->gradient_offset && head_->gradient_offset < bucket.end();
  });
  if (!comes_first_) return;
  // The sum over data ranks comes after it.
  const auto all_of = [](const plan::StageTensor& use) {
    return plan::ShardPart{.begin = 0, .end = use.elements, .sum_offset = use.gradient_offset};
  };
  lookup_part_ = all_of(*lookup_);
  head_part_ = all_of(*head_);
}

void TiedGradients::Join(float* gradients, PipelineLinks& links, device::Stream& stream) const {
  if (lookup_ != nullptr && head_ != nullptr) {
    stream.ops().Add(gradients + lookup_part_.sum_offset, gradients + head_part_.sum_offset,
                     lookup_part_.elements());
    return;
  }
  if (lookup_ == nullptr && head_ == nullptr) return;
  // Both uses are cut alike. The lookup is on the first stage, the head on the last.
  const plan::ShardPart& mine = lookup_ != nullptr ? lookup_part_ : head_part_;
  if (mine.elements() == 0) return;
  const int peer = lookup_ != nullptr ? stages_ - 1 : 0;
  const int64_t bytes = mine.elements() * static_cast<int64_t>(sizeof(float));
  links.Receive(PipelineLinks::kTied, 0, received_, bytes, peer);
  links.Send(PipelineLinks::kTied, 0, gradients + mine.sum_offset, bytes, peer);
  links.WaitReceive(PipelineLinks::kTied, 0);
  links.WaitSend(PipelineLinks::kTied, 0);
  stream.ops().Add(gradients + mine.sum_offset, received_, mine.elements());
}

}  // namespace tercio::engine
