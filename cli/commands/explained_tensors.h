// What `tercio plan --explain-tensors` prints: which rank holds what of each tensor.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

// One row for each part of each tensor. REQUIRES: as plan::PlacesOfTensors.
std::string ExplainedTensorsText(const v1::ModelSpec& model, const v1::Layout& layout);

// {"layout": {"tensor", "pipeline", "data"}, "tensors": [{"name", "shape", "cut", "parts":
// [{"rows", "columns", "ranks"}]}]}; rows and columns are [begin, end).
nlohmann::ordered_json ExplainedTensorsJson(const v1::ModelSpec& model, const v1::Layout& layout);

}  // namespace tercio::cli
