#include "plan/head_memory.h"

#include <cstdint>

#include "kernels/ops.h"
#include "plan/distillation.h"
#include "plan/token_buffers.h"

namespace tercio::plan {
namespace {

// Classes of whole sequences: everything has one row per sequence.
void AddClasses(const StageShape& shape, const model::ClassHeadOptions& head, TableBuilder* table) {
  for (const char* name : {"classes.first", "classes.pooled", "classes.dropped", "classes.gradient",
                           "classes.pooled_gradient"}) {
    table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision, shape.sequences * shape.hidden);
  }
  table->Values("classes.logits", v1::BUFFER_KIND_WORKSPACE, shape.precision,
                shape.sequences * head.classes);
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_WORKSPACE, shape.sequences * count);
  };
  add("classes.stats", kernels::kCrossEntropyStats);
  add("classes.lse", 1);
  add("classes.loss", 1);
}

}  // namespace

void AddHead(const v1::JobSpec& job, const StageShape& shape, const model::Head& head,
             TableBuilder* table) {
  if (!shape.last) return;
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_WORKSPACE, count);
  };
  if (head.classes.has_value()) AddClasses(shape, *head.classes, table);
  // A classifier predicts no tokens, so there is nothing more to make room for.
  if (!head.predicts_tokens()) return;
  if (head.language.has_value()) {
    // Only the rows that are predicted go through the head, in the worst case all of a chunk.
    for (const char* name : {"head.rows", "head.gradient"}) {
      table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision,
                    ChoosesTargets(job) ? shape.chunk_rows * shape.hidden : 0);
    }
  }
  if (head.masked.has_value()) {
    for (const char* name : {"head.rows", "head.transform", "head.activation", "head.norm",
                             "head.gradient", "head.transform_gradient"}) {
      table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision,
                    // A masked head works on the predicted rows only; in
                    // the worst case these are all of them.
                    shape.chunk_rows * shape.hidden);
    }
    add("head.norm_mean", shape.chunk_rows);
    add("head.norm_rstd", shape.chunk_rows);
  }
  table->Values("head.logits", v1::BUFFER_KIND_WORKSPACE, shape.precision,
                shape.chunk_rows * shape.vocabulary);
  add("head.stats", shape.chunk_rows * kernels::kCrossEntropyStats);
  // The statistics of all tensor ranks are gathered, since each has a part of the vocabulary.
  add("head.all_stats",
      shape.tensor > 1 ? shape.chunk_rows * kernels::kCrossEntropyStats * shape.tensor : 0);
  add("head.lse", shape.chunk_rows);
  add("head.loss", shape.chunk_rows);
  if (!LearnsFromTeacher(job.training())) return;
  const int64_t distances = shape.chunk_rows * kernels::kDistillationStats;
  add("head.distillation_stats", distances);
  add("head.all_distillation_stats", shape.tensor > 1 ? distances * shape.tensor : 0);
  add("head.student_lse", shape.chunk_rows);
  add("head.teacher_lse", shape.chunk_rows);
  add("head.divergence", shape.chunk_rows);
  // Tables of jobs with a teacher of their own stay as they are.
  if (!ReadsStoredLogits(job.training())) return;
  table->Values(kSpreadLogits, v1::BUFFER_KIND_WORKSPACE, shape.precision,
                shape.chunk_rows * shape.vocabulary);
}

}  // namespace tercio::plan
