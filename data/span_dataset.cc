#include "data/span_dataset.h"

#include <utility>
#include <vector>

#include "common/check.h"
#include "data/decisions.h"

namespace tercio::data {
namespace {

// What the decided borders part.
enum Segments : uint64_t { kKeptSegments = 1, kSpanSegments = 2 };

// Cuts `size` items, one after the other, into segments of at least one item.
class Cutter {
 public:
  // REQUIRES: 1 <= segments <= size.
  Cutter(const Decisions& decisions, Segments kind, int64_t size, int64_t segments)
      : decisions_(decisions), kind_(kind), size_(size), borders_(segments - 1) {}

  // The size of the next segment.
  int64_t Next() {
    const int64_t begin = place_;
    // A border between two items is taken with the share of borders that are still to be placed, by
    // which every set of borders has the same chance.
    while (++place_ < size_) {
      const auto left = static_cast<uint64_t>(size_ - place_);
      if (Below(decisions_.At(kind_, place_), left) >= static_cast<uint64_t>(borders_)) continue;
      --borders_;
      break;
    }
    return place_ - begin;
  }

 private:
  const Decisions& decisions_;
  const Segments kind_;
  const int64_t size_;
  int64_t borders_;  // that are still to be placed
  int64_t place_ = 0;
};

}  // namespace

SpanDataset::SpanDataset(TokenDataset tokens, SpanRules rules)
    : tokens_(std::move(tokens)), rules_(rules) {
  TERCIO_CHECK(rules_.lengths.spans >= 1 && rules_.lengths.spans <= rules_.lengths.noise);
  TERCIO_CHECK_GE(rules_.lengths.raw - rules_.lengths.noise, rules_.lengths.spans);
  TERCIO_CHECK_GT(rules_.first_sentinel, rules_.lengths.spans - 2);
}

void SpanDataset::Read(int64_t sample, SampleKey key, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples());
  const auto& [raw, noise, spans, inputs, targets] = rules_.lengths;
  out->ids.resize(static_cast<size_t>(raw));
  tokens_.Read(sample * raw, raw, out->ids.data());
  const Decisions decisions(key, sample);
  Cutter kept_cutter(decisions, kKeptSegments, raw - noise, spans);
  Cutter span_cutter(decisions, kSpanSegments, noise, spans);

  // Every field is written, because callers pass the same sample again.
  out->inputs.clear();
  out->targets.clear();
  auto token = out->ids.begin();
  const auto append = [&token](int64_t count, std::vector<int32_t>* sequence) {
    sequence->insert(sequence->end(), token, token + count);
    token += count;
  };
  for (int64_t k = 0; k < spans; ++k) {
    const auto sentinel = static_cast<int32_t>(rules_.first_sentinel - k);
    append(kept_cutter.Next(), &out->inputs);
    out->inputs.push_back(sentinel);
    out->targets.push_back(sentinel);
    append(span_cutter.Next(), &out->targets);
  }
  out->inputs.push_back(rules_.eos);
  out->targets.push_back(rules_.eos);
  TERCIO_CHECK_EQ(static_cast<int64_t>(out->inputs.size()), inputs);
  TERCIO_CHECK_EQ(static_cast<int64_t>(out->targets.size()), targets);
  // The decoder predicts each target from those before it.
  out->decoder_inputs.assign(1, rules_.pad);
  out->decoder_inputs.insert(out->decoder_inputs.end(), out->targets.begin(),
                             out->targets.end() - 1);
  out->types.assign(out->inputs.size(), 0);
  out->length = static_cast<int32_t>(inputs);
  out->label = kNoTarget;
}

}  // namespace tercio::data
