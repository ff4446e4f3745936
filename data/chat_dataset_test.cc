#include "data/chat_dataset.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::data {
namespace {

using ::testing::HasSubstr;

std::string Line(const std::string& user, const std::string& assistant) {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": ")", user,
                      R"("}, {"role": "assistant", "content": ")", assistant, "\"}]}\n");
}

class ChatDatasetTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(scratch_.path(), "/", name);
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return path;
  }

  v1::JobSpec Job(const std::string& train, int context = 80) {
    v1::JobSpec job;
    job.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
    job.mutable_model()->set_layers(1);
    job.mutable_model()->set_hidden(8);
    job.mutable_model()->set_heads(1);
    job.mutable_model()->set_context(context);
    job.mutable_data()->set_train(train);
    job.mutable_data()->set_tokenizer("bytes");
    job.mutable_data()->mutable_chat()->set_template_("chatml");
    return job;
  }

  absl::StatusOr<PreparedData> Prepare(const v1::JobSpec& job) {
    return PrepareData(job.data(), job.model(), scratch_.path());
  }

  std::string FaultOf(const v1::JobSpec& job) {
    return std::string(Prepare(job).status().message());
  }

  // Inputs without padding, and the same with '_' for every target that does not count.
  static std::pair<std::string, std::string> TextsOf(const Sample& sample) {
    std::string inputs;
    std::string targets;
    for (int32_t i = 0; i < sample.length; ++i) {
      inputs += static_cast<char>(sample.inputs[static_cast<size_t>(i)]);
      const int32_t target = sample.targets[static_cast<size_t>(i)];
      targets += target == kNoTarget ? '_' : static_cast<char>(target);
    }
    return {inputs, targets};
  }

  TempDir scratch_;
};

TEST_F(ChatDatasetTest, OnlyTheAssistantIsPredicted) {
  const v1::JobSpec job = Job(Write("a.jsonl", Line("Hi", "Yo")));
  auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 1);
  EXPECT_EQ(prepared->vocab_size, 256);
  const auto source = MakeSampleSource(*std::move(prepared), job);
  Sample sample(80);
  source->TrainingSample(1, 0, &sample);
  const auto [inputs, targets] = TextsOf(sample);
  EXPECT_EQ(inputs, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>");
  EXPECT_EQ(targets, std::string(51, '_') + "Yo<|im_end|>_");
  // What follows is padding.
  EXPECT_EQ(sample.length, 64);
  EXPECT_EQ(sample.targets[64], kNoTarget);
  EXPECT_EQ(sample.inputs[64], 0);
  EXPECT_EQ(sample.label, kNoTarget);
}

TEST_F(ChatDatasetTest, LongConversationsAreCutAtTheirEnd) {
  const std::string path =
      Write("a.jsonl", Line("Hi", "Yo") + Line("A long question, longer than the context", "Yo"));
  const v1::JobSpec job = Job(path, /*context=*/53);
  auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 1);
  ASSERT_EQ(prepared->notices.size(), 3);
  EXPECT_THAT(prepared->notices[0], HasSubstr("writes <|im_start|>, <|im_end|> of the template "
                                              "chatml as several tokens"));
  EXPECT_EQ(prepared->notices[1],
            absl::StrCat(path,
                         ": 1 conversation is left out, since none of their tokens counts for "
                         "the loss, the first is ",
                         path, ":2: no token counts before its end is cut off"));
  EXPECT_EQ(prepared->notices[2],
            absl::StrCat(path,
                         ": 1 of 1 conversations are longer than model.context 53, and their "
                         "ends are cut off"));
  Sample sample(53);
  prepared->train_samples.ReadInOrder(0, &sample);
  EXPECT_EQ(sample.length, 53);
  // The last token is only a target.
  EXPECT_EQ(TextsOf(sample).second.substr(51), "Yo");
}

