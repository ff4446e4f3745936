#include "worker/inference/text_batch.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/inference/cross_entropy.h"
#include "worker/inference/generator.h"
#include "worker/inference/page_pool.h"

namespace tercio::inference {
namespace {

// Keys and values depend on the adapter: texts of different ones share no pages.
PagePool::Content BeginOf(const TextOptions& options) {
  return options.adapter.has_value() ? -1 - static_cast<PagePool::Content>(*options.adapter) : 0;
}

struct BatchedText {
  TextBatch::Text text = 0;
  TextOptions options;
  std::vector<int32_t> ids;
  size_t prompt = 0;  // ids of the prompt
  size_t known = 0;   // ids whose keys and values are in pages
  size_t scored = 0;  // ids of the prompt whose rows have been reported, if these are scored
  int64_t made = 0;
  bool slides = false;  // is longer than the context
  std::vector<PagePool::Page> pages;
  // The first pages hold ids that others may read, and that end with this content.
  size_t published = 0;
  PagePool::Content content = 0;

  bool waits() const { return pages.empty(); }
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
        plan_(model.cache_plan()),
        inputs_(model.arena().Get<int32_t>("tokens.inputs")),
        positions_(static_cast<size_t>(model.shape().streams.front().rows)),
        pool_(static_cast<int32_t>(model.cache_plan().pages)) {}

  int64_t slots() const override { return model_.texts(); }
  int64_t free_slots() const override { return slots() - static_cast<int64_t>(texts_.size()); }
  bool HasRoomFor(absl::Span<const int32_t> prompt, const TextOptions& options) const override;
  CacheUse cache_use() const override;
  int64_t context() const override { return model_.shape().streams.front().tokens; }
  int32_t vocab_size() const override { return model_.spec().vocab_size(); }

  absl::StatusOr<Text> Add(std::vector<int32_t> prompt, const TextOptions& options) override;
  absl::Span<const News> Step(int64_t prompt_rows) override;
  void Remove(Text text) override;

 private:
  // What a pass can still take.
  struct Left {
    int64_t rows = 0;
    int64_t prompt_rows = 0;
  };

  // Free pages that a text takes with its next id when it begins: others use what it shares.
  int64_t PagesToBegin(absl::Span<const int32_t> ids, const TextOptions& options) const;
  // Those that it takes beside the ones that it has, and one for later.
  int64_t PagesWanted(const BatchedText& text) const;
  bool MayBegin(const BatchedText& text) const;
  // Finds pages with the text's first ids.
  void Reuse(BatchedText& text);
  // Gives a text pages for its first `ids` ids, if need be those of younger ones. Returns for how
  // many it has pages.
  int64_t Provide(size_t index, int64_t ids);
  void ReturnPages(BatchedText& text);
  // Pages that are full now.
  void Publish(BatchedText& text);
  // What of a text is read; no rows: none of it in this pass.
  TextPart PartOf(size_t index, const Left& left);
  TextPart WindowOf(size_t index, const Left& left);
  std::vector<TextPart> ChooseParts(int64_t prompt_rows);
  void Forward(absl::Span<TextPart> parts);
  // The rows of the pass whose logits are wanted of a part, ascending: from the one that is
  // returned on.
  static int64_t FirstWantedRow(const TextPart& part);
  // visit(row, its logits) for the rows of the pass, ascending. Rows that follow each other read
  // the head's weights once.
  void ForLogits(absl::Span<const int64_t> rows,
                 absl::FunctionRef<void(int64_t row, absl::Span<const float> logits)> visit);
  static void Take(const TextPart& part, int64_t row, absl::Span<const float> logits);

