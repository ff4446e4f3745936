// The samples that a rank reads: those of its job, with a teacher's logits where these were stored
// and the rank has the head, which reads them.
//
// Threads: any number may read from the source.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/prepared_data.h"
#include "data/sample_source.h"
#include "proto/tercio/v1/trainer.pb.h"

namespace tercio::trainer {

// The samples with the logits in `directory`, which belong to them. Errors of
// checkpoint::StoredLogits::Open.
absl::StatusOr<std::unique_ptr<data::SampleSource>> WithStoredLogits(
    std::unique_ptr<data::SampleSource> samples, const std::string& directory);

// REQUIRES: `data` was prepared for the job, and the logits were checked
// (worker/inference/stored_logits.h). Errors as above.
absl::StatusOr<std::unique_ptr<data::SampleSource>> MakeSamplesOfRank(
    data::PreparedData data, const v1::TrainerAssignment& assignment);

}  // namespace tercio::trainer
