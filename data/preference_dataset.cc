#include "data/preference_dataset.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "data/document_batch.h"
#include "data/jsonl.h"
#include "data/text_source.h"
#include "plan/names.h"

namespace tercio::data {
namespace {

// The answers of a line, one or two.
struct LineAnswers {
  std::vector<chat::ChatTokens> tokens;
  bool desirable = true;
};

// The turns of the assistant in the prompt count for nothing.
size_t TurnsOfPrompt(const chat::Conversation& conversation, size_t messages) {
  return static_cast<size_t>(std::count_if(
      conversation.messages.begin(),
      conversation.messages.begin() + static_cast<std::ptrdiff_t>(messages),
      [](const chat::Message& message) { return message.role == chat::Role::kAssistant; }));
}

// Reads the lines of open files, in their order.
class AnswerReader {
 public:
  AnswerReader(TextSource source, const tokenizer::Tokenizer& tokenizer,
               const PreferenceRules& rules)
      : source_(std::move(source)), tokenizer_(tokenizer), rules_(rules) {}

  absl::StatusOr<PreferenceSamples> ToEnd();

 private:
  // On any thread.
  absl::StatusOr<LineAnswers> ReadPiece(const TextPiece& piece) const;
  absl::StatusOr<chat::Rendered> Render(const chat::Conversation& conversation,
                                        size_t prompt_messages) const;
  // On the caller's thread, in the order of the lines: the result does not depend on the threads.
  absl::Status Take(const TextPiece& piece, absl::StatusOr<LineAnswers> answers);
  void Append(const TextPiece& piece, LineAnswers answers);
  void LeaveOut(const TextPiece& piece, const char* why);

