// The samples of a job, for the training engine: of tokens that predict the next one, in the order
// of blended_dataset.h, or BERT's and T5's, in that of
// sample_dataset.h.
//
// Thread safety: any number of threads may read.
#pragma once

#include <cstdint>
#include <memory>

#include "data/prepared_data.h"
#include "data/sample_source.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::data {

// REQUIRES: `data` was prepared for spec.data() and spec.model().
std::unique_ptr<SampleSource> MakeSampleSource(PreparedData data, const v1::JobSpec& spec);

}  // namespace tercio::data
