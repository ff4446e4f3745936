// Samples of preferences (docs/preference.md): answers to prompts as a chat's template writes them,
// of which only the answer is predicted. Of a pair the chosen answer is a sample and the rejected
// one the next. What is longer than context + 1 tokens is cut off at its end; a line of which an
// answer has no tokens left, or whose two answers do not differ any more, is left out.
//
// All samples are in memory, as ids.
//
// Thread safety: immutable; any number of threads may read. Errors: INVALID_ARGUMENT naming file
// and line: no JSON, no line of the form that the job's objective learns from, an answer that is
// missing or empty, a pair of equal answers, something for which the template has no place; or
// files without an answer that can be learnt from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "data/chat_dataset.h"
#include "data/sample_dataset.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

struct PreferenceRules {
  ChatRules chat;  // but what counts, and the form of the files
  v1::AnswerForm form = v1::ANSWER_FORM_PAIR;
};

// All that decides samples beside the content of files and the tokenizer.
std::string Describe(const PreferenceRules& rules);

// Samples of a line.
int64_t SamplesTogether(v1::AnswerForm form);

struct PreferenceSamples {
  ChatSamples answers;          // lines that were cut or left out, not samples, are counted
  std::vector<bool> desirable;  // of each sample; of pairs: the chosen ones
};

absl::StatusOr<PreferenceSamples> ReadPreferenceSamples(const std::vector<std::string>& paths,
                                                        const tokenizer::Tokenizer& tokenizer,
                                                        const PreferenceRules& rules);

// What a person should know of them: lines that were skipped, cut or left out.
std::vector<std::string> NoticesAbout(const PreferenceSamples& samples, const std::string& name,
                                      const PreferenceRules& rules);

// Samples [begin, end) of a list, which have the numbers from `first_number` on.
class PreferenceDataset : public SampleDataset {
 public:
  // REQUIRES: no pair is cut.
  PreferenceDataset(std::shared_ptr<const PreferenceSamples> all, int64_t begin, int64_t end,
                    int64_t first_number, PreferenceRules rules)
      : all_(std::move(all)),
        begin_(begin),
        end_(end),
        first_number_(first_number),
        rules_(std::move(rules)) {}

  int64_t samples() const override { return end_ - begin_; }
  int64_t together() const override { return SamplesTogether(rules_.form); }
  void Read(int64_t sample, SampleKey key, Sample* out) const override;

  // The prompt of the sample with the answer of the one before it, of the first with that of the
  // last; its number is the sample's.
  void ReadMismatched(int64_t sample, Sample* out) const;

  // All samples together, without padding.
  int64_t tokens() const;

 private:
  // A run of ids: those of a prompt or an answer.
  struct Run {
    int64_t begin;
    int64_t end;
  };
  const ChatSamples::Sample& At(int64_t sample) const {
    return all_->answers.samples[static_cast<size_t>(begin_ + sample)];
  }
  // The first token that counts.
  int64_t AnswerOf(int64_t sample) const;
  void Fill(int64_t sample, Run prompt, Run answer, Sample* out) const;

  std::shared_ptr<const PreferenceSamples> all_;
  int64_t begin_;
  int64_t end_;
  int64_t first_number_;
  PreferenceRules rules_;
};

}  // namespace tercio::data
