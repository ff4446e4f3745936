// A teacher that left its largest logits (worker/engine/teacher_rows.h) and is not in the job: to
// the head of the last stage it is one whose other logits are -infinity.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/blocks/teacher_logits.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

class StoredTeacher : public blocks::TeacherLogits {
 public:
  // `shape`: of the last stage; `tensor_index`: which part of the vocabulary the rank has. What is
  // passed by reference outlives it.
  StoredTeacher(const v1::JobSpec& job, const plan::StageShape& shape, int tensor_index,
                Arena& arena, kernels::Ops& ops);

  // REQUIRES: the pass is of a micro-batch with a teacher's rows.
  kernels::ConstValues Of(const blocks::Pass& pass, const blocks::HeadChunk& chunk) override;

 private:
  kernels::Ops& ops_;
  const plan::StageShape& shape_;
  const int64_t k_;
  const int64_t vocabulary_begin_;
  const kernels::Values logits_;  // (chunk rows, local vocabulary)
};

}  // namespace tercio::engine
