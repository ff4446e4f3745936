// Samples of span corruption (Raffel et al. 2020, section 3.1.4): the encoder sees the tokens with
// some spans replaced, and the decoder predicts what stood there. plan/span_lengths.h has the
// lengths n (raw tokens), and the numbers of masked tokens and of spans.
//
// Sample i is made of the tokens [i * n, i * n + n) of the stream, in which documents follow each
// other. They are cut into
//
//   kept tokens, span 0, kept tokens, span 1, ..
//
// each of at least one token; every way to do so has the same chance. With sentinel(k) =
// first_sentinel - k:
//
//   inputs          kept  sentinel(0)  kept  sentinel(1) ..  eos
//   decoder_inputs  pad, then the targets without the last
//   targets         sentinel(0)  span 0  sentinel(1)  span 1 ..  eos
//
// Every decision is a hash of (seed, epoch, sample, position): docs/formats.md has the formulas.
//
// Immutable; any number of threads may read.
#pragma once

#include <cstdint>

#include "data/sample_dataset.h"
#include "data/token_dataset.h"
#include "plan/span_lengths.h"

namespace tercio::data {

struct SpanRules {
  plan::SpanLengths lengths;
  int32_t pad = 0;
  int32_t eos = 0;
  int32_t first_sentinel = 0;
};

class SpanDataset : public SampleDataset {
 public:
  // REQUIRES: lengths of plan::SpanLengthsOf; a sentinel for each span.
  SpanDataset(TokenDataset tokens, SpanRules rules);

  int64_t samples() const override { return tokens_.tokens() / rules_.lengths.raw; }
  void Read(int64_t sample, SampleKey key, Sample* out) const override;

 private:
  TokenDataset tokens_;
  SpanRules rules_;
};

}  // namespace tercio::data
