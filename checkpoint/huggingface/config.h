// config.json of a Hugging Face directory and v1::ModelSpec, both ways. Pure: text in, values out.
//
// Errors: DATA_LOSS for text that is not such a file (not JSON, a size missing or of a wrong type),
// INVALID_ARGUMENT for a model that Tercio does not support. All faults are in one message.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/config_reader.h"
#include "checkpoint/huggingface/form.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// `path` names the file in messages. The architectures of checkpoint/huggingface/form.h that the
// engine trains; dropout is left at zero, since it belongs to the training and not to the model.
absl::StatusOr<v1::ModelSpec> ModelOfHuggingFaceConfig(std::string_view json,
                                                       const std::string& path);

// The model of a map that has this form; faults are the reader's.
v1::ModelSpec ReadHuggingFaceModel(const HuggingFaceForm& form, ConfigReader* config);

// Whether the file, of this model, says that the directory holds a model without any head.
bool IsBaseModelConfig(std::string_view json, const v1::ModelSpec& model);

// INVALID_ARGUMENT when transformers' form of the architecture cannot express the model.
absl::Status CheckHasHuggingFaceForm(const v1::ModelSpec& model);

// A config.json for the model, its weights in fp32. REQUIRES: CheckHasHuggingFaceForm(model).ok().
std::string HuggingFaceConfig(const v1::ModelSpec& model);

// The original config.json of the model that training started from, made true for `model`: its
// context, and weights in fp32; all else stays, also what Tercio does not read. The same text when
// nothing has changed but white space. DATA_LOSS when it is not JSON.
absl::StatusOr<std::string> ChangedHuggingFaceConfig(std::string_view original,
                                                     const v1::ModelSpec& model);

// The config.json of a model whose weights are in this format. DATA_LOSS when it is not JSON.
absl::StatusOr<std::string> WithDtype(std::string_view config, FloatFormat format);

}  // namespace tercio::checkpoint
