// Which texts grow, and which wait: requests of one or more texts come in, wait in the order of
// their arrival for room in the batch, and leave when they have ended or are no longer
// wanted. Decides values only: the caller brings the time, and runs the passes between Fill and
// Take.
//
// Threads: one at a time; of the calls only Fill and Take touch the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "serve/serving_figures.h"
#include "serve/stop_words.h"
#include "tokenizer/text_stream.h"
#include "worker/inference/text_batch.h"

namespace tercio::serve {

using RequestId = uint64_t;

// One text of a request.
struct TextTask {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;  // 0: the prompt is only scored
  inference::TextOptions options;
  std::vector<std::string> stop;
  bool ignore_end = false;  // the end of a text is a token like any other
};

enum class Finish { kStop, kLength };

// What a pass has made of a text of a request.
struct TextNews {
  RequestId request = 0;
  size_t text = 0;  // within the request
  // The request has failed, with all its texts: nothing follows.
  absl::Status status;
  std::string piece;  // what can be shown now, in whole characters
  std::vector<inference::ScoredId> prompt;
  std::optional<inference::ScoredId> id;
  std::optional<Finish> finish;  // nothing follows
};

class RequestQueue {
 public:
  struct Limits {
    size_t slots = 1;      // texts that grow at once
    size_t waiting = 256;  // beside the texts for which there are slots
  };
  // `end`: the id that ends a text, if there is one. `figures` outlives the queue.
  RequestQueue(const Limits& limits, tokenizer::TextStream::Decode decode,
               std::optional<int32_t> end, ServingFigures* figures)
      : limits_(limits), decode_(std::move(decode)), end_(end), figures_(*figures) {}

  // RESOURCE_EXHAUSTED: more texts would wait than may. An id is used once.
  absl::Status Submit(RequestId request, std::vector<TextTask> tasks, absl::Time now);
  // Nothing follows for the request. One that has ended is no error.
  void Cancel(RequestId request);

  bool idle() const { return waiting_.empty() && growing_.empty(); }
  size_t waiting() const { return waiting_.size(); }
  size_t growing() const { return growing_.size(); }

  // Before a pass: ends what is cancelled, and lets the texts begin for which there is room. None
  // overtakes another.
  std::vector<TextNews> Fill(inference::TextBatch& batch);
  // After it.
  std::vector<TextNews> Take(inference::TextBatch& batch,
                             absl::Span<const inference::TextBatch::News> news, absl::Time now);

 private:
  struct Entry {
    RequestId request = 0;
    size_t text = 0;
    TextTask task;
    absl::Time submitted;
    absl::Time last;  // when the last id came
    int64_t made = 0;
    bool cancelled = false;
    std::unique_ptr<tokenizer::TextStream> stream;
    std::unique_ptr<StopWords> stop;
  };

  TextNews Next(Entry& entry, const inference::TextBatch::News& news, absl::Time now);
  absl::Status Show(Entry& entry, TextNews* out);
  void CountTime(Entry& entry, absl::Time now);
  void CountCache(const inference::TextBatch& batch);

  const Limits limits_;
  const tokenizer::TextStream::Decode decode_;
  const std::optional<int32_t> end_;
  ServingFigures& figures_;
  std::deque<Entry> waiting_;
  std::map<inference::TextBatch::Text, Entry> growing_;
};

}  // namespace tercio::serve
