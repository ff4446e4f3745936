// The buffers of a model's head, for a rank's memory table (plan/memory_map.h). Pure.
#pragma once

#include "model/architecture.h"
#include "plan/stage_units.h"
#include "plan/table_builder.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// Adds nothing unless the stage has the head.
void AddHead(const v1::JobSpec& job, const StageShape& shape, const model::Head& head,
             TableBuilder* table);

}  // namespace tercio::plan