  WholeModel& model_;
  const CachePlan& plan_;
  int32_t* const inputs_;
  std::vector<int32_t> positions_;  // of the rows of a pass
  PagePool pool_;
  std::vector<BatchedText> texts_;  // the oldest first
  std::vector<News> news_;
  Text next_ = 0;
  int64_t reused_tokens_ = 0;
  int64_t evictions_ = 0;
};

absl::StatusOr<TextBatch::Text> ModelTextBatch::Add(std::vector<int32_t> prompt,
                                                    const TextOptions& options) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  TERCIO_RETURN_IF_ERROR(CheckIds(prompt, vocab_size()));
  if (options.adapter.has_value() && *options.adapter >= model_.adapters().size()) {
    return absl::InvalidArgumentError(absl::StrCat("adapter ", *options.adapter, " is none of the ",
                                                   model_.adapters().size(), " of the model"));
  }
  if (free_slots() == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", slots(), " texts of the batch are growing; remove one first"));
  }
  BatchedText text = {.text = next_++, .options = options};
  text.content = BeginOf(options);
  text.prompt = prompt.size();
  text.ids = std::move(prompt);
  texts_.push_back(std::move(text));
  return texts_.back().text;
}

void ModelTextBatch::Remove(Text text) {
  const auto found = std::find_if(texts_.begin(), texts_.end(),
                                  [text](const BatchedText& t) { return t.text == text; });
  TERCIO_CHECK(found != texts_.end());
  ReturnPages(*found);
  texts_.erase(found);
}

int64_t ModelTextBatch::PagesToBegin(absl::Span<const int32_t> ids,
                                     const TextOptions& options) const {
  const auto page_tokens = static_cast<size_t>(plan_.page_tokens);
  int64_t pages = plan_.PagesFor(static_cast<int64_t>(ids.size()) + 1);
  if (ids.size() > static_cast<size_t>(context())) return pages;
  PagePool::Content content = BeginOf(options);
  for (size_t known = 0; known + page_tokens < ids.size(); known += page_tokens) {
    const auto found = pool_.FindInUse(content, ids.subspan(known, page_tokens));
    if (!found.has_value()) break;
    content = found->content;
    --pages;
  }
  return pages;
}

int64_t ModelTextBatch::PagesWanted(const BatchedText& text) const {
  if (text.waits()) return PagesToBegin(text.ids, text.options) + 1;
  const auto has = static_cast<int64_t>(text.pages.size());
  const int64_t next = plan_.PagesFor(static_cast<int64_t>(text.ids.size()) + 1);
  const int64_t least = std::max(next, has);
  return least - has + (least < plan_.pages_per_text ? 1 : 0);
}

bool ModelTextBatch::HasRoomFor(absl::Span<const int32_t> prompt,
                                const TextOptions& options) const {
  if (free_slots() == 0) return false;
  // Where all have pages for the whole context, nothing else counts.
  const auto texts = static_cast<int64_t>(texts_.size()) + 1;
  if (texts * plan_.pages_per_text <= plan_.pages) return true;
  int64_t wanted = PagesToBegin(prompt, options);
  for (const BatchedText& text : texts_) wanted += PagesWanted(text);
  return wanted <= pool_.free();
}

bool ModelTextBatch::MayBegin(const BatchedText& text) const {
  int64_t wanted = PagesToBegin(text.ids, text.options);
  bool alone = true;
  for (const BatchedText& other : texts_) {
    if (other.waits()) continue;
    wanted += PagesWanted(other);
    alone = false;
  }
  return alone || wanted <= pool_.free();
}

TextBatch::CacheUse ModelTextBatch::cache_use() const {
  return {.pages = pool_.total(),
          .used_pages = pool_.total() - pool_.free(),
          .reused_tokens = reused_tokens_,
          .evictions = evictions_};
}

void ModelTextBatch::Reuse(BatchedText& text) {
  // Scores of a prompt need its rows.
  if (text.slides || (text.options.score_prompt && text.scored + 1 < text.prompt)) return;
  const auto page_tokens = static_cast<size_t>(plan_.page_tokens);
  // The last id is read in any case: its row predicts the next one.
  while (text.known + page_tokens < text.ids.size()) {
    const auto found =
        pool_.Find(text.content, absl::MakeConstSpan(text.ids).subspan(text.known, page_tokens));
    if (!found.has_value()) break;
    text.pages.push_back(found->page);
    text.content = found->content;
    ++text.published;
    text.known += page_tokens;
  }
  reused_tokens_ += static_cast<int64_t>(std::min(text.known, text.prompt));
}

void ModelTextBatch::Publish(BatchedText& text) {
  const auto page_tokens = static_cast<size_t>(plan_.page_tokens);
  while (!text.slides && (text.published + 1) * page_tokens <= text.known) {
    const auto ids =
        absl::MakeConstSpan(text.ids).subspan(text.published * page_tokens, page_tokens);
    text.content = pool_.Publish(text.pages[text.published++], text.content, ids);
  }
}

void ModelTextBatch::ReturnPages(BatchedText& text) {
  // The first one is of use to most, and so the last one whose content is given up.
  for (; !text.pages.empty(); text.pages.pop_back()) pool_.Return(text.pages.back());
  text.known = 0;
  text.published = 0;
  text.content = BeginOf(text.options);
}

int64_t ModelTextBatch::Provide(size_t index, int64_t ids) {
  BatchedText& text = texts_[index];
  const auto wanted = static_cast<size_t>(plan_.PagesFor(ids));
  for (size_t youngest = texts_.size() - 1; text.pages.size() < wanted;) {
    const std::optional<PagePool::Page> page = pool_.Take();
    if (page.has_value()) {
      text.pages.push_back(*page);
      continue;
    }
    while (youngest > index && texts_[youngest].waits()) --youngest;
    if (youngest == index) break;
    ReturnPages(texts_[youngest]);
    ++evictions_;
  }
  return std::min(ids, static_cast<int64_t>(text.pages.size()) * plan_.page_tokens);
}

// Once the window slides every id has a new position, and no known key or value can be used.
TextPart ModelTextBatch::WindowOf(size_t index, const Left& left) {
  BatchedText& text = texts_[index];
  if (!text.slides) {
    // Others may read the pages that it has so far.
    ReturnPages(text);
    text.slides = true;
  }
  TextPart part = {.text = &text, .begin = text.ids.size() - static_cast<size_t>(context())};
  if (left.rows < context() || Provide(index, context()) < context()) return part;
  part.rows = context();
  return part;
}

TextPart ModelTextBatch::PartOf(size_t index, const Left& left) {
  BatchedText& text = texts_[index];
  if (text.ids.size() > static_cast<size_t>(context())) return WindowOf(index, left);
  if (text.waits()) Reuse(text);
  const auto unknown = static_cast<int64_t>(text.ids.size() - text.known);
  const auto known = static_cast<int64_t>(text.known);
  int64_t rows = std::min(unknown, left.rows);
  if (unknown > 1) rows = std::min(rows, left.prompt_rows);
  if (rows > 0) rows = std::max<int64_t>(0, Provide(index, known + rows) - known);
  return {.text = &text, .begin = text.known, .rows = rows};
}

std::vector<TextPart> ModelTextBatch::ChooseParts(int64_t prompt_rows) {
  Left left = {.rows = model_.shape().streams.front().rows, .prompt_rows = prompt_rows};
  std::vector<TextPart> parts;
  for (size_t i = 0; i < texts_.size(); ++i) {
    // Younger ones do not overtake a text that waits for pages.
    if (texts_[i].waits() && !MayBegin(texts_[i])) break;
    const TextPart part = PartOf(i, left);
    if (part.rows == 0) continue;
    left.rows -= part.rows;
    if (part.begin + 1 < part.text->ids.size()) left.prompt_rows -= part.rows;
    left.prompt_rows = std::max<int64_t>(0, left.prompt_rows);
    parts.push_back(part);
  }
  // Rows whose logits are wanted lie side by side: parts of one row come first. Among them, and
  // among the others, so do those of one adapter, which is computed for all of them at once.
  std::stable_sort(parts.begin(), parts.end(), [](const TextPart& a, const TextPart& b) {
    const bool a_is_long = a.rows != 1;
    const bool b_is_long = b.rows != 1;
    return std::tie(a_is_long, a.text->options.adapter) <
           std::tie(b_is_long, b.text->options.adapter);
  });
  int64_t row = 0;
  for (TextPart& part : parts) {
    part.first_row = row;
    row += part.rows;
  }
  return parts;
}

void ModelTextBatch::Forward(absl::Span<TextPart> parts) {
  std::vector<blocks::SequencePart> sequences;
  for (const TextPart& part : parts) {
    BatchedText& text = *part.text;
    const auto begin = text.ids.begin() + static_cast<ptrdiff_t>(part.begin);
    std::copy(begin, begin + static_cast<ptrdiff_t>(part.rows), inputs_ + part.first_row);
    const int64_t first_position = text.slides ? 0 : static_cast<int64_t>(part.begin);
    const auto positions = positions_.begin() + part.first_row;
    std::iota(positions, positions + part.rows, static_cast<int32_t>(first_position));
    const std::optional<size_t> adapter = text.options.adapter;
    sequences.push_back(
        {.first_position = first_position,
         .rows = part.rows,
         .pages = text.pages.data(),
         .adapter = adapter.has_value() ? &model_.adapters().at(*adapter) : nullptr});
  }
  blocks::MicroBatch batch;
  batch.training = false;
  batch.inputs = inputs_;
  batch.parts = sequences;
  batch.cache = &model_.cache();
  batch.positions = positions_.data();
  model_.stage().Forward(batch);
  for (const TextPart& part : parts) {
    part.text->known = part.begin + static_cast<size_t>(part.rows);
    Publish(*part.text);
  }
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

int64_t ModelTextBatch::FirstWantedRow(const TextPart& part) {
  const BatchedText& text = *part.text;
  const int64_t end = part.first_row + part.rows;
  // What is read again has been scored before.
  if (text.options.score_prompt && text.made == 0 && part.begin < text.prompt) {
    const size_t first = std::max(part.begin, text.scored);
    return std::min(end, part.first_row + static_cast<int64_t>(first - part.begin));
  }
  return end - (part.at_the_end() ? 1 : 0);
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
    for (int64_t row = FirstWantedRow(part); row < part.first_row + part.rows; ++row) {
      rows.push_back(row);
      part_of_row.push_back(&part);
    }
    const size_t end = part.begin + static_cast<size_t>(part.rows);
    part.text->scored = std::max(part.text->scored, end);
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
