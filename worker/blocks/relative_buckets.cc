#include "worker/blocks/relative_buckets.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace tercio::blocks {
namespace {

// The bucket of a distance in one direction.
int32_t BucketOf(int64_t distance, int64_t buckets, int64_t largest) {
  const int64_t exact = std::max<int64_t>(1, buckets / 2);
  if (distance < exact) return static_cast<int32_t>(distance);
  // No distance is left for buckets that grow.
  if (largest <= exact) return static_cast<int32_t>(std::min(distance, buckets - 1));
  const auto factor =
      static_cast<float>(std::log(static_cast<double>(largest) / static_cast<double>(exact)));
  const float steps = std::log(static_cast<float>(distance) / static_cast<float>(exact)) / factor *
                      static_cast<float>(buckets - exact);
  return static_cast<int32_t>(std::min(exact + static_cast<int64_t>(steps), buckets - 1));
}

// The options of the stream's attention, and whether it is causal.
struct OfStream {
  model::RelativeBiasOptions options;
  bool causal;
};
std::optional<OfStream> RelativeOf(const model::Architecture& architecture, size_t stream) {
  for (const model::Layer& kind : architecture.kinds) {
    if (kind.stream != static_cast<int>(stream)) continue;
    for (const model::Sublayer& sublayer : kind.sublayers) {
      for (const model::Branch& branch : sublayer.branches) {
        const auto* attention = std::get_if<model::AttentionOptions>(&branch.block);
        if (attention == nullptr || !attention->relative.has_value()) continue;
        return OfStream{*attention->relative, attention->causal};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<int32_t> RelativeBuckets(const model::RelativeBiasOptions& options, bool causal,
                                     int64_t tokens) {
  const int64_t buckets = causal ? options.buckets : options.buckets / 2;
  std::vector<int32_t> table;
  for (int64_t distance = 1 - tokens; distance < tokens; ++distance) {
    // A causal query sees no key behind itself, so that any bucket does there.
    const int64_t far = causal ? std::max<int64_t>(0, -distance) : std::abs(distance);
    const int32_t bucket = BucketOf(far, buckets, options.distance);
    const bool behind = !causal && distance > 0;
    table.push_back(behind ? bucket + static_cast<int32_t>(buckets) : bucket);
  }
  return table;
}

std::vector<int32_t> RelativeBucketsOf(const model::Architecture& architecture) {
  std::vector<int32_t> all;
  for (size_t i = 0; i < architecture.streams.size(); ++i) {
    const int64_t tokens = architecture.streams[i].tokens;
    std::vector<int32_t> table(static_cast<size_t>(2 * tokens - 1));
    if (const auto found = RelativeOf(architecture, i)) {
      table = RelativeBuckets(found->options, found->causal, tokens);
    }
    all.insert(all.end(), table.begin(), table.end());
  }
  return all;
}

int64_t FirstBucketOf(const plan::StageShape& shape, int stream) {
  int64_t first = 0;
  for (int i = 0; i < stream; ++i) first += 2 * shape.stream(i).tokens - 1;
  return first;
}

}  // namespace tercio::blocks
