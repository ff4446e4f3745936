// A trained model with an encoder and a decoder, which answers prompts: each is encoded once, and
// the decoder attends to it while the answer grows (Raffel et al. 2020).
//
// Threads: one thread uses a model at a time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/inference/generator.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

// For answers of at most pass.decoder_context ids. Errors of WholeModel::Load; INVALID_ARGUMENT for
// a model without a decoder.
absl::StatusOr<std::unique_ptr<Generator>> LoadEncoderDecoder(const OpenedModel& opened,
                                                              int threads, PassSize pass);

}  // namespace tercio::inference
