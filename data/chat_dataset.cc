#include "data/chat_dataset.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "data/chat/recognition.h"
#include "data/document_batch.h"
#include "data/jsonl.h"
#include "data/text_source.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

chat::LossOn LossOnOf(v1::LossOn loss_on) {
  switch (loss_on) {
    case v1::LOSS_ON_ALL:
      return chat::LossOn::kAll;
    case v1::LOSS_ON_LAST:
      return chat::LossOn::kLast;
    case v1::LOSS_ON_ASSISTANT:
    case v1::LOSS_ON_UNSPECIFIED:
    case v1::LossOn_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::LossOn_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return chat::LossOn::kAssistant;
}

std::optional<chat::Format> FormatOf(v1::ChatFormat format) {
  switch (format) {
    case v1::CHAT_FORMAT_MESSAGES:
      return chat::Format::kMessages;
    case v1::CHAT_FORMAT_SHAREGPT:
      return chat::Format::kShareGpt;
    case v1::CHAT_FORMAT_ALPACA:
      return chat::Format::kAlpaca;
    case v1::CHAT_FORMAT_PROMPT_COMPLETION:
      return chat::Format::kPromptCompletion;
    case v1::CHAT_FORMAT_AUTO:
    case v1::CHAT_FORMAT_UNSPECIFIED:
    case v1::ChatFormat_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::ChatFormat_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return std::nullopt;
}

// Reads the conversations of open files, in their order.
class ConversationReader {
 public:
  ConversationReader(TextSource source, std::vector<chat::Format> formats,
                     const tokenizer::Tokenizer& tokenizer, const ChatRules& rules)
      : source_(std::move(source)),
        formats_(std::move(formats)),
        tokenizer_(tokenizer),
        rules_(rules) {}

  absl::StatusOr<ChatSamples> ToEnd();

 private:
  // On any thread.
  absl::StatusOr<chat::ChatTokens> ReadPiece(const TextPiece& piece) const;
  // On the caller's thread, in the order of the lines: the result does not depend on the threads.
  absl::Status Take(const TextPiece& piece, absl::StatusOr<chat::ChatTokens> tokens);
  void Append(const TextPiece& piece, chat::ChatTokens tokens);

  TextSource source_;
  const std::vector<chat::Format> formats_;  // one for each file
  const tokenizer::Tokenizer& tokenizer_;
  const ChatRules& rules_;
  ChatSamples all_;
};

absl::StatusOr<chat::ChatTokens> ConversationReader::ReadPiece(const TextPiece& piece) const {
  TERCIO_ASSIGN_OR_RETURN(
      const chat::Conversation conversation,
      chat::ReadConversation(piece.text, formats_[static_cast<size_t>(piece.begin.input)],
                             rules_.chat_template->input_separator));
  TERCIO_ASSIGN_OR_RETURN(const chat::Rendered rendered,
                          rules_.chat_template->render(conversation, rules_.texts));
  return chat::Tokenize(rendered, rules_.loss_on, tokenizer_);
}

void ConversationReader::Append(const TextPiece& piece, chat::ChatTokens tokens) {
  // The last token of a sample is only a target.
  const auto most = static_cast<size_t>(rules_.context) + 1;
  const bool cut = tokens.ids.size() > most;
  if (cut) {
    tokens.ids.resize(most);
    tokens.counts.resize(most);
  }
  // Nothing predicts the first token.
  const bool counts =
      !tokens.ids.empty() &&
      std::find(tokens.counts.begin() + 1, tokens.counts.end(), true) != tokens.counts.end();
  if (!counts) {
    if (all_.not_counted++ == 0) {
      all_.first_not_counted = absl::StrCat(PlaceOf(source_, piece), "no token counts",
                                            cut ? " before its end is cut off" : "");
    }
    return;
  }
  all_.cut += cut ? 1 : 0;
  all_.samples.push_back(
      {static_cast<int64_t>(all_.ids.size()), static_cast<int32_t>(tokens.ids.size())});
  all_.ids.insert(all_.ids.end(), tokens.ids.begin(), tokens.ids.end());
  all_.counts.insert(all_.counts.end(), tokens.counts.begin(), tokens.counts.end());
}

absl::Status ConversationReader::Take(const TextPiece& piece,
                                      absl::StatusOr<chat::ChatTokens> tokens) {
  if (tokens.ok()) {
    Append(piece, *std::move(tokens));
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat(PlaceOf(source_, piece), std::string(tokens.status().message()));
  // By default a bad line ends the job, since data that shrinks unnoticed is worse.
  if (!rules_.skip_bad_lines) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "; fix the line, or skip such lines (data.skip_bad_lines: true)"));
  }
  if (all_.skipped_lines++ == 0) all_.first_skipped = what;
  return absl::OkStatus();
}

