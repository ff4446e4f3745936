// The JSON of an evaluation, as `get`, `evaluate` and `compare` print it. Pure.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

// {"step", "loss", "accuracy", "per_class": {LABEL: {"precision", "recall", "f1", "support"}},
// "macro": {"precision", "recall", "f1"}, "weighted": {...}, "confusion": [[...]]}: rows of the
// confusion are the classes of examples, columns those that were predicted. From "accuracy" on all
// are null where the evaluation has no confusion; numbers that are not finite are null.
nlohmann::ordered_json EvaluationToJson(const v1::Evaluation& evaluation,
                                        const v1::ModelSpec& model);

// The name of a class, or its number.
std::string LabelText(const v1::ModelSpec& model, int label);

}  // namespace tercio::cli
