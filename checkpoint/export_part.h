// The last step of every export: fp32 values become the bytes of a file. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "checkpoint/float_format.h"
#include "common/ordered_parts.h"

namespace tercio::checkpoint {

// Sets part->bytes to part->values in the format. INVALID_ARGUMENT, with the name of the tensor:
// a finite weight would become infinite.
absl::Status ConvertPart(const std::string& tensor, FloatFormat format, OutputPart* part);

}  // namespace tercio::checkpoint
