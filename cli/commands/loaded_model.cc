#include "cli/commands/loaded_model.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/commands/checkpoint_path.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "data/tokenizer_choice.h"
#include "worker/inference/encoder_decoder.h"

namespace tercio::cli {

absl::StatusOr<std::optional<tokenizer::Tokenizer>> NamedTokenizer(const ModelOptions& options) {
  if (options.tokenizer.empty()) return std::nullopt;
  if (options.tokenizer == "chars") {
    return absl::InvalidArgumentError(
        "--tokenizer chars: its ids depend on the text of the training, which is not at hand; name "
        "the PREFIX.tokenizer.json that `tercio data tokenize` wrote for it");
  }
  // The tokenizer is checked before the model is loaded, which takes long.
  absl::StatusOr<tokenizer::Tokenizer> tokenizer = data::ChooseTokenizer(options.tokenizer, {}, {});
  if (tokenizer.ok()) return *std::move(tokenizer);
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat("--tokenizer: ", std::string(tokenizer.status().message())));
}

absl::StatusOr<std::unique_ptr<inference::Generator>> LoadGenerator(const ModelOptions& options,
                                                                    int64_t sequences,
                                                                    int64_t tokens) {
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  TERCIO_ASSIGN_OR_RETURN(std::optional<tokenizer::Tokenizer> tokenizer, NamedTokenizer(options));
  TERCIO_ASSIGN_OR_RETURN(const inference::OpenedModel opened,
                          inference::OpenModel(directory, std::move(tokenizer)));
  const inference::PassSize pass = {
      .sequences = sequences, .context = options.context, .decoder_context = tokens};
  if (opened.spec().decoder_layers() > 0) {
    return inference::LoadEncoderDecoder(opened, MachineCores(), pass);
  }
  return inference::LanguageModel::Load(opened, MachineCores(), pass);
}

absl::StatusOr<std::unique_ptr<inference::LanguageModel>> LoadLanguageModel(
    const ModelOptions& options, int64_t sequences) {
  // A directory of a job's checkpoints stands for the newest one in it.
  TERCIO_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(options.checkpoint, 0));
  TERCIO_ASSIGN_OR_RETURN(std::optional<tokenizer::Tokenizer> tokenizer, NamedTokenizer(options));
  return inference::LanguageModel::Load(directory, MachineCores(),
                                        {.sequences = sequences, .context = options.context},
                                        std::move(tokenizer));
}

}  // namespace tercio::cli