TEST_F(ChatDatasetTest, PackedConversationsHaveTheTargetsThatTheyHaveAlone) {
  std::string lines;
  for (int i = 0; i < 11; ++i) {
    lines += Line(std::string(static_cast<size_t>(3 + i % 4), 'u'),
                  absl::StrCat("answer", std::string(static_cast<size_t>(i * 7 % 20), 'a')));
  }
  v1::JobSpec job = Job(Write("a.jsonl", lines), /*context=*/200);
  const auto alone = Prepare(job);
  ASSERT_TRUE(alone.ok()) << alone.status();
  job.mutable_data()->mutable_chat()->set_packing(true);
  const auto packed = Prepare(job);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(alone->train_sample_count, 11);
  EXPECT_LT(packed->train_sample_count, 7);
  EXPECT_GT(packed->train_sample_count, 3);
  EXPECT_EQ(packed->train_tokens, alone->train_tokens);
  EXPECT_NE(packed->digest, alone->digest);
  EXPECT_THAT(packed->notices, testing::Contains(HasSubstr(absl::StrCat(
                                   "a.jsonl: 11 conversations of the training part packed into ",
                                   packed->train_sample_count, " sequences, "))));

  std::multiset<std::pair<std::string, std::string>> expected, found;
  Sample sample(200);
  for (int64_t i = 0; i < alone->train_sample_count; ++i) {
    alone->train_samples.ReadInOrder(i, &sample);
    EXPECT_TRUE(sample.document_starts.empty());
    expected.insert(TextsOf(sample));
  }
  for (int64_t i = 0; i < packed->train_sample_count; ++i) {
    packed->train_samples.ReadInOrder(i, &sample);
    const auto [inputs, targets] = TextsOf(sample);
    ASSERT_EQ(sample.document_starts.size(), 200);
    size_t begin = 0;
    for (size_t at = 1; at <= inputs.size(); ++at) {
      if (at < inputs.size() && sample.document_starts[at] == static_cast<int32_t>(begin)) continue;
      found.insert({inputs.substr(begin, at - begin), targets.substr(begin, at - begin)});
      begin = at;
    }
    // Padding is a document of its own.
    for (size_t at = inputs.size(); at < 200; ++at) {
      ASSERT_EQ(sample.document_starts[at], sample.length);
      ASSERT_EQ(sample.targets[at], kNoTarget);
    }
  }
  EXPECT_EQ(found, expected);
  // The same data set later.
  Sample again(200);
  const auto second = Prepare(job);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->digest, packed->digest);
  second->train_samples.ReadInOrder(packed->train_sample_count - 1, &again);
  EXPECT_EQ(again.inputs, sample.inputs);
  EXPECT_EQ(again.document_starts, sample.document_starts);
}

// Conversations are parted before they are packed, so that none is on both sides.
TEST_F(ChatDatasetTest, SidesArePackedApart) {
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += Line(absl::StrCat("Q", i), absl::StrCat("A", i));
  v1::JobSpec job = Job(Write("a.jsonl", lines), /*context=*/200);
  job.mutable_data()->mutable_chat()->set_packing(true);
  job.mutable_data()->set_validation_fraction(0.4);
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  // Three conversations of 64 positions share a sequence.
  EXPECT_EQ(prepared->train_sample_count, 2);
  EXPECT_EQ(prepared->validation_sample_count, 2);
  EXPECT_THAT(prepared->notices,
              testing::Contains(HasSubstr("4 conversations of the validation part packed into 2 "
                                          "sequences, 64.0 % full (32.0 % without packing)")));
  Sample sample(200);
  prepared->validation_samples.ReadInOrder(0, &sample);
  EXPECT_THAT(TextsOf(sample).first, testing::StartsWith("<|im_start|>user\nQ6<|im_end|>"));
}

TEST_F(ChatDatasetTest, FormsOfFilesAreFoundByTheirFirstLines) {
  v1::JobSpec job = Job("");
  v1::WeightedData& parts = *job.mutable_data()->add_train_blend();
  parts.set_weight(1);
  parts.add_paths(Write("a.jsonl", "\n" + Line("Hi", "Yo")));
  parts.add_paths(Write("b.jsonl", R"({"instruction": "I", "input": "J", "output": "O"})"));
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 2);
  Sample sample(80);
  prepared->train_samples.ReadInOrder(1, &sample);
  EXPECT_THAT(TextsOf(sample).first, HasSubstr("user\nI\n\nJ<|im_end|>"));
  job.mutable_data()->mutable_chat()->set_format(v1::CHAT_FORMAT_ALPACA);
  EXPECT_THAT(FaultOf(job), HasSubstr("a.jsonl:2: the object has no 'instruction'"));
}

