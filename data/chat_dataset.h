// Samples of conversations, for supervised fine-tuning (docs/chat.md): each is one conversation as
// its template writes it, and only what counts is predicted. Token i + 1 is the target of position
// i, where it counts. Of a conversation of more than context + 1 tokens the end is cut off; one in
// which no token counts, then, is no sample. Positions behind a shorter one are padding, which
// nothing before them sees.
//
// With packing a sample is a sequence of several conversations, one behind the other (packing.h);
// each takes the positions that it has alone, so that no target is another one's.
//
// All samples are in memory, as ids.
//
// Thread safety: immutable; any number of threads may read. Errors: INVALID_ARGUMENT naming file
// and line: no JSON, no conversation of the file's form, something for which the template has no
// place; or a file without conversations, or one in which none counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/chat/reader.h"
#include "data/chat/template.h"
#include "data/chat/tokens.h"
#include "data/packing.h"
#include "data/sample_dataset.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"

namespace tercio::data {

struct ChatRules {
  int64_t context = 0;
  const chat::Template* chat_template = nullptr;
  chat::RenderOptions texts;
  chat::LossOn loss_on = chat::LossOn::kAssistant;
  std::optional<chat::Format> format;  // absent: by the first line of each file
  int32_t pad = 0;
  bool skip_bad_lines = false;
  bool packing = false;
  int threads = 1;
};

// The rules of a job. INVALID_ARGUMENT: its template is not known.
absl::StatusOr<ChatRules> ChatRulesOf(const v1::DataSpec& data, int64_t context,
                                      const tokenizer::Tokenizer& tokenizer);

// All that decides samples beside the content of files and the tokenizer.
std::string Describe(const ChatRules& rules);

// Conversations as they were read, one after the other.
struct ChatSamples {
  struct Sample {
    int64_t begin = 0;  // in `ids`
    int32_t tokens = 0;
  };
  std::vector<int32_t> ids;
  std::vector<bool> counts;  // for each id, whether it is predicted
  std::vector<Sample> samples;
  int64_t cut = 0;          // samples whose end is missing
  int64_t not_counted = 0;  // conversations in which no token counts
  std::string first_not_counted;
  int64_t skipped_lines = 0;
  std::string first_skipped;  // "a.jsonl:7: ...", empty if none was skipped
};

absl::StatusOr<ChatSamples> ReadChatSamples(const std::vector<std::string>& paths,
                                            const tokenizer::Tokenizer& tokenizer,
                                            const ChatRules& rules);

// What a person should know of them: lines that were skipped, conversations that were cut or left
// out.
std::vector<std::string> NoticesAbout(const ChatSamples& samples, const std::string& name,
                                      int64_t context);

// Conversations [begin, end) of a list. Without packing they have the numbers from `first_number`
// on.
class ChatDataset : public SampleDataset {
 public:
  ChatDataset(std::shared_ptr<const ChatSamples> all, int64_t begin, int64_t end,
              int64_t first_number, ChatRules rules);

  int64_t samples() const override {
    return packing_.has_value() ? packing_->sequences() : end_ - begin_;
  }
  void Read(int64_t sample, SampleKey key, Sample* out) const override;

  // All samples together, without padding.
  int64_t tokens() const;

  // What packing makes of them, for people; empty without it. `name`: of the data; `part`: of it,
  // "the training part".
  std::string PackingNotice(const std::string& name, const std::string& part) const;

 private:
  int32_t PositionsOf(int64_t conversation) const;
  // Writes a conversation from position `begin` on.
  void Append(int64_t conversation, int64_t begin, Sample* out) const;

  std::shared_ptr<const ChatSamples> all_;
  int64_t begin_;
  int64_t end_;
  int64_t first_number_;
  ChatRules rules_;
  std::optional<Packing> packing_;  // of the conversations, the first of which is 0
};

}  // namespace tercio::data
