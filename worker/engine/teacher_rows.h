// A rank's stored logits of one global batch: of each predicted row those that its teacher has
// left, on the device where the stage's head reads them.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "data/sample_source.h"
#include "plan/memory_map.h"
#include "worker/blocks/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

class TeacherRows {
 public:
  // `k`: logits of a row. The arguments must outlive it. REQUIRES: the stage has the head, and
  // memory for "tokens.teacher_ids".
  TeacherRows(const plan::StageShape& shape, int64_t k, Arena& arena);

  // Keeps those of a sample, which is the micro-batch's sequence number `sequence`. REQUIRES: the
  // sample has k for each token that it predicts.
  void Store(int64_t micro_batch, int64_t sequence, const data::Sample& sample);

  // Copies all of them to the device. REQUIRES: every sequence was stored since the last call.
  void Copy(device::Stream& stream) const;

  // Sets where those of the micro-batch lie on the device.
  void Point(blocks::MicroBatch* batch) const;

 private:
  int64_t FirstOf(int64_t sequence) const;

  const plan::StageShape& shape_;
  const int64_t k_;
  // (sequences of the rank, tokens, k): of each sequence the predicted rows come first.
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
  int32_t* device_ids_;
  float* device_logits_;
};

}  // namespace tercio::engine
