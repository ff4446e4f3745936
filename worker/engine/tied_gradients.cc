#include "worker/engine/tied_gradients.h"

#include <algorithm>

namespace tercio::engine {

TiedGradients::TiedGradients(const v1::RankPlan& plan, const plan::StageTensors& tensors,
                             const plan::RankShards& shards, bool is_tied, float* received)
    : stages_(plan.layout().pipeline()), received_(received) {
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    const bool is_head = entry.further_use && entry.use == plan::kHeadMatrix;
    if (entry.use == model::kTokenTable) lookup_ = &entry;
    if (is_head) head_ = &entry;
    // Both uses are cut alike.
    if (is_head || entry.use == model::kTokenTable) part_ = shards.own.part(i);
  }
  if (!is_tied) lookup_ = nullptr;
  if (lookup_ == nullptr || head_ == nullptr) return;
  const auto& buckets = plan.stage().buckets();
  comes_first_ = std::none_of(buckets.begin(), buckets.end(), [&](const v1::BucketRange& bucket) {
    return bucket.begin() <= head_->gradient_offset && head_->gradient_offset < bucket.end();
  });
  // The sum over data ranks comes after it.
  if (comes_first_) part_ = {.begin = 0, .end = lookup_->elements};
}

void TiedGradients::Join(float* gradients, PipelineLinks& links, device::Stream& stream) const {
  const auto place = [&](const plan::StageTensor& use) {
    return gradients + use.gradient_offset + part_.begin;
  };
  if (lookup_ != nullptr && head_ != nullptr) {
    stream.ops().Add(place(*lookup_), place(*head_), part_.elements());
    return;
  }
  const plan::StageTensor* mine = lookup_ != nullptr ? lookup_ : head_;
  if (mine == nullptr || part_.elements() == 0) return;
  // The lookup is on the first stage, the head on the last.
  const int peer = lookup_ != nullptr ? stages_ - 1 : 0;
  const int64_t bytes = part_.elements() * static_cast<int64_t>(sizeof(float));
  links.Receive(PipelineLinks::kTied, 0, received_, bytes, peer);
  links.Send(PipelineLinks::kTied, 0, place(*mine), bytes, peer);
  links.WaitReceive(PipelineLinks::kTied, 0);
  links.WaitSend(PipelineLinks::kTied, 0);
  stream.ops().Add(place(*mine), received_, part_.elements());
}

}  // namespace tercio::engine
