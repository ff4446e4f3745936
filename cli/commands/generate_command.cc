// Generation of text with a trained model on this machine.
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/loaded_model.h"
#include "cli/commands/prompts.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "data/span_rules.h"
#include "tokenizer/text_stream.h"
#include "worker/inference/generator.h"

namespace tercio::cli {
namespace {

// The text of token ids. Those of masked spans may lie behind the tokenizer's vocabulary
// (data/span_rules.h).
class IdsAsText {
 public:
  IdsAsText(const tokenizer::Tokenizer& tokenizer, std::optional<data::SpanVocabulary> spans)
      : tokenizer_(tokenizer), spans_(spans) {}

  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const {
    if (!spans_.has_value()) return tokenizer_.Decode(ids);
    std::string text;
    for (size_t i = 0; i < ids.size();) {
      size_t end = i;
      while (end < ids.size() && ids[end] < tokenizer_.vocab_size()) ++end;
      TERCIO_ASSIGN_OR_RETURN(const std::string run, tokenizer_.Decode(ids.subspan(i, end - i)));
      text += run;
      if (end < ids.size()) text += Special(ids[end++]);
      i = end;
    }
    return text;
  }

 private:
  // The pad and the end have none.
  std::string Special(int32_t id) const {
    const int32_t span = spans_->first_sentinel - id;
    const bool is_sentinel = span >= 0 && span < spans_->sentinels;
    return is_sentinel ? absl::StrCat("<extra_id_", span, ">") : "";
  }

