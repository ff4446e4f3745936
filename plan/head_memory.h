// The buffers of a model's head, for a rank's memory table (plan/memory_map.h). Pure.
#pragma once

#include "model/architecture.h"
#include "plan/stage_units.h"
#include "plan/table_builder.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// A chunk's logits of a teacher that left some of them: (chunk rows, local vocabulary).
inline constexpr char kSpreadLogits[] = "head.teacher_logits";

// Adds nothing unless the stage has the head.
void AddHead(const v1::JobSpec& job, const StageShape& shape, const model::Head& head,
             TableBuilder* table);

}  // namespace tercio::plan
