#include "data/preference_dataset.h"

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

constexpr int kContext = 80;

class PreferenceDatasetTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(scratch_.path(), "/", name);
    EXPECT_TRUE(WriteFileDurably(path, content).ok());
    return path;
  }

  v1::JobSpec Job(const std::string& lines, v1::AnswerForm form = v1::ANSWER_FORM_PAIR,
                  int context = kContext) {
    v1::JobSpec job;
    job.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
    job.mutable_model()->set_layers(1);
    job.mutable_model()->set_hidden(8);
    job.mutable_model()->set_heads(1);
    job.mutable_model()->set_context(context);
    job.mutable_data()->set_train(Write("a.jsonl", lines));
    job.mutable_data()->set_tokenizer("bytes");
    job.mutable_data()->mutable_chat()->set_template_("chatml");
    job.mutable_data()->mutable_chat()->set_answers(form);
    job.mutable_training()->set_global_batch(4);
    return job;
  }

  absl::StatusOr<PreparedData> Prepare(const v1::JobSpec& job) {
    return PrepareData(job.data(), job.model(), scratch_.path());
  }

  std::string FaultOf(const std::string& lines, v1::AnswerForm form = v1::ANSWER_FORM_PAIR) {
    return std::string(Prepare(Job(lines, form)).status().message());
  }

  // What is predicted.
  static std::string AnswerIn(const Sample& sample) {
    std::string answer;
    for (const int32_t target : sample.targets) {
      if (target != kNoTarget) answer += static_cast<char>(target);
    }
    return answer;
  }

  static std::string TextOf(const Sample& sample) {
    return {sample.inputs.begin(), sample.inputs.begin() + sample.length};
  }

  TempDir scratch_;
};

std::string Pair(const std::string& prompt, const std::string& chosen,
                 const std::string& rejected) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "chosen": ")", chosen, R"(", "rejected": ")",
                      rejected, "\"}\n");
}

std::string Labelled(const std::string& prompt, const std::string& completion, bool label) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "completion": ")", completion,
                      R"(", "label": )", label ? "true" : "false", "}\n");
}

TEST_F(PreferenceDatasetTest, AllFormsOfAPairAreTheSamePair) {
  constexpr char kUser[] = R"({"role": "user", "content": "Hi"})";
  constexpr char kYo[] = R"({"role": "assistant", "content": "Yo"})";
  constexpr char kNo[] = R"({"role": "assistant", "content": "No"})";
  const std::string lines =
      absl::StrCat(Pair("Hi", "Yo", "No"), R"({"prompt": [)", kUser, R"(], "chosen": [)", kYo,
                   R"(], "rejected": [)", kNo, "]}\n", R"({"prompt": [)", kUser,
                   R"(], "chosen": "Yo", "rejected": [)", kNo, "]}\n", R"({"chosen": [)", kUser,
                   ",", kYo, R"(], "rejected": [)", kUser, ",", kNo, "]}\n",
                   // As published with the prompt as a text, too.
                   R"({"prompt": "Hi", "chosen": [)", kUser, ",", kYo, R"(], "rejected": [)", kUser,
                   ",", kNo, "]}\n");
  const auto prepared = Prepare(Job(lines));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_EQ(prepared->train_sample_count, 10);
  Sample sample(kContext);
  for (int64_t i = 0; i < 10; ++i) {
    prepared->train_samples.ReadInOrder(i, &sample);
    EXPECT_EQ(TextOf(sample),
              absl::StrCat("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
                           i % 2 == 0 ? "Yo" : "No", "<|im_end|>"));
    EXPECT_EQ(AnswerIn(sample), i % 2 == 0 ? "Yo<|im_end|>" : "No<|im_end|>");
    EXPECT_EQ(sample.number, i);
  }
}

TEST_F(PreferenceDatasetTest, TurnsOfThePromptDoNotCount) {
  constexpr char kTurns[] =
      R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
      R"({"role": "user", "content": "c"})";
  const std::string line = absl::StrCat(
      R"({"chosen": [)", kTurns, R"(, {"role": "assistant", "content": "d"}], "rejected": [)",
      kTurns, R"(, {"role": "assistant", "content": "e"}]})");
  const auto prepared = Prepare(Job(line, v1::ANSWER_FORM_PAIR, 200));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  Sample sample(200);
  prepared->train_samples.ReadInOrder(1, &sample);
  EXPECT_EQ(AnswerIn(sample), "e<|im_end|>");
}

TEST_F(PreferenceDatasetTest, PairsStayTogetherInEveryOrder) {
  std::string lines;
  for (int i = 0; i < 7; ++i) {
    lines += Pair("Hi", absl::StrCat("good ", i), absl::StrCat("bad ", i));
  }
  const v1::JobSpec job = Job(lines);
  auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto source = MakeSampleSource(*std::move(prepared), job);
  EXPECT_EQ(source->numbered_samples(), 14);
  Sample chosen(kContext);
  Sample rejected(kContext);
  std::set<std::string> seen;
  // Seven steps of two pairs: every pair twice.
  for (int64_t step = 1; step <= 7; ++step) {
    for (int64_t i = 0; i < 4; i += 2) {
      source->TrainingSample(step, i, &chosen);
      source->TrainingSample(step, i + 1, &rejected);
      EXPECT_EQ(AnswerIn(rejected), absl::StrCat("bad ", AnswerIn(chosen).substr(5)));
      EXPECT_EQ(chosen.number % 2, 0);
      EXPECT_EQ(rejected.number, chosen.number + 1);
      seen.insert(AnswerIn(chosen));
      Sample again(kContext);
      source->NumberedSample(rejected.number, &again);
      EXPECT_EQ(again.inputs, rejected.inputs);
      EXPECT_EQ(again.targets, rejected.targets);
    }
  }
  EXPECT_EQ(seen.size(), 7);
}

