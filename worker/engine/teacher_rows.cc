#include "worker/engine/teacher_rows.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::engine {

TeacherRows::TeacherRows(const plan::StageShape& shape, int64_t k, Arena& arena)
    : shape_(shape),
      k_(k),
      // An id below 0 is no pair: rows that predict nothing have none.
      ids_(static_cast<size_t>(FirstOf(shape.sequences_per_rank)), -1),
      logits_(ids_.size()),
      device_ids_(arena.Get<int32_t>("tokens.teacher_ids")),
      device_logits_(arena.Floats("tokens.teacher_logits")) {
  for (const char* name : {"tokens.teacher_ids", "tokens.teacher_logits"}) {
    TERCIO_CHECK_EQ(arena.Bytes(name), static_cast<int64_t>(ids_.size() * sizeof(int32_t)));
  }
}

int64_t TeacherRows::FirstOf(int64_t sequence) const {
  return sequence * shape_.head_stream().tokens * k_;
}

void TeacherRows::Store(int64_t micro_batch, int64_t sequence, const data::Sample& sample) {
  const int64_t first = FirstOf(micro_batch * shape_.sequences + sequence);
  TERCIO_CHECK_EQ(sample.teacher_ids.size(), sample.teacher_logits.size());
  TERCIO_CHECK_LE(static_cast<int64_t>(sample.teacher_ids.size()), FirstOf(1));
  std::copy(sample.teacher_ids.begin(), sample.teacher_ids.end(), ids_.begin() + first);
  std::copy(sample.teacher_logits.begin(), sample.teacher_logits.end(), logits_.begin() + first);
}

void TeacherRows::Copy(device::Stream& stream) const {
  const auto bytes = static_cast<int64_t>(ids_.size() * sizeof(int32_t));
  stream.CopyFromHost(device_ids_, ids_.data(), bytes);
  stream.CopyFromHost(device_logits_, logits_.data(), bytes);
}

void TeacherRows::Point(blocks::MicroBatch* batch) const {
  const int64_t first = FirstOf(int64_t{batch->index} * shape_.sequences);
  batch->teacher_ids = device_ids_ + first;
  batch->teacher_logits = device_logits_ + first;
}

}  // namespace tercio::engine
