// The memory of a teacher that the ranks of a job have beside their student (plan/distillation.h).
// Pure.
#pragma once

#include "plan/table_builder.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Buffers of the student's memory table whose names begin with it are the teacher's.
inline constexpr char kTeacherPrefix[] = "teacher.";
// What the head reads, of all micro-batches of a step: (micro-batches, rows, hidden); last stage.
inline constexpr char kTeacherOutputs[] = "outputs";

// The teacher's part of a rank's plan: its layers, and of the memory table its buffers, by their
// names without the prefix. REQUIRES: HasTeacher(job.training()).
v1::RankPlan TeacherPlan(const v1::JobSpec& job, const v1::RankPlan& plan);

// Adds the teacher's buffers, none for jobs without one.
void AddTeacher(const v1::JobSpec& job, const v1::Layout& layout, int stage, int threads,
                TableBuilder* table);

// What single operations of the teacher need of scratch that both models share; nothing for jobs
// without one.
struct TeacherScratch {
  int64_t device_bytes = 0;
  int64_t attention_floats = 0;
};
TeacherScratch TeacherScratchOf(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                                int threads);

}  // namespace tercio::plan