  const tokenizer::Tokenizer& tokenizer_;
  const std::optional<data::SpanVocabulary> spans_;
};

// The flush lets people read while the next token is computed.
absl::Status ShowPiece(const absl::StatusOr<std::string>& piece) {
  if (piece.ok() && !piece->empty()) std::cout << Printable(*piece) << std::flush;
  return piece.status();
}

absl::StatusOr<std::vector<Prompt>> PromptsOf(const GenerateOptions& options) {
  if (!options.prompts.empty()) return PromptsInFile(options.prompts);
  // Ids need no tokenizer, so that models without one can be tried.
  if (!options.prompt_ids.empty()) {
    return std::vector<Prompt>{{.text = std::nullopt, .ids = options.prompt_ids}};
  }
  if (!options.prompt.empty()) return std::vector<Prompt>{{.text = options.prompt, .ids = {}}};
  return absl::InvalidArgumentError(
      "no prompt; give --prompt TEXT, --prompt-ids 1,2 or --prompts FILE");
}

// The ids around a decoder's answer, and, where the tokenizer has it, around what it answers.
struct DecoderIds {
  int32_t start = 0;
  int32_t end = -1;
  std::optional<data::SpanVocabulary> spans = std::nullopt;
};

absl::StatusOr<DecoderIds> DecoderIdsOf(const GenerateOptions& options,
                                        const inference::Generator& model) {
  if (model.continues_prompts()) {
    if (options.start_id < 0 && options.end_id < 0) return DecoderIds{};
    return absl::InvalidArgumentError(
        "--start-id and --end-id are for models with a decoder; leave them out");
  }
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (model.tokenizer() != nullptr) tokenizer = *model.tokenizer();
  // Without a tokenizer the ids are those of the published models.
  DecoderIds ids = {.start = 0, .end = 1};
  if (tokenizer.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(const data::SpanVocabulary vocabulary,
                            data::SpanVocabularyOf({}, tokenizer, model.vocab_size(), 0));
    ids = {.start = vocabulary.pad, .end = vocabulary.eos, .spans = vocabulary};
  }
  if (options.start_id >= 0) ids.start = options.start_id;
  if (options.end_id >= 0) ids.end = options.end_id;
  return ids;
}

inference::GenerateOptions Sampling(const GenerateOptions& options, const DecoderIds& ids) {
  return {.tokens = options.tokens,
          .temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .seed = options.seed,
          .start = ids.start,
          .end = ids.end};
}

absl::StatusOr<Json> GeneratedToJson(const Prompt& prompt, const std::vector<int32_t>& ids,
                                     const std::optional<IdsAsText>& decoder) {
  std::optional<std::string> text;
  // Without a tokenizer the ids are the whole answer.
  if (decoder.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(text, decoder->Decode(ids));
  }
  return Json{{"prompt", prompt.text ? Json(Printable(*prompt.text)) : Json(nullptr)},
              {"prompt_ids", prompt.ids},
              {"text", text ? Json(Printable(*text)) : Json(nullptr)},
              {"tokens", ids}};
}

// Prints text, or ids where there is no tokenizer, as it is generated.
absl::Status ShowOne(const inference::GenerateOptions& sampling, const Prompt& prompt,
                     const std::optional<IdsAsText>& decoder, inference::Generator& model) {
  std::optional<tokenizer::TextStream> stream;
  const auto decode = [&decoder](absl::Span<const int32_t> ids) { return decoder->Decode(ids); };
  if (decoder.has_value() && !model.continues_prompts()) {
    stream.emplace(decode, std::vector<int32_t>());
  } else if (decoder.has_value()) {
    stream.emplace(decode, prompt.ids);
    // The prompt is part of the text that a person reads.
    std::cout << prompt.text.value_or("") << std::flush;
  }
  std::vector<int32_t> ids;
  absl::Status shown;
  TERCIO_RETURN_IF_ERROR(model.Generate({prompt.ids}, sampling, [&](size_t, int32_t id) {
    ids.push_back(id);
    if (stream.has_value()) shown = ShowPiece(stream->Add(id));
    // A reader that has gone (head) ends the work, which may take minutes.
    return shown.ok() && std::cout.good();
  }));
  TERCIO_RETURN_IF_ERROR(shown);
  if (stream.has_value()) {
    TERCIO_RETURN_IF_ERROR(ShowPiece(stream->Finish()));
    std::cout << std::endl;
  } else {
    // Ids are separated as --prompt-ids takes them.
    std::cout << absl::StrJoin(ids, ",") << std::endl;
  }
  return absl::OkStatus();
}

// Several prompts grow together and end in any order; they are printed in the order of the file.
absl::StatusOr<Json> GenerateAll(const inference::GenerateOptions& sampling,
                                 const std::vector<Prompt>& prompts,
                                 const std::optional<IdsAsText>& decoder,
                                 inference::Generator& model) {
  std::vector<std::vector<int32_t>> given;
  for (const Prompt& prompt : prompts) given.push_back(prompt.ids);
  std::vector<std::vector<int32_t>> made(prompts.size());
  TERCIO_RETURN_IF_ERROR(model.Generate(given, sampling, [&](size_t prompt, int32_t id) {
    made[prompt].push_back(id);
    return true;
  }));
  Json all = Json::array();
  for (size_t i = 0; i < prompts.size(); ++i) {
    TERCIO_ASSIGN_OR_RETURN(Json json, GeneratedToJson(prompts[i], made[i], decoder));
    all.push_back(std::move(json));
  }
  return all;
}

absl::StatusOr<int> GenerateText(const GenerateOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<Prompt> prompts, PromptsOf(options));
  const auto sequences = std::min(static_cast<int64_t>(prompts.size()), options.batch);
  TERCIO_ASSIGN_OR_RETURN(const auto model, LoadGenerator(options, sequences, options.tokens));
  TERCIO_ASSIGN_OR_RETURN(const DecoderIds ids, DecoderIdsOf(options, *model));
  TERCIO_RETURN_IF_ERROR(EncodePrompts(options.checkpoint, model->tokenizer(), &prompts));
  // An encoder reads texts to their end, which is marked.
  for (Prompt& prompt : prompts) {
    if (!model->continues_prompts() && prompt.text.has_value()) prompt.ids.push_back(ids.end);
  }
  const inference::GenerateOptions sampling = Sampling(options, ids);
  std::optional<IdsAsText> decoder;
  if (model->tokenizer() != nullptr) decoder.emplace(*model->tokenizer(), ids.spans);
  const bool one = options.prompts.empty();
  if (one && options.format() == Output::kTable) {
    TERCIO_RETURN_IF_ERROR(ShowOne(sampling, prompts.front(), decoder, *model));
    return kExitOk;
  }
  TERCIO_ASSIGN_OR_RETURN(const Json all, GenerateAll(sampling, prompts, decoder, *model));
  // A text may have several lines, so that a table of texts could not be taken apart.
  const Output format = options.format() == Output::kTable ? Output::kJsonLines : options.format();
  PrintJson(one ? all.front() : all, format);
  return kExitOk;
}

}  // namespace

int Generate(const GenerateOptions& options) {
  const absl::StatusOr<int> code = GenerateText(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
