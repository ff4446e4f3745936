#include "worker/engine/stored_teacher.h"

#include "common/check.h"
#include "plan/head_memory.h"

namespace tercio::engine {

StoredTeacher::StoredTeacher(const v1::JobSpec& job, const plan::StageShape& shape,
                             int tensor_index, Arena& arena, kernels::Ops& ops)
    : ops_(ops),
      shape_(shape),
      k_(job.training().distillation().top_k()),
      vocabulary_begin_(tensor_index * shape.vocabulary),
      logits_(arena.ValuesOf(plan::kSpreadLogits, shape.precision)) {}

kernels::ConstValues StoredTeacher::Of(const blocks::Pass& pass, const blocks::HeadChunk& chunk) {
  TERCIO_CHECK(pass.batch.teacher_ids != nullptr);
  ops_.SpreadLogits({.ids = pass.batch.teacher_ids + chunk.row * k_,
                     .values = pass.batch.teacher_logits + chunk.row * k_,
                     .out = logits_,
                     .rows = chunk.rows,
                     .pairs = k_,
                     .stride = shape_.vocabulary,
                     .vocabulary_begin = vocabulary_begin_});
  return logits_;
}

}  // namespace tercio::engine
