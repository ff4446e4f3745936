// The model that the options of a verb name.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "cli/commands/commands.h"
#include "tokenizer/tokenizer.h"
#include "worker/inference/generator.h"
#include "worker/inference/language_model.h"

namespace tercio::cli {

// The tokenizer that the command line names; none: the model's own. INVALID_ARGUMENT.
absl::StatusOr<std::optional<tokenizer::Tokenizer>> NamedTokenizer(const ModelOptions& options);

// For answers of `tokens` tokens, or texts that grow by as many; otherwise as LoadLanguageModel,
// for models with a decoder, too.
absl::StatusOr<std::unique_ptr<inference::Generator>> LoadGenerator(const ModelOptions& options,
                                                                    int64_t sequences,
                                                                    int64_t tokens);

// For all cores of this machine and `sequences` texts at once. Errors as
// inference::LanguageModel::Load.
absl::StatusOr<std::unique_ptr<inference::LanguageModel>> LoadLanguageModel(
    const ModelOptions& options, int64_t sequences = 1);

}  // namespace tercio::cli
