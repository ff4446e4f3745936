#include "plan/buckets.h"

#include <algorithm>

#include "plan/model_tensors.h"

namespace tercio::plan {

std::vector<v1::BucketRange> BucketsOfStage(const v1::ModelSpec& model, const v1::Layout& layout,
                                            int stage) {
  const StageTensors stage_tensors = TensorsOfStage(model, layout, stage);
  std::vector<v1::BucketRange> buckets;
  for (const StageTensor& entry : stage_tensors.tensors) {
    if (buckets.empty() || buckets.back().ready_after_layer() != entry.layer) {
      if (!buckets.empty()) buckets.back().set_end(entry.gradient_offset);
      v1::BucketRange bucket;
      bucket.set_begin(entry.gradient_offset);
      bucket.set_ready_after_layer(entry.layer);
      buckets.push_back(bucket);
    }
  }
  buckets.back().set_end(stage_tensors.gradient_elements);
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

}  // namespace tercio::plan
