#include "plan/buckets.h"

#include <algorithm>

#include "plan/reproducibility.h"

namespace tercio::plan {

bool JoinsTiedGradientsFirst(const v1::JobSpec& job, const v1::Layout& layout) {
  // With several stages the two are on different ranks until the end of the step.
  // Nor are they there together where each is summed in its round.
  return layout.pipeline() == 1 && layout.data() > 1 && layout.zero_stage() < 2 &&
         !OrderIsFixed(job) && IsTied(job.model());
}

std::vector<v1::BucketRange> BucketsOfStage(const v1::JobSpec& job, const v1::Layout& layout,
                                            int stage) {
  return BucketsOfTensors(job, layout, TensorsOfStage(job, layout, stage));
}

std::vector<v1::BucketRange> BucketsOfTensors(const v1::JobSpec& job, const v1::Layout& layout,
                                              const StageTensors& tensors) {
  const bool joins_first = JoinsTiedGradientsFirst(job, layout);
  int64_t end = tensors.gradient_elements;
  std::vector<v1::BucketRange> buckets;
  for (const StageTensor& entry : tensors.tensors) {
    if (entry.frozen) continue;
    // It is the last one.
    if (joins_first && entry.use == kHeadMatrix) {
      end = entry.gradient_offset;
      break;
    }
    if (buckets.empty() || buckets.back().ready_after_layer() != entry.layer) {
      // Padding between two tensors belongs to the bucket before it, so that buckets leave no gap.
      if (!buckets.empty()) buckets.back().set_end(entry.gradient_offset);
      v1::BucketRange bucket;
      bucket.set_begin(entry.gradient_offset);
      bucket.set_ready_after_layer(entry.layer);
      buckets.push_back(bucket);
    }
  }
  // All of the stage may be frozen.
  if (!buckets.empty()) buckets.back().set_end(end);
  // The backward pass completes the last bucket first.
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

std::vector<int64_t> ElementsOfBuckets(const StageTensors& tensors) {
  std::vector<int64_t> buckets;
  int layer = 0;
  int64_t begin = 0;
  for (const StageTensor& entry : tensors.tensors) {
    if (entry.frozen) continue;
    if (buckets.empty() || entry.layer != layer) {
      layer = entry.layer;
      begin = entry.gradient_offset;
      buckets.push_back(0);
    }
    // Padding between buckets is never written, so that it does not count.
    buckets.back() = entry.gradient_offset + entry.elements - begin;
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

int64_t LargestBucket(const StageTensors& tensors) {
  const std::vector<int64_t> buckets = ElementsOfBuckets(tensors);
  // All of the stage may be frozen.
  return buckets.empty() ? 0 : *std::max_element(buckets.begin(), buckets.end());
}

std::array<int64_t, 2> ElementsOfTurns(const v1::Layout& layout, const StageTensors& tensors) {
  const std::vector<int64_t> buckets = ElementsOfBuckets(tensors);
  std::array<int64_t, 2> turns = {0, 0};
  for (size_t i = 0; i < buckets.size(); ++i) turns[i % 2] = std::max(turns[i % 2], buckets[i]);
  // With an odd number of buckets each is in the other buffer in the next round, and chunks of
  // layers take their turns in an order of their own.
  const bool repeats = buckets.size() % 2 == 0 && layout.virtual_pipeline() <= 1;
  if (buckets.size() > 1 && !repeats) turns.fill(*std::max_element(turns.begin(), turns.end()));
  return turns;
}

}  // namespace tercio::plan
