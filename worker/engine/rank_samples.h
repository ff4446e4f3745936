// A rank's sequences of one global batch on the host, laid out as its token buffers will hold them
// ("tokens.*" of plan/memory_map.h), so that each buffer takes one copy. The padding that all
// sequences of a micro-batch end with is left out (StageShape::length_unit): what is computed for
// it has no effect on any sum.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sample_source.h"
#include "plan/memory_map.h"
#include "worker/blocks/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

class RankSamples {
 public:
  struct Kind {
    bool padded = false;           // sequences have lengths, and may be segments or have labels
    bool chooses_targets = false;  // samples say which tokens are predicted
    bool packed = false;           // sequences hold several documents
  };
  // The arguments must outlive it.
  RankSamples(const plan::StageShape& shape, Kind kind, Arena& arena);

  // Stores `sample` as the micro-batch's sequence number `sequence`. Where samples choose their
  // targets, these are moved together, with the rows that they belong to.
  void Store(int64_t micro_batch, int64_t sequence, const data::Sample& sample);

  // Copies all of them to the device. REQUIRES: every sequence was stored since the last call.
  void Copy(device::Stream& stream);

  // Sets where the micro-batch's sequences lie on the device; null for those that this stage does
  // not need. Counts of predictions are on the host.
  void Point(blocks::MicroBatch* batch) const;

  // The class of each sequence; empty if this stage does not need it.
  const std::vector<int32_t>& labels() const { return labels_.host; }

  // Predicted tokens of each sequence; empty if every token is predicted.
  const std::vector<int32_t>& predicted_counts() const { return predicted_counts_; }

 private:
  struct Buffer {
    std::vector<int32_t> host;
    int32_t* device = nullptr;
  };

  // Writes each position's document and place in it. `sequence`: of the rank.
  void StoreDocuments(int64_t sequence, const data::Sample& sample);
  // Positions of a sequence that the micro-batch computes.
  int64_t TokensOf(int64_t micro_batch) const;
  // Moves the sequences of a micro-batch together, `tokens` rows each.
  void LeaveOutPadding(int64_t micro_batch, int64_t tokens);

  const plan::StageShape& shape_;
  const Kind kind_;
  Buffer inputs_, decoder_inputs_, targets_;
  Buffer predicted_;                              // of chosen targets
  Buffer types_, lengths_, labels_, first_rows_;  // of padded sequences
  Buffer document_starts_, positions_;            // of packed sequences
  std::vector<int64_t> tokens_;                   // of each micro-batch; of padded sequences
  std::vector<int32_t> predicted_counts_;
};

}  // namespace tercio::engine