  TextSource source_;
  const tokenizer::Tokenizer& tokenizer_;
  const PreferenceRules& rules_;
  PreferenceSamples all_;
};

absl::StatusOr<chat::Rendered> AnswerReader::Render(const chat::Conversation& conversation,
                                                    size_t prompt_messages) const {
  TERCIO_ASSIGN_OR_RETURN(chat::Rendered rendered,
                          rules_.chat.chat_template->render(conversation, rules_.chat.texts));
  const size_t turns = TurnsOfPrompt(conversation, prompt_messages);
  TERCIO_CHECK_LT(turns, rendered.assistant.size());
  rendered.assistant.erase(rendered.assistant.begin(),
                           rendered.assistant.begin() + static_cast<std::ptrdiff_t>(turns));
  return rendered;
}

absl::StatusOr<LineAnswers> AnswerReader::ReadPiece(const TextPiece& piece) const {
  LineAnswers answers;
  std::vector<chat::Rendered> texts;
  if (rules_.form == v1::ANSWER_FORM_LABELLED) {
    TERCIO_ASSIGN_OR_RETURN(const chat::LabelledAnswer line, chat::ReadLabelledAnswer(piece.text));
    answers.desirable = line.desirable;
    TERCIO_ASSIGN_OR_RETURN(texts.emplace_back(), Render(line.conversation, line.prompt_messages));
  } else {
    TERCIO_ASSIGN_OR_RETURN(const chat::AnswerPair line, chat::ReadAnswerPair(piece.text));
    TERCIO_ASSIGN_OR_RETURN(texts.emplace_back(), Render(line.chosen, line.prompt_messages));
    TERCIO_ASSIGN_OR_RETURN(texts.emplace_back(), Render(line.rejected, line.prompt_messages));
    if (texts[0].text == texts[1].text) {
      return absl::InvalidArgumentError(
          "'chosen' and 'rejected' are the same answer, as the template writes them");
    }
  }
  for (const chat::Rendered& text : texts) {
    TERCIO_ASSIGN_OR_RETURN(answers.tokens.emplace_back(),
                            chat::Tokenize(text, chat::LossOn::kAssistant, tokenizer_));
  }
  return answers;
}

void AnswerReader::LeaveOut(const TextPiece& piece, const char* why) {
  if (all_.answers.not_counted++ > 0) return;
  all_.answers.first_not_counted = absl::StrCat(PlaceOf(source_, piece), why);
}

void AnswerReader::Append(const TextPiece& piece, LineAnswers answers) {
  // The last token of a sample is only a target.
  const auto most = static_cast<size_t>(rules_.chat.context) + 1;
  bool cut = false;
  for (chat::ChatTokens& tokens : answers.tokens) {
    cut = cut || tokens.ids.size() > most;
    tokens.ids.resize(std::min(most, tokens.ids.size()));
    tokens.counts.resize(tokens.ids.size());
    // Nothing predicts the first token.
    if (tokens.ids.empty() ||
        std::find(tokens.counts.begin() + 1, tokens.counts.end(), true) == tokens.counts.end()) {
      return LeaveOut(piece, cut ? "no token of an answer is left before its end is cut off"
                                 : "no token of an answer counts");
    }
  }
  if (answers.tokens.size() == 2 && answers.tokens[0].ids == answers.tokens[1].ids) {
    return LeaveOut(piece, "the answers are equal once their ends are cut off");
  }
  all_.answers.cut += cut ? 1 : 0;
  bool desirable = answers.desirable;
  for (const chat::ChatTokens& tokens : answers.tokens) {
    all_.answers.samples.push_back(
        {static_cast<int64_t>(all_.answers.ids.size()), static_cast<int32_t>(tokens.ids.size())});
    all_.answers.ids.insert(all_.answers.ids.end(), tokens.ids.begin(), tokens.ids.end());
    all_.answers.counts.insert(all_.answers.counts.end(), tokens.counts.begin(),
                               tokens.counts.end());
    all_.desirable.push_back(desirable);
    desirable = false;
  }
}

absl::Status AnswerReader::Take(const TextPiece& piece, absl::StatusOr<LineAnswers> answers) {
  if (answers.ok()) {
    Append(piece, *std::move(answers));
    return absl::OkStatus();
  }
  const std::string what =
      absl::StrCat(PlaceOf(source_, piece), std::string(answers.status().message()));
  // By default a bad line ends the job, since data that shrinks unnoticed is worse.
  if (!rules_.chat.skip_bad_lines) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "; fix the line, or skip such lines (data.skip_bad_lines: true)"));
  }
  if (all_.answers.skipped_lines++ == 0) all_.answers.first_skipped = what;
  return absl::OkStatus();
}

absl::StatusOr<PreferenceSamples> AnswerReader::ToEnd() {
  using Result = absl::StatusOr<LineAnswers>;
  const std::function<Result(const TextPiece&)> work = [this](const TextPiece& piece) {
    return ReadPiece(piece);
  };
  const std::function<absl::Status(const TextPiece&, Result)> take =
      [this](const TextPiece& piece, Result answers) { return Take(piece, std::move(answers)); };
  TERCIO_RETURN_IF_ERROR(
      ForEachPiece(source_, rules_.chat.threads, work, take, [] { return absl::OkStatus(); }));
  const ChatSamples& answers = all_.answers;
  if (!answers.samples.empty()) return std::move(all_);
  return absl::InvalidArgumentError(absl::StrCat(
      source_.path(0), ": no line has answers to learn from",
      answers.first_not_counted.empty() ? "" : "; the first is " + answers.first_not_counted,
      answers.first_skipped.empty() ? "" : "; skipped " + answers.first_skipped));
}

}  // namespace

std::string Describe(const PreferenceRules& rules) {
  return absl::StrCat(Describe(rules.chat), " ", plan::TextOf(rules.form));
}

int64_t SamplesTogether(v1::AnswerForm form) { return form == v1::ANSWER_FORM_LABELLED ? 1 : 2; }

