#include "checkpoint/export_part.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

// A finite weight must stay finite.
absl::Status CheckRange(const std::string& name, FloatFormat format,
                        const std::vector<float>& values) {
  const float bound = BoundOf(format);
  for (const float value : values) {
    // What was infinite or NaN before is no fault of the conversion.
    if (std::abs(value) < bound || !std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", name, " has the weight ", value, ", which ",
        format == FloatFormat::kF16 ? "fp16" : "bf16", " cannot hold; choose another --dtype"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ConvertPart(const std::string& tensor, FloatFormat format, OutputPart* part) {
  if (format == FloatFormat::kF32) {
    part->bytes = {reinterpret_cast<const char*>(part->values.data()),
                   part->values.size() * sizeof(float)};
    return absl::OkStatus();
  }
  TERCIO_RETURN_IF_ERROR(CheckRange(tensor, format, part->values));
  part->text.resize(part->values.size() * static_cast<size_t>(BytesOf(format)));
  NarrowFloats(format, part->values.data(), static_cast<int64_t>(part->values.size()),
               part->text.data());
  part->bytes = part->text;
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