absl::StatusOr<ChatSamples> ConversationReader::ToEnd() {
  using Result = absl::StatusOr<chat::ChatTokens>;
  const std::function<Result(const TextPiece&)> work = [this](const TextPiece& piece) {
    return ReadPiece(piece);
  };
  const std::function<absl::Status(const TextPiece&, Result)> take =
      [this](const TextPiece& piece, Result tokens) { return Take(piece, std::move(tokens)); };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source_, rules_.threads, work, take, [] { return absl::OkStatus(); }));
  if (!all_.samples.empty()) return std::move(all_);
  return absl::InvalidArgumentError(absl::StrCat(
      source_.path(0), ": no conversation has a token that counts for the loss",
      all_.first_not_counted.empty() ? "" : absl::StrCat("; the first is ", all_.first_not_counted),
      all_.first_skipped.empty() ? "" : absl::StrCat("; skipped ", all_.first_skipped)));
}

// The first line of a file that is not blank says what form all of them have.
absl::StatusOr<std::vector<chat::Format>> FormatsOf(TextSource source, const ChatRules& rules) {
  std::vector<std::optional<chat::Format>> formats(static_cast<size_t>(source.inputs()),
                                                   rules.format);
  TextPiece piece;
  for (int64_t i = 0; i < source.inputs(); ++i) {
    std::optional<chat::Format>& format = formats[static_cast<size_t>(i)];
    if (format.has_value()) continue;
    source.GoTo({.input = i});
    const bool found = source.Next(&piece) && piece.begin.input == i;
    if (!found) {
      return absl::InvalidArgumentError(absl::StrCat(source.path(i), ": no conversation"));
    }
    absl::StatusOr<chat::Format> of_line = chat::FormatOfLine(piece.text);
    if (!of_line.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(PlaceOf(source, piece), std::string(of_line.status().message()),
                       "; or name the form of the file with data.format"));
    }
    format = *of_line;
  }
  std::vector<chat::Format> all;
  for (const std::optional<chat::Format>& format : formats) all.push_back(*format);
  return all;
}

}  // namespace

absl::StatusOr<ChatRules> ChatRulesOf(const v1::DataSpec& data, int64_t context,
                                      const tokenizer::Tokenizer& tokenizer) {
  ChatRules rules;
  rules.context = context;
  const std::string& name = data.chat().template_();
  if (name.empty() || name == "auto") {
    absl::StatusOr<const chat::Template*> found = chat::TemplateOfTokenizer(data.tokenizer());
    if (!found.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.template: auto: ", std::string(found.status().message())));
    }
    rules.chat_template = *found;
  } else {
    rules.chat_template = chat::FindTemplate(name);
  }
  // Names of later versions come from a newer client.
  if (rules.chat_template == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("data.template: '", name, "' is not known"));
  }
  rules.texts = chat::OptionsFor(*rules.chat_template, tokenizer);
  rules.loss_on = LossOnOf(data.chat().loss_on());
  rules.format = FormatOf(data.chat().format());
  rules.pad = tokenizer.pad().value_or(tokenizer.end_of_text().value_or(0));
  rules.skip_bad_lines = data.skip_bad_lines();
  rules.packing = data.chat().packing();
  return rules;
}

std::string Describe(const ChatRules& rules) {
  nlohmann::json all{{"context", rules.context},
                     {"template", rules.chat_template->name},
                     {"texts", {rules.texts.bos, rules.texts.eos}},
                     {"loss_on", static_cast<int>(rules.loss_on)},
                     {"format", rules.format ? chat::NameOf(*rules.format) : "auto"},
                     {"pad", rules.pad},
                     {"skip_bad_lines", rules.skip_bad_lines}};
  // Jobs without packing keep the digest that they had before there was any.
  if (rules.packing) all["packing"] = kOpenSequences;
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<ChatSamples> ReadChatSamples(const std::vector<std::string>& paths,
                                            const tokenizer::Tokenizer& tokenizer,
                                            const ChatRules& rules) {
  for (const std::string& path : paths) {
    if (IsJsonl(path)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": training.objective: sft learns from .jsonl files, a conversation a line"));
  }
  TERCIO_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(paths, /*split_bytes=*/0));
  TERCIO_ASSIGN_OR_RETURN(std::vector<chat::Format> formats, FormatsOf(source, rules));
  return ConversationReader(std::move(source), std::move(formats), tokenizer, rules).ToEnd();
}

