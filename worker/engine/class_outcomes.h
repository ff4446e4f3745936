// How a classifier answers the held-out sequences of one global batch: the class of each sequence
// and the class that the model predicts for it, as one number that a sum of doubles carries
// exactly.
//
// Threads: the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/values.h"
#include "proto/tercio/v1/events.pb.h"
#include "worker/device/device.h"

namespace tercio::engine {

// The class of the largest of these logits, the first one of several that are equal. NaN is never
// the largest but where it comes first. `logits`: on the host, `classes` values as `stored`, which
// are fp32, bf16 or fp16.
int PredictedClass(const std::byte* logits, kernels::Format stored, int classes);

class ClassOutcomes {
 public:
  // For `sequences` of this rank.
  ClassOutcomes(int classes, int64_t sequences)
      : classes_(classes), sequences_(static_cast<size_t>(sequences)) {}

  // Enqueues a copy of the logits (count x classes) of sequences [first, first + count).
  void Take(int64_t first, int64_t count, kernels::ConstValues logits, device::Stream& stream);

  // One number for each sequence. REQUIRES: all logits have been taken, and have arrived.
  const std::vector<double>& Encode(absl::Span<const int32_t> labels);

  // Counts sequences by their numbers.
  static void Count(absl::Span<const double> outcomes, v1::Confusion* confusion);

 private:
  const int classes_;
  const size_t sequences_;
  kernels::Format stored_ = kernels::Format::kFloat32;
  std::vector<std::byte> logits_;
  std::vector<double> outcomes_;
};

}  // namespace tercio::engine
