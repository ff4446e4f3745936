// Texts that grow together: continuous batching. A text is added while others grow, gets ids beside
// them, and leaves; its place is free for the next one in the same pass.
//
// Keys and values lie in pages of a cache (key_cache.h), whose memory is fixed when the model is
// loaded; a text takes the next page as it grows, and its pages are free when it leaves. Where the
// cache is smaller than all texts' contexts, and its pages run out, the youngest text gives its own
// back, and reads its ids again once there is room. The oldest text never waits, so that all end.
// Texts that begin with the same ids share the pages that these fill.
//
// What a text's ids are depends on its prompt and options alone, not on the texts beside it, nor on
// the passes that its prompt is cut into, nor on which of its pages were there already.
//
// Threads: one thread uses a batch and its model at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/inference/sampling.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

// The model's own probabilities, before temperature and top_p: natural logarithms.
struct LogProbability {
  int32_t id = 0;
  double value = 0;
};
struct ScoredId {
  int32_t id = 0;
  double log_probability = 0;             // 0 where the text asks for none
  std::vector<LogProbability> likeliest;  // descending; among equal ones the smaller id comes first
};

struct TextOptions {
  GenerateOptions sampling;  // `tokens`, `start` and `end` do not count: the caller ends a text
  // Scores each id, with so many of the likeliest instead of it; nullopt: no scores.
  std::optional<int> likeliest;
  // Also scores the ids of the prompt, except the first.
  bool score_prompt = false;
  // The adapter that the text grows with, by its place among the model's (adapter_set.h); nullopt:
  // the base alone.
  std::optional<size_t> adapter;
};

class TextBatch {
 public:
  using Text = int64_t;  // never used again

  // What a pass has made of a text.
  struct News {
    Text text = 0;
    // FAILED_PRECONDITION: outputs that are not finite; the text must be removed.
    absl::Status status;
    std::vector<ScoredId> prompt;  // of the part of the prompt that was read, if these are scored
    std::optional<ScoredId> id;    // none while a part of the prompt has not been read
  };

  virtual ~TextBatch() = default;

  // What has become of the cache.
  struct CacheUse {
    int64_t pages = 0;
    int64_t used_pages = 0;     // by texts; others may keep what they hold for texts to come
    int64_t reused_tokens = 0;  // of prompts that were found in pages, since the beginning
    int64_t evictions = 0;      // texts that had to give their pages back, since the beginning
  };

  virtual int64_t slots() const = 0;
  virtual int64_t free_slots() const = 0;
  // Whether a text with this prompt may begin at once: a slot is free, and the cache has pages for
  // it, beside the next ones of those that grow. An empty batch has room for any text.
  virtual bool HasRoomFor(absl::Span<const int32_t> /*prompt*/,
                          const TextOptions& /*options*/) const {
    return free_slots() > 0;
  }
  virtual CacheUse cache_use() const { return {}; }
  virtual int64_t context() const = 0;
  virtual int32_t vocab_size() const = 0;

  // INVALID_ARGUMENT: an empty prompt, ids outside the vocabulary, or an adapter that the model
  // does not have; RESOURCE_EXHAUSTED: no slot is free. Of a text longer than the context its last
  // `context` ids count, and each further id costs a pass over all of them. A text for which there
  // is no room waits in the batch.
  virtual absl::StatusOr<Text> Add(std::vector<int32_t> prompt, const TextOptions& options) = 0;
  // One pass: the next id of each text whose ids have been read, and up to `prompt_rows` ids of
  // those that have not (at least one; those of older texts first), so that a long prompt does not
  // hold up the others for long. Texts for which a pass has no rows, or the cache no pages, have no
  // news. Valid until the next call. Empty if no text grows.
  virtual absl::Span<const News> Step(int64_t prompt_rows) = 0;
  // REQUIRES: the text is in the batch.
  virtual void Remove(Text text) = 0;
};

// The ids that are scored: `id` among `logits` with the `likeliest` most likely ones.
ScoredId Score(absl::Span<const float> logits, int32_t id, int likeliest);

// A batch over all sequences of a causal model, which outlives it.
std::unique_ptr<TextBatch> MakeTextBatch(WholeModel& model);

}  // namespace tercio::inference