TEST_F(PreferenceDatasetTest, MismatchedAnswersAreThoseOfTheLineBefore) {
  v1::JobSpec job = Job(Labelled("A", "one", true) + Labelled("B", "two", false) +
                            Labelled("C", "three", true) + Labelled("D", "four", false),
                        v1::ANSWER_FORM_LABELLED);
  job.mutable_data()->set_validation_fraction(0.25);
  auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 3);
  EXPECT_EQ(prepared->validation_sample_count, 1);
  const auto source = MakeSampleSource(*std::move(prepared), job);
  ASSERT_EQ(source->numbered_samples(), 4);
  // The validation part has an answer of its own only.
  const std::pair<const char*, const char*> expected[] = {
      {"A", "three"}, {"B", "one"}, {"C", "two"}, {"D", "four"}};
  Sample sample(kContext);
  for (int64_t i = 0; i < 4; ++i) {
    source->NumberedSample(i, &sample);
    EXPECT_EQ(sample.label, i % 2 == 0 ? 1 : 0);
    source->NumberedSample(4 + i, &sample);
    EXPECT_EQ(sample.number, 4 + i);
    EXPECT_EQ(TextOf(sample), absl::StrCat("<|im_start|>user\n", expected[i].first,
                                           "<|im_end|>\n<|im_start|>assistant\n",
                                           expected[i].second, "<|im_end|>"));
    EXPECT_EQ(AnswerIn(sample), absl::StrCat(expected[i].second, "<|im_end|>"));
  }
}

TEST_F(PreferenceDatasetTest, WhatNoAnswerIsLeftOfIsLeftOut) {
  const std::string lines = Pair("Hi", "Yo", "No") + Pair(std::string(60, 'x'), "Yo", "No") +
                            Pair("Hi", "Yo, and so on and on", "Yo, and so on and off");
  const v1::JobSpec job = Job(lines, v1::ANSWER_FORM_PAIR, 62);
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 2);
  ASSERT_EQ(prepared->notices.size(), 3);
  const std::string& path = job.data().train();
  EXPECT_EQ(prepared->notices[1],
            absl::StrCat(path, ": 2 lines are left out, the first is ", path,
                         ":2: no token of an answer is left before its end is cut off"));
  EXPECT_EQ(prepared->notices[2],
            absl::StrCat(path, ": of 1 of 1 lines an answer is longer than model.context 62, and ",
                         "its end is cut off"));
}

TEST_F(PreferenceDatasetTest, FaultsNameFileAndLine) {
  EXPECT_THAT(FaultOf(Pair("Hi", "Yo", "No") + Pair("Hi", "No", "No")),
              HasSubstr("a.jsonl:2: 'chosen' and 'rejected' are the same answer; fix the line"));
  EXPECT_THAT(FaultOf(Pair("Hi", "", "No")), HasSubstr("a.jsonl:1: 'chosen': message 2"));
  EXPECT_THAT(FaultOf("[]\n"), HasSubstr("a.jsonl:1: the line is no object"));
  EXPECT_THAT(FaultOf(R"({"prompt": 1, "chosen": "a", "rejected": "b"})"),
              HasSubstr("a.jsonl:1: the object has no text under 'prompt'"));
  EXPECT_THAT(FaultOf(Labelled("Hi", "Yo", true)),
              HasSubstr("a.jsonl:1: the object has no 'chosen'"));
  EXPECT_THAT(FaultOf(Pair("Hi", "Yo", "No"), v1::ANSWER_FORM_LABELLED),
              HasSubstr("a.jsonl:1: the object has no 'completion'"));
  EXPECT_THAT(
      FaultOf(R"({"prompt": "a", "completion": "b", "label": 1})", v1::ANSWER_FORM_LABELLED),
      HasSubstr("a.jsonl:1: 'label' is neither true nor false"));
  v1::JobSpec job = Job(Pair("Hi", "No", "No") + Pair("Hi", "Yo", "No"));
  job.mutable_data()->set_skip_bad_lines(true);
  const auto prepared = Prepare(job);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->train_sample_count, 2);
  EXPECT_THAT(prepared->notices.back(), HasSubstr("a.jsonl:1: 'chosen' and 'rejected'"));
  // Other answers are other data.
  v1::JobSpec sft = job;
  sft.mutable_data()->mutable_chat()->clear_answers();
  EXPECT_THAT(std::string(Prepare(sft).status().message()), HasSubstr("a.jsonl"));
}

}  // namespace
}  // namespace tercio::data
