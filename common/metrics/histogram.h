// A histogram that can be read while it is being updated.
//
// Threads: any. An observation is two atomic additions; a reading may lie between them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/metrics/metric_table.h"

namespace tercio {

// The counts of a histogram. `counts` are per bucket, not cumulative; the last one is of values
// above all bounds.
struct HistogramFigures {
  std::array<uint64_t, kMostBuckets + 1> counts = {};
  double sum = 0;
};

// The index of a value's bucket.
inline size_t BucketOf(const MetricBuckets& bounds, double value) {
  for (size_t i = 0; i < kMostBuckets && bounds[i] > 0; ++i) {
    if (value <= bounds[i]) return i;
  }
  return kMostBuckets;
}

// Counts a value in a histogram that one thread at a time updates.
inline void Observe(MetricId metric, double value, HistogramFigures* figures) {
  ++figures->counts[BucketOf(metric.spec().buckets, value)];
  figures->sum += value;
}

class Histogram {
 public:
  // REQUIRES: the metric is a histogram.
  explicit Histogram(MetricId metric) : bounds_(metric.spec().buckets) {}

  void Observe(double value) {
    counts_[BucketOf(bounds_, value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  HistogramFigures figures() const {
    HistogramFigures figures;
    for (size_t i = 0; i < counts_.size(); ++i) {
      figures.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    figures.sum = sum_.load(std::memory_order_relaxed);
    return figures;
  }

 private:
  const MetricBuckets& bounds_;
  std::array<std::atomic<uint64_t>, kMostBuckets + 1> counts_ = {};
  std::atomic<double> sum_{0};
};

}  // namespace tercio
