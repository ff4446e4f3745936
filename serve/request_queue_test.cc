#include "serve/request_queue.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizer/tokenizer.h"

namespace tercio::serve {
namespace {

using inference::TextBatch;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 0;

// Continues each text with the ids that follow its last one, byte by byte: "ab" with "cdef...".
// A prompt that ends with '!' is followed by the end, one that ends with '?' fails.
class FakeBatch : public TextBatch {
 public:
  explicit FakeBatch(int64_t slots) : slots_(slots) {}

  int64_t slots() const override { return slots_; }
  int64_t free_slots() const override { return slots_ - static_cast<int64_t>(texts_.size()); }
  // Texts of up to so many ids at once.
  bool HasRoomFor(absl::Span<const int32_t> prompt,
                  const inference::TextOptions& /*options*/) const override {
    return free_slots() > 0 && prompt.size() <= room_;
  }
  CacheUse cache_use() const override {
    return {.pages = 9, .used_pages = 10 - free_slots(), .reused_tokens = 7, .evictions = 2};
  }
  void SetRoom(size_t ids) { room_ = ids; }
  int64_t context() const override { return 100; }
  int32_t vocab_size() const override { return 256; }
  absl::StatusOr<Text> Add(std::vector<int32_t> prompt, const inference::TextOptions&) override {
    if (prompt.front() == 'X') return absl::InvalidArgumentError("no X");
    EXPECT_GT(free_slots(), 0);
    texts_[next_] = prompt.back();
    return next_++;
  }
  absl::Span<const News> Step(int64_t) override {
    news_.clear();
    for (auto& [text, last] : texts_) {
      news_.push_back({.text = text});
      if (last == '?') {
        news_.back().status = absl::FailedPreconditionError("not finite");
        continue;
      }
      last = last == '!' ? kEnd : last + 1;
      news_.back().id = inference::ScoredId{.id = last};
    }
    return news_;
  }
  void Remove(Text text) override { EXPECT_EQ(texts_.erase(text), 1u); }

 private:
  const int64_t slots_;
  size_t room_ = 100;
  std::map<Text, int32_t> texts_;
  std::vector<News> news_;
  Text next_ = 1;
};

class RequestQueueTest : public ::testing::Test {
 protected:
  static TextTask Task(const std::string& prompt, int64_t tokens,
                       std::vector<std::string> stop = {}) {
    TextTask task;
    for (const char c : prompt) task.prompt.push_back(static_cast<unsigned char>(c));
    task.max_tokens = tokens;
    task.stop = std::move(stop);
    return task;
  }

  // One pass, a second after the last one; appends what comes to `shown_`.
  void Pass() {
    now_ += absl::Seconds(1);
    for (const TextNews& news : queue_.Fill(batch_)) Note(news);
    const auto made = batch_.Step(1);
    for (const TextNews& news : queue_.Take(batch_, made, now_)) Note(news);
  }
  void Note(const TextNews& news) {
    std::string& text = shown_[{news.request, news.text}];
    text += news.piece;
    if (!news.status.ok()) text += "<" + std::string(news.status.message()) + ">";
    if (news.finish.has_value()) text += *news.finish == Finish::kStop ? "<stop>" : "<length>";
  }

  ServingFigures figures_;
  FakeBatch batch_{2};
  RequestQueue queue_{
      {.slots = 2, .waiting = 4},
      [](absl::Span<const int32_t> ids) { return tokenizer::Tokenizer::Bytes().Decode(ids); },
      kEnd,
      &figures_};
  absl::Time now_ = absl::UnixEpoch();
  std::map<std::pair<RequestId, size_t>, std::string> shown_;
};

TEST_F(RequestQueueTest, TextsWaitInTheirOrderForASlot) {
  ASSERT_TRUE(queue_.Submit(1, {Task("a", 3), Task("m", 1)}, now_).ok());
  ASSERT_TRUE(queue_.Submit(2, {Task("A", 2)}, now_).ok());
  EXPECT_EQ(queue_.waiting(), 3u);
  Pass();
  EXPECT_EQ(queue_.growing(), 1u);
  EXPECT_EQ((shown_[{1, 1}]), "n<length>");
  EXPECT_EQ(shown_.count({2, 0}), 0u);
  // The slot that became free is used in the next pass, beside the text that grows.
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "bc");
  EXPECT_EQ((shown_[{2, 0}]), "B");
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "bcd<length>");
  EXPECT_EQ((shown_[{2, 0}]), "BC<length>");
  EXPECT_TRUE(queue_.idle());
  EXPECT_EQ(batch_.free_slots(), 2);
  EXPECT_EQ(figures_.prompt_tokens, 3);
  EXPECT_EQ(figures_.new_tokens, 6);
  // Two texts had their first id after a second, one after two; the others followed each second.
  EXPECT_EQ(figures_.first_token.figures().sum, 4);
  EXPECT_EQ(figures_.next_token.figures().sum, 3);
}

