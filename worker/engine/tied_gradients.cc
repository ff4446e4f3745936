#include "worker/engine/tied_gradients.h"

#include <algorithm>

namespace tercio::engine {

TiedGradients::TiedGradients(const v1::RankPlan& plan, const plan::StageTensors& tensors,
                             bool is_tied, float* received)
    : stages_(plan.layout().pipeline()), received_(received) {
  for (const plan::StageTensor& entry : tensors.tensors) {
    if (entry.use == model::kTokenTable) lookup_ = &entry;
    if (entry.further_use && entry.use == plan::kHeadMatrix) head_ = &entry;
  }
  if (!is_tied) lookup_ = nullptr;
  if (lookup_ == nullptr || head_ == nullptr) return;
  const auto& buckets = plan.stage().buckets();
  comes_first_ = std::none_of(buckets.begin(), buckets.end(), [&](const v1::BucketRange& bucket) {
    return bucket.begin() <= head_->gradient_offset && head_->gradient_offset < bucket.end();
  });
}

void TiedGradients::Join(float* gradients, PipelineLinks& links, device::Stream& stream) const {
  if (lookup_ != nullptr && head_ != nullptr) {
    stream.ops().Add(gradients + lookup_->gradient_offset, gradients + head_->gradient_offset,
                     lookup_->elements);
    return;
  }
  const plan::StageTensor* mine = lookup_ != nullptr ? lookup_ : head_;
  if (mine == nullptr) return;
  // The lookup is on the first stage, the head on the last.
  const int peer = lookup_ != nullptr ? stages_ - 1 : 0;
  const int64_t bytes = mine->elements * static_cast<int64_t>(sizeof(float));
  links.Receive(PipelineLinks::kTied, 0, received_, bytes, peer);
  links.Send(PipelineLinks::kTied, 0, gradients + mine->gradient_offset, bytes, peer);
  links.WaitReceive(PipelineLinks::kTied, 0);
  links.WaitSend(PipelineLinks::kTied, 0);
  stream.ops().Add(gradients + mine->gradient_offset, received_, mine->elements);
}

}  // namespace tercio::engine
