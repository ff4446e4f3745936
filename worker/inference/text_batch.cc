#include "worker/inference/text_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/inference/cross_entropy.h"
#include "worker/inference/generator.h"

namespace tercio::inference {
namespace {

struct BatchedText {
  TextBatch::Text text = 0;
  int64_t sequence = 0;  // of the model's micro-batch
  TextOptions options;
  std::vector<int32_t> ids;
  size_t prompt = 0;  // ids of the prompt
  size_t known = 0;   // ids whose keys and values are in the activations
  int64_t made = 0;
};

// The part of a text that a pass reads.
struct TextPart {
  BatchedText* text = nullptr;
  size_t begin = 0;  // its first id among the text's
  int64_t rows = 0;
  int64_t first_row = 0;  // of the pass
  TextBatch::News* news = nullptr;

  bool at_the_end() const { return begin + static_cast<size_t>(rows) == text->ids.size(); }
};

class ModelTextBatch : public TextBatch {
 public:
  explicit ModelTextBatch(WholeModel& model)
      : model_(model),
        inputs_(model.arena().Get<int32_t>("tokens.inputs")),
        free_sequences_(static_cast<size_t>(model.shape().sequences)) {
    std::iota(free_sequences_.rbegin(), free_sequences_.rend(), 0);
  }

  int64_t slots() const override { return model_.shape().sequences; }
  int64_t free_slots() const override { return static_cast<int64_t>(free_sequences_.size()); }
  int64_t context() const override { return model_.shape().streams.front().tokens; }
  int32_t vocab_size() const override { return model_.spec().vocab_size(); }

  absl::StatusOr<Text> Add(std::vector<int32_t> prompt, const TextOptions& options) override;
  absl::Span<const News> Step(int64_t prompt_rows) override;
  void Remove(Text text) override;

 private:
  // What of a text is read, within `prompt_rows`; no rows: none of it in this pass.
  TextPart PartOf(BatchedText& text, int64_t prompt_rows) const;
  std::vector<TextPart> ChooseParts(int64_t prompt_rows);
  void Forward(absl::Span<TextPart> parts);
  // visit(row, its logits) for the rows of the pass, ascending. Rows that follow each other read
  // the head's weights once.
  void ForLogits(absl::Span<const int64_t> rows,
                 absl::FunctionRef<void(int64_t row, absl::Span<const float> logits)> visit);
  static void Take(const TextPart& part, int64_t row, absl::Span<const float> logits);

  WholeModel& model_;
  int32_t* const inputs_;
  std::vector<int64_t> free_sequences_;
  std::vector<BatchedText> texts_;  // the oldest first
  std::vector<News> news_;
  Text next_ = 0;
};

absl::StatusOr<TextBatch::Text> ModelTextBatch::Add(std::vector<int32_t> prompt,
                                                    const TextOptions& options) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(prompt, vocab_size()));
  if (free_sequences_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", slots(), " texts of the batch are growing; remove one first"));
  }
  BatchedText text = {.text = next_++, .sequence = free_sequences_.back(), .options = options};
  text.prompt = prompt.size();
  text.ids = std::move(prompt);
  free_sequences_.pop_back();
  texts_.push_back(std::move(text));
  return texts_.back().text;
}

void ModelTextBatch::Remove(Text text) {
  const auto found = std::find_if(texts_.begin(), texts_.end(),
                                  [text](const BatchedText& t) { return t.text == text; });
  TERCIO_CHECK(found != texts_.end());
  free_sequences_.push_back(found->sequence);
  texts_.erase(found);
}

TextPart ModelTextBatch::PartOf(BatchedText& text, int64_t prompt_rows) const {
  const size_t window = std::min(text.ids.size(), static_cast<size_t>(context()));
  // Once the window slides every id has a new position, and no known key or value can be used.
  if (window < text.ids.size()) {
    return {.text = &text, .begin = text.ids.size() - window, .rows = static_cast<int64_t>(window)};
  }
  const auto unknown = static_cast<int64_t>(window - text.known);
  const bool reads_prompt = text.known < text.prompt;
  return {.text = &text,
          .begin = text.known,
          .rows = reads_prompt ? std::min(unknown, prompt_rows) : unknown};
}

std::vector<TextPart> ModelTextBatch::ChooseParts(int64_t prompt_rows) {
  std::vector<TextPart> parts;
  for (BatchedText& text : texts_) {
    const TextPart part = PartOf(text, prompt_rows);
    if (part.rows == 0) continue;
    parts.push_back(part);
    if (text.known < text.prompt) prompt_rows = std::max<int64_t>(0, prompt_rows - part.rows);
  }
  // Rows whose logits are wanted lie side by side: parts of one row come first.
  std::stable_partition(parts.begin(), parts.end(),
                        [](const TextPart& part) { return part.rows == 1; });
  int64_t row = 0;
  for (TextPart& part : parts) {
    part.first_row = row;
    row += part.rows;
  }
  TERCIO_CHECK_LE(row, model_.shape().streams.front().rows);
  return parts;
}

