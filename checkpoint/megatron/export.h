// A checkpoint becomes one that Megatron-LM loads: model_optim_rng.pt of every tensor rank and
// pipeline stage, in checkpoint version 3, with weights and arguments only. Step 0 becomes a
// release, since Megatron-LM's iterations begin at 1.
//
// Rows that pad the vocabulary repeat its last one, as Megatron-LM's converters do: zeros would get
// a probability that no token's logit has.
//
// Errors: those of Reader and OutputDirectory; INVALID_ARGUMENT when Megatron-LM has no form of the
// model, or the degrees do not divide its sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/megatron/names.h"
#include "checkpoint/output_directory.h"

namespace tercio::checkpoint {

struct MegatronExportOptions {
  int tensor = 1;
  int pipeline = 1;
  MegatronLayout layout = MegatronLayout::kLegacy;
  std::optional<FloatFormat> dtype;  // nullopt: fp32
  WriteProgress progress = {};
};

absl::StatusOr<ExportResult> ExportMegatron(const std::string& checkpoint,
                                            const std::string& output,
                                            const MegatronExportOptions& options);

}  // namespace tercio::checkpoint