TEST_F(RequestQueueTest, AFullQueueRefuses) {
  ASSERT_TRUE(queue_.Submit(1, {Task("a", 3), Task("b", 3), Task("c", 3)}, now_).ok());
  const std::vector<TextTask> four(4, Task("d", 1));
  const absl::Status full = queue_.Submit(2, four, now_);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-queue"));
  // Nothing of a refused request is kept; those that there are slots for do not wait.
  ASSERT_TRUE(queue_.Submit(3, {Task("d", 1), Task("e", 1), Task("f", 1)}, now_).ok());
  EXPECT_EQ(queue_.waiting(), 6u);
  Pass();
  EXPECT_EQ(queue_.waiting(), 4u);
  EXPECT_FALSE(queue_.Submit(4, {Task("g", 1)}, now_).ok());
}

TEST_F(RequestQueueTest, StopWordsAndTheEndFinishATextEarly) {
  ASSERT_TRUE(queue_.Submit(1, {Task("a", 50, {"ef"})}, now_).ok());
  ASSERT_TRUE(queue_.Submit(2, {Task("a!", 50)}, now_).ok());
  for (int pass = 0; pass < 5; ++pass) Pass();
  EXPECT_EQ((shown_[{1, 0}]), "bcd<stop>");
  EXPECT_EQ((shown_[{2, 0}]), "<stop>");
  EXPECT_TRUE(queue_.idle());
  TextTask task = Task("a!", 2);
  task.ignore_end = true;
  ASSERT_TRUE(queue_.Submit(3, {task}, now_).ok());
  Pass();
  Pass();
  EXPECT_EQ((shown_[{3, 0}]), std::string("\0\1", 2) + "<length>");
}

TEST_F(RequestQueueTest, HalfACharacterIsHeldBackUntilTheEnd) {
  // 0xC2 begins a character of two bytes, which 0xC3, the fake's next id, is no part of.
  ASSERT_TRUE(queue_.Submit(1, {Task("\xC1", 1)}, now_).ok());
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "\xC2<length>");
}

TEST_F(RequestQueueTest, ACancelledRequestEndsWithinAStep) {
  ASSERT_TRUE(queue_.Submit(1, {Task("a", 50), Task("b", 50), Task("c", 50)}, now_).ok());
  ASSERT_TRUE(queue_.Submit(2, {Task("A", 1)}, now_).ok());
  Pass();
  // In the middle of a pass.
  const auto made = batch_.Step(1);
  queue_.Cancel(1);
  EXPECT_EQ(queue_.waiting(), 1u);
  EXPECT_TRUE(queue_.Take(batch_, made, now_).empty());
  Pass();
  EXPECT_EQ((shown_[{2, 0}]), "B<length>");
  EXPECT_EQ((shown_[{1, 0}]), "b");
  EXPECT_TRUE(queue_.idle());
  EXPECT_EQ(batch_.free_slots(), 2);
  queue_.Cancel(77);
}

TEST_F(RequestQueueTest, AFaultEndsAllTextsOfItsRequestOnly) {
  ASSERT_TRUE(queue_.Submit(1, {Task("?", 5), Task("a", 5), Task("b", 5)}, now_).ok());
  ASSERT_TRUE(queue_.Submit(2, {Task("X", 5)}, now_).ok());
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "<not finite>");
  EXPECT_EQ(shown_.count({1, 2}), 0u);
  Pass();
  EXPECT_EQ((shown_[{2, 0}]), "<no X>");
  EXPECT_TRUE(queue_.idle());
  EXPECT_EQ(batch_.free_slots(), 2);
}

TEST_F(RequestQueueTest, APromptThatIsOnlyScoredGetsNoText) {
  ASSERT_TRUE(queue_.Submit(1, {Task("a", 0)}, now_).ok());
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "<length>");
  EXPECT_EQ(figures_.new_tokens, 0);
}

TEST_F(RequestQueueTest, ATextThatHasNoRoomIsNotOvertaken) {
  ASSERT_TRUE(queue_.Submit(1, {Task("long one a", 2)}, now_).ok());
  ASSERT_TRUE(queue_.Submit(2, {Task("b", 2)}, now_).ok());
  batch_.SetRoom(5);
  Pass();
  EXPECT_EQ(queue_.waiting(), 2u);
  batch_.SetRoom(100);
  Pass();
  EXPECT_EQ(queue_.growing(), 2u);
  EXPECT_EQ(figures_.cache_pages, 9);
  EXPECT_EQ(figures_.used_cache_pages, 10);
  EXPECT_EQ(figures_.reused_prompt_tokens, 7);
  EXPECT_EQ(figures_.evicted_texts, 2);
  Pass();
  EXPECT_EQ((shown_[{1, 0}]), "bc<length>");
  EXPECT_EQ((shown_[{2, 0}]), "cd<length>");
  EXPECT_EQ(figures_.used_cache_pages, 8);
}

}  // namespace
}  // namespace tercio::serve