TEST_F(ChatDatasetTest, FaultsNameFileAndLine) {
  EXPECT_THAT(FaultOf(Job(Write("a.jsonl", Line("Hi", "Yo") + Line("Hi", "")))),
              HasSubstr("/a.jsonl:2: message 2 (assistant) has no text; fix the line, or skip such "
                        "lines (data.skip_bad_lines: true)"));
  EXPECT_THAT(FaultOf(Job(Write("b.jsonl", "{\"text\": \"a\"}\n"))),
              HasSubstr("/b.jsonl:1: the object has none of the keys messages"));
  EXPECT_THAT(FaultOf(Job(Write("c.jsonl", "\n \n"))), HasSubstr("/c.jsonl: no conversation"));
  EXPECT_THAT(FaultOf(Job(Write("d.txt", "text"))), HasSubstr("learns from .jsonl files"));
  v1::JobSpec job = Job(Write("e.jsonl", Line("Hi", "") + Line("Hi", "Yo")));
  job.mutable_data()->set_skip_bad_lines(true);
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 1);
  EXPECT_THAT(prepared->notices, testing::Contains(HasSubstr("1 line was skipped: ")));
  EXPECT_THAT(FaultOf(Job(Write("f.jsonl", R"({"messages": [{"role": "user", "content": "u"}]})"))),
              HasSubstr("no conversation has a token that counts for the loss; the first is "));
}

TEST_F(ChatDatasetTest, TemplatesOfTokenizers) {
  v1::JobSpec job = Job(Write("a.jsonl", Line("Hi", "Yo")));
  job.mutable_data()->mutable_chat()->set_template_("auto");
  EXPECT_THAT(FaultOf(job),
              HasSubstr("data.template: auto: the tokenizer 'bytes' comes with no chat "
                        "template; name one with data.template: chatml, "));
  job.mutable_data()->mutable_chat()->set_template_("later");
  EXPECT_THAT(FaultOf(job), HasSubstr("data.template: 'later' is not known"));
}

TEST_F(ChatDatasetTest, OtherModelsAreRefused) {
  v1::JobSpec job = Job(Write("a.jsonl", Line("Hi", "Yo")));
  job.mutable_model()->set_architecture(v1::ARCHITECTURE_BERT);
  EXPECT_THAT(FaultOf(job), HasSubstr("sft needs a model that predicts each token"));
}

TEST_F(ChatDatasetTest, TheDigestCoversAllThatDecidesSamples) {
  const std::string path = Write("a.jsonl", Line("Hi", "Yo") + Line("A", "B"));
  std::set<std::string> digests;
  v1::JobSpec job = Job(path);
  const auto add = [&] { digests.insert(Prepare(job).value().digest); };
  add();
  add();
  EXPECT_EQ(digests.size(), 1);
  job.mutable_data()->mutable_chat()->set_loss_on(v1::LOSS_ON_ALL);
  add();
  job.mutable_data()->mutable_chat()->set_template_("zephyr");
  add();
  job.mutable_data()->set_train(Write("b.jsonl", Line("Hi", "Yo")));
  add();
  EXPECT_EQ(digests.size(), 4);
}

TEST_F(ChatDatasetTest, AFractionIsForValidation) {
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += Line(absl::StrCat("q", i), absl::StrCat("a", i));
  v1::JobSpec job = Job(Write("a.jsonl", lines));
  job.mutable_data()->set_validation_fraction(0.2);
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 8);
  EXPECT_EQ(prepared->validation_sample_count, 2);
  Sample sample(80);
  prepared->validation_samples.ReadInOrder(1, &sample);
  EXPECT_THAT(TextsOf(sample).second, HasSubstr("a9<|im_end|>"));
}

}  // namespace
}  // namespace tercio::data
