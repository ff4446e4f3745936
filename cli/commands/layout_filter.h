// Layouts as a person names them: "8x4x16", or with more of what a layout has,
// "8x4x16,micro_batch=2,recompute=full". What is left open may be anything. Pure.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

// tensor x pipeline x data, each a number or "*"; keys micro_batch, virtual_pipeline, zero_stage,
// shard (the data ranks that divide the state among them), recompute, sequence_parallel.
// INVALID_ARGUMENT names what is wrong.
absl::StatusOr<std::function<bool(const v1::Layout&)>> ParseLayoutFilter(std::string_view text);

}  // namespace tercio::cli