std::vector<std::string> NoticesAbout(const ChatSamples& samples, const std::string& name,
                                      int64_t context) {
  std::vector<std::string> notices;
  if (samples.skipped_lines > 0) {
    notices.push_back(SkippedLinesNotice(samples.skipped_lines, samples.first_skipped));
  }
  if (samples.not_counted > 0) {
    notices.push_back(
        absl::StrCat(name, ": ", samples.not_counted,
                     samples.not_counted == 1 ? " conversation is" : " conversations are",
                     " left out, since none of their tokens counts for the loss, the first is ",
                     samples.first_not_counted));
  }
  if (samples.cut > 0) {
    notices.push_back(absl::StrCat(name, ": ", samples.cut, " of ", samples.samples.size(),
                                   " conversations are longer than model.context ", context,
                                   ", and their ends are cut off"));
  }
  return notices;
}

ChatDataset::ChatDataset(std::shared_ptr<const ChatSamples> all, int64_t begin, int64_t end,
                         int64_t first_number, ChatRules rules)
    : all_(std::move(all)),
      begin_(begin),
      end_(end),
      first_number_(first_number),
      rules_(std::move(rules)) {
  if (!rules_.packing) return;
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < end_ - begin_; ++i) lengths.push_back(PositionsOf(i));
  packing_ = PackDocuments(lengths, rules_.context);
}

// The last token is only a target.
int32_t ChatDataset::PositionsOf(int64_t conversation) const {
  return all_->samples[static_cast<size_t>(begin_ + conversation)].tokens - 1;
}

void ChatDataset::Append(int64_t conversation, int64_t begin, Sample* out) const {
  const ChatSamples::Sample& from = all_->samples[static_cast<size_t>(begin_ + conversation)];
  for (int64_t i = 0; i + 1 < from.tokens; ++i) {
    const auto at = static_cast<size_t>(from.begin + i);
    const auto to = static_cast<size_t>(begin + i);
    out->inputs[to] = all_->ids[at];
    if (all_->counts[at + 1]) out->targets[to] = all_->ids[at + 1];
    if (packing_.has_value()) out->document_starts[to] = static_cast<int32_t>(begin);
  }
}

// The key is not used, for such a sample contains no random decision.
void ChatDataset::Read(int64_t sample, SampleKey, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples());
  // Every field is written, because callers pass the same sample again.
  const auto context = static_cast<size_t>(rules_.context);
  out->inputs.assign(context, rules_.pad);
  out->targets.assign(context, kNoTarget);
  out->types.assign(context, 0);
  out->document_starts.clear();
  out->label = kNoTarget;
  out->number = packing_.has_value() ? 0 : first_number_ + sample;
  if (!packing_.has_value()) {
    out->length = PositionsOf(sample);
    return Append(sample, 0, out);
  }
  out->document_starts.resize(context);
  int32_t length = 0;
  for (const int64_t conversation : packing_->DocumentsOf(sample)) {
    Append(conversation, length, out);
    length += PositionsOf(conversation);
  }
  std::fill(out->document_starts.begin() + length, out->document_starts.end(), length);
  out->length = length;
}

int64_t ChatDataset::tokens() const {
  int64_t sum = 0;
  for (int64_t i = begin_; i < end_; ++i) sum += all_->samples[static_cast<size_t>(i)].tokens;
  return sum;
}

std::string ChatDataset::PackingNotice(const std::string& name, const std::string& part) const {
  if (!packing_.has_value()) return "";
  const int64_t conversations = end_ - begin_;
  const auto filled = static_cast<double>(tokens() - conversations);
  const auto share = [&](int64_t sequences) {
    return 100 * filled / static_cast<double>(sequences * rules_.context);
  };
  const auto counted = [](int64_t count, const char* what) {
    return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
  };
  return absl::StrFormat("%s: %s of %s packed into %s, %.1f %% full (%.1f %% without packing)",
                         name, counted(conversations, "conversation"), part,
                         counted(samples(), "sequence"), share(samples()), share(conversations));
}

}  // namespace tercio::data