absl::StatusOr<PreferenceSamples> ReadPreferenceSamples(const std::vector<std::string>& paths,
                                                        const tokenizer::Tokenizer& tokenizer,
                                                        const PreferenceRules& rules) {
  for (const std::string& path : paths) {
    if (IsJsonl(path)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": preferences are learnt from .jsonl files, a prompt with its ", "answers a line"));
  }
  TERCIO_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(paths, /*split_bytes=*/0));
  return AnswerReader(std::move(source), tokenizer, rules).ToEnd();
}

std::vector<std::string> NoticesAbout(const PreferenceSamples& samples, const std::string& name,
                                      const PreferenceRules& rules) {
  const ChatSamples& answers = samples.answers;
  std::vector<std::string> notices;
  if (answers.skipped_lines > 0) {
    notices.push_back(SkippedLinesNotice(answers.skipped_lines, answers.first_skipped));
  }
  if (answers.not_counted > 0) {
    notices.push_back(absl::StrCat(name, ": ", answers.not_counted,
                                   answers.not_counted == 1 ? " line is" : " lines are",
                                   " left out, the first is ", answers.first_not_counted));
  }
  if (answers.cut > 0) {
    const auto together = static_cast<size_t>(SamplesTogether(rules.form));
    notices.push_back(absl::StrCat(name, ": of ", answers.cut, " of ",
                                   answers.samples.size() / together,
                                   " lines an answer is longer than model.context ",
                                   rules.chat.context, ", and its end is cut off"));
  }
  return notices;
}

int64_t PreferenceDataset::AnswerOf(int64_t sample) const {
  const ChatSamples::Sample& from = At(sample);
  const auto begin = all_->answers.counts.begin() + from.begin;
  return std::find(begin + 1, begin + from.tokens, true) - all_->answers.counts.begin();
}

void PreferenceDataset::Fill(int64_t sample, Run prompt, Run answer, Sample* out) const {
  // Every field is written, because callers pass the same sample again.
  const int64_t context = rules_.chat.context;
  out->inputs.assign(static_cast<size_t>(context), rules_.chat.pad);
  out->targets.assign(static_cast<size_t>(context), kNoTarget);
  out->types.assign(static_cast<size_t>(context), 0);
  out->label = all_->desirable[static_cast<size_t>(begin_ + sample)] ? 1 : 0;
  out->number = first_number_ + sample;
  const int64_t of_prompt = prompt.end - prompt.begin;
  const int64_t tokens = std::min(context + 1, of_prompt + answer.end - answer.begin);
  out->length = static_cast<int32_t>(tokens - 1);
  const auto id_at = [&](int64_t i) {
    return i < of_prompt ? prompt.begin + i : answer.begin + i - of_prompt;
  };
  for (int64_t i = 0; i + 1 < tokens; ++i) {
    const auto at = static_cast<size_t>(id_at(i));
    const auto next = static_cast<size_t>(id_at(i + 1));
    out->inputs[static_cast<size_t>(i)] = all_->answers.ids[at];
    if (all_->answers.counts[next]) {
      out->targets[static_cast<size_t>(i)] = all_->answers.ids[next];
    }
  }
}

// The key is not used, for such a sample contains no random decision.
void PreferenceDataset::Read(int64_t sample, SampleKey, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples());
  const ChatSamples::Sample& from = At(sample);
  Fill(sample, {from.begin, from.begin + from.tokens}, {0, 0}, out);
}

void PreferenceDataset::ReadMismatched(int64_t sample, Sample* out) const {
  TERCIO_CHECK(sample >= 0 && sample < samples());
  const int64_t other = (sample + samples() - 1) % samples();
  Fill(sample, {At(sample).begin, AnswerOf(sample)},
       {AnswerOf(other), At(other).begin + At(other).tokens}, out);
}

int64_t PreferenceDataset::tokens() const {
  int64_t sum = 0;
  for (int64_t i = 0; i < samples(); ++i) sum += At(i).tokens;
  return sum;
}

}  // namespace tercio::data
