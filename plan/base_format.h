// Which jobs and layouts may keep frozen matrices as codes of few bits (model.base_format,
// plan::QuantizedTensor), and what of them ranks save. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Why nothing of the job is quantised that way, or that blocks do not divide a matrix; empty: the
// job can be. model.vocab_size may be 0.
std::string FaultOfBaseFormat(const v1::JobSpec& job);
// The same as INVALID_ARGUMENT, with the name of the key.
absl::Status CheckBaseFormat(const v1::JobSpec& job);
// The same of the part of each matrix that a tensor rank has: blocks that a cut divides would
// depend on the layout. REQUIRES: CheckBaseFormat accepts the job.
absl::Status CheckBaseLayout(const v1::JobSpec& job, const v1::Layout& layout);

// Floats in which a tensor rank's codes of a matrix are saved; of its scales there are blocks().
int64_t SavedCodes(kernels::BaseFormat format, const QuantizedTensor& tensor);
// Floats of a snapshot of all that a tensor rank has of the base.
int64_t BaseSnapshotElements(const StageTensors& tensors);

}  // namespace tercio::plan