void ModelTextBatch::Forward(absl::Span<TextPart> parts) {
  std::vector<blocks::SequencePart> sequences;
  for (const TextPart& part : parts) {
    BatchedText& text = *part.text;
    const auto begin = text.ids.begin() + static_cast<ptrdiff_t>(part.begin);
    std::copy(begin, begin + static_cast<ptrdiff_t>(part.rows), inputs_ + part.first_row);
    const bool slides = text.ids.size() > static_cast<size_t>(context());
    sequences.push_back({.sequence = text.sequence,
                         .first_position = slides ? 0 : static_cast<int64_t>(part.begin),
                         .rows = part.rows});
    text.known = part.begin + static_cast<size_t>(part.rows);
  }
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.parts = sequences;
  model_.stage().Forward(batch);
}

void ModelTextBatch::ForLogits(
    absl::Span<const int64_t> rows,
    absl::FunctionRef<void(int64_t row, absl::Span<const float> logits)> visit) {
  const plan::StageShape& shape = model_.shape();
  for (size_t first = 0; first < rows.size();) {
    size_t end = first + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1 &&
           static_cast<int64_t>(end - first) < shape.chunk_rows) {
      ++end;
    }
    const auto count = static_cast<int64_t>(end - first);
    const float* logits = model_.stage().Logits({}, rows[first], count).floats();
    for (; first < end; ++first, logits += shape.vocabulary) {
      visit(rows[first], absl::MakeConstSpan(logits, static_cast<size_t>(vocab_size())));
    }
  }
}

// The row of an id predicts the one after it.
void ModelTextBatch::Take(const TextPart& part, int64_t row, absl::Span<const float> logits) {
  BatchedText& text = *part.text;
  News& news = *part.news;
  if (news.status.ok()) news.status = CheckFinite(logits);
  if (!news.status.ok()) return;
  const TextOptions& options = text.options;
  const size_t next = part.begin + static_cast<size_t>(row - part.first_row) + 1;
  if (next < text.ids.size()) {
    news.prompt.push_back(Score(logits, text.ids[next], options.likeliest.value_or(0)));
    return;
  }
  const int32_t id = SampleId(logits, options.sampling, text.made++);
  news.id =
      options.likeliest.has_value() ? Score(logits, id, *options.likeliest) : ScoredId{.id = id};
}

absl::Span<const TextBatch::News> ModelTextBatch::Step(int64_t prompt_rows) {
  TERCIO_CHECK_GE(prompt_rows, 1);
  std::vector<TextPart> parts = ChooseParts(prompt_rows);
  news_.clear();
  if (parts.empty()) return news_;
  news_.reserve(parts.size());
  std::vector<int64_t> rows;
  std::vector<const TextPart*> part_of_row;
  for (TextPart& part : parts) {
    news_.push_back({.text = part.text->text});
    part.news = &news_.back();
    const bool reads_prompt = part.begin < part.text->prompt && part.text->made == 0;
    const int64_t end = part.first_row + part.rows;
    int64_t row = end - (part.at_the_end() ? 1 : 0);
    if (part.text->options.score_prompt && reads_prompt) row = part.first_row;
    for (; row < end; ++row) {
      rows.push_back(row);
      part_of_row.push_back(&part);
    }
  }
  Forward(absl::MakeSpan(parts));
  size_t next = 0;
  ForLogits(rows, [&](int64_t row, absl::Span<const float> logits) {
    Take(*part_of_row[next++], row, logits);
  });
  // The ids that were sampled have not been through the model.
  for (const TextPart& part : parts) {
    const News& news = *part.news;
    if (news.id.has_value()) part.text->ids.push_back(news.id->id);
  }
  return news_;
}

}  // namespace

ScoredId Score(absl::Span<const float> logits, int32_t id, int likeliest) {
  ScoredId scored = {.id = id, .log_probability = -CrossEntropy(logits, id)};
  if (likeliest <= 0) return scored;
  const double sum = scored.log_probability - logits[static_cast<size_t>(id)];
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min(order.size(), static_cast<size_t>(likeliest));
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [logits](int32_t a, int32_t b) {
                      const float of_a = logits[static_cast<size_t>(a)];
                      const float of_b = logits[static_cast<size_t>(b)];
                      return of_a != of_b ? of_a > of_b : a < b;
                    });
  for (size_t i = 0; i < count; ++i) {
    scored.likeliest.push_back({order[i], sum + logits[static_cast<size_t>(order[i])]});
  }
  return scored;
}

std::unique_ptr<TextBatch> MakeTextBatch(WholeModel& model) {
  return std::make_unique<ModelTextBatch>(model);
}

}  // namespace tercio::inference
