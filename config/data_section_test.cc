// The keys of the data section that depend on the model and the objective: those of bert, t5 and
// chats.
#include "config/data_section.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::ModelSpec Model(v1::Architecture architecture, int labels = 0) {
  v1::ModelSpec model;
  model.set_architecture(architecture);
  model.set_labels(labels);
  return model;
}

absl::StatusOr<v1::DataSpec> Parse(const std::string& text, const v1::ModelSpec& model,
                                   DataUse use = {}) {
  Faults faults("job.yaml");
  v1::DataSpec spec;
  Section root(YAML::Load(text), "", &faults);
  ParseData(root.Child("data"), "/where", model, use, &faults, &spec);
  if (!faults.empty()) return faults.ToStatus();
  return spec;
}

std::string FaultOf(const std::string& data, const v1::ModelSpec& model) {
  return std::string(Parse("data: " + data, model).status().message());
}

TEST(DataSection, MaskedLanguageModel) {
  const auto spec =
      Parse("data: {train: a.txt, tokenizer: vocab.txt}", Model(v1::ARCHITECTURE_BERT));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->masking().probability(), 0.15);
  EXPECT_FALSE(spec->masking().whole_word());
  EXPECT_FALSE(spec->has_special_tokens());
  EXPECT_EQ(spec->tokenizer(), "/where/vocab.txt");
  EXPECT_EQ(spec->label_key(), "");
  const auto other = Parse(
      "data: {train: a, masking: {probability: 0.4, whole_word: true}, "
      "special_tokens: {cls: 101, sep: 102, mask: 103, pad: 0}}",
      Model(v1::ARCHITECTURE_BERT));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->masking().probability(), 0.4);
  EXPECT_TRUE(other->masking().whole_word());
  EXPECT_EQ(other->special_tokens().mask(), 103);
}

TEST(DataSection, Classifier) {
  const auto spec = Parse("data: {train: a.jsonl, tokenizer: v.txt, label_key: y}",
                          Model(v1::ARCHITECTURE_BERT, 2));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->text_key(), "text");
  EXPECT_EQ(spec->text_pair_key(), "text_pair");
  EXPECT_EQ(spec->label_key(), "y");
  EXPECT_FALSE(spec->has_masking());
  EXPECT_THAT(FaultOf("{train: a.jsonl, tokenizer: v.txt, label_key: text}",
                      Model(v1::ARCHITECTURE_BERT, 2)),
              HasSubstr("data.label_key: text_key, text_pair_key and label_key must differ"));
  EXPECT_THAT(
      FaultOf("{train: a.jsonl, tokenizer: v.txt, masking: {}}", Model(v1::ARCHITECTURE_BERT, 2)),
      HasSubstr("data.masking: a classifier (model.labels) does not mask tokens"));
}

TEST(DataSection, YamlReadsBack) {
  for (const v1::ModelSpec& model : {Model(v1::ARCHITECTURE_BERT), Model(v1::ARCHITECTURE_BERT, 3),
                                     Model(v1::ARCHITECTURE_GPT2)}) {
    const bool masked = model.architecture() == v1::ARCHITECTURE_BERT && model.labels() == 0;
    const std::string more =
        masked ? ", masking: {probability: 0.123456789, whole_word: true}" : "";
    const std::string special = model.architecture() == v1::ARCHITECTURE_BERT
                                    ? ", special_tokens: {cls: 1, sep: 2, mask: 3, pad: 0}"
                                    : "";
    const auto spec = Parse(
        "data: {train: a.jsonl, validation: 0.1, test: [b.jsonl, c.jsonl]" + more + special + "}",
        model);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(DataYaml(*spec), model);
    ASSERT_TRUE(again.ok()) << again.status() << DataYaml(*spec);
    EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString()) << DataYaml(*spec);
  }
}

TEST(DataSection, Test) {
  const v1::ModelSpec classifier = Model(v1::ARCHITECTURE_BERT, 2);
  const auto one = Parse("data: {train: a, test: t.tsv, tokenizer: v.txt}", classifier);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->test_path(), "/where/t.tsv");
  EXPECT_EQ(one->test_more_paths_size(), 0);
  const auto parts = Parse("data: {train: a, test: [t.csv, /u.csv]}", Model(v1::ARCHITECTURE_GPT2));
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->test_path(), "/where/t.csv");
  ASSERT_EQ(parts->test_more_paths_size(), 1);
  EXPECT_EQ(parts->test_more_paths(0), "/u.csv");
  EXPECT_EQ(parts->tokenizer(), "");
  EXPECT_THAT(FaultOf("{train: a, test: 0.1}", classifier),
              HasSubstr("data.test: expected a path, or a list of paths (one data set in parts); "
                        "only data.validation may be a fraction"));
  for (const char* bad : {"{}", "[{path: a, weight: 1}]", "[[a]]"}) {
    EXPECT_THAT(FaultOf(absl::StrCat("{train: a, test: ", bad, "}"), classifier),
                HasSubstr("data.test: expected a path, or a list of paths"))
        << bad;
  }
  EXPECT_THAT(FaultOf("{train: a, test: []}", classifier), HasSubstr("data.test: empty"));
  EXPECT_THAT(FaultOf("{train: a, test: ''}", classifier), HasSubstr("data.test: an empty path"));
}

TEST(DataSection, TablesAreTextsOfClassifiersOnly) {
  v1::ModelSpec classifier = Model(v1::ARCHITECTURE_BERT, 2);
  for (const char* table : {"a.tsv", "a.csv"}) {
    const std::string train = absl::StrCat("{train: ", table, "}");
    EXPECT_THAT(FaultOf(train, classifier), HasSubstr("data.tokenizer: missing"));
    const auto causal = Parse("data: " + train, Model(v1::ARCHITECTURE_GPT2));
    ASSERT_TRUE(causal.ok()) << causal.status();
    EXPECT_EQ(causal->tokenizer(), "");
  }
  classifier.set_from("/model");
  const auto spec = Parse("data: {train: a.tsv}", classifier);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tokenizer(), "/model");
}

TEST(DataSection, AJobThatOnlyEvaluatesNeedsNoTrainingData) {
  const DataUse evaluates = {.training_data = TrainingData::kMayBeMissing};
  const v1::ModelSpec model = Model(v1::ARCHITECTURE_GPT2);
  const auto spec = Parse("data: {test: t.txt}", model, evaluates);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train(), "");
  const auto again = Parse(DataYaml(*spec), model, evaluates);
  ASSERT_TRUE(again.ok()) << again.status() << DataYaml(*spec);
  EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString());
  EXPECT_THAT(FaultOf("{test: t.txt}", model), HasSubstr("data.train: missing"));
  EXPECT_THAT(std::string(Parse("data: {tokenizer: v}", model, evaluates).status().message()),
              HasSubstr("data.train: missing"));
}

TEST(DataSection, SpansOfT5) {
  const v1::ModelSpec model = Model(v1::ARCHITECTURE_T5);
  const auto spec = Parse("data: {train: a}", model);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->masking().probability(), 0.15);
  EXPECT_EQ(spec->masking().mean_span(), 3);
  const auto full = Parse(
      "data: {train: a, masking: {probability: 0.2, mean_span: 2.5}, "
      "special_tokens: {pad: 0, eos: 1, first_sentinel: 99, sentinels: 90}}",
      model);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->masking().mean_span(), 2.5);
  EXPECT_EQ(full->special_tokens().eos(), 1);
  EXPECT_EQ(full->special_tokens().first_sentinel(), 99);
  EXPECT_EQ(full->special_tokens().sentinels(), 90);
  const auto again = Parse(DataYaml(*full), model);
  ASSERT_TRUE(again.ok()) << again.status() << DataYaml(*full);
  EXPECT_EQ(full->SerializeAsString(), again->SerializeAsString());
  EXPECT_THAT(FaultOf("{train: a, masking: {whole_word: false, mean_span: 0.5}, "
                      "special_tokens: {pad: 0, eos: 1, first_sentinel: 9}}",
                      model),
              AllOf(HasSubstr("data.masking.whole_word: only bert masks whole words"),
                    HasSubstr("data.masking.mean_span"),
                    HasSubstr("data.special_tokens.sentinels: missing; name all of pad, eos")));
  EXPECT_THAT(FaultOf("{train: a, special_tokens: {cls: 1, pad: 0, eos: 1, first_sentinel: 9, "
                      "sentinels: 3}}",
                      model),
              HasSubstr("data.special_tokens.cls"));
  EXPECT_THAT(FaultOf("{train: a, masking: {mean_span: 2}}", Model(v1::ARCHITECTURE_BERT)),
              HasSubstr("data.masking.mean_span: only t5 masks spans"));
}

constexpr DataUse kSft = {.objective = v1::TRAINING_OBJECTIVE_SFT};

std::string FaultOfChat(const std::string& data, v1::Architecture architecture) {
  return std::string(Parse("data: " + data, Model(architecture), kSft).status().message());
}

TEST(DataSection, Chat) {
  const v1::ModelSpec model = Model(v1::ARCHITECTURE_LLAMA);
  const auto usual = Parse("data: {train: a.jsonl}", model, kSft);
  ASSERT_TRUE(usual.ok()) << usual.status();
  EXPECT_EQ(usual->chat().template_(), "auto");
  EXPECT_EQ(usual->chat().loss_on(), v1::LOSS_ON_ASSISTANT);
  EXPECT_EQ(usual->chat().format(), v1::CHAT_FORMAT_AUTO);
  EXPECT_FALSE(usual->chat().packing());
  const auto full = Parse(
      "data: {train: [{path: a.jsonl, weight: 2}, {path: b.jsonl, weight: 1}], template: chatml, "
      "loss_on: last, format: sharegpt, packing: true, skip_bad_lines: true}",
      model, kSft);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->chat().template_(), "chatml");
  EXPECT_EQ(full->chat().loss_on(), v1::LOSS_ON_LAST);
  EXPECT_EQ(full->chat().format(), v1::CHAT_FORMAT_SHAREGPT);
  EXPECT_TRUE(full->chat().packing());
  const auto again = Parse(DataYaml(*full), model, kSft);
  ASSERT_TRUE(again.ok()) << again.status() << DataYaml(*full);
  EXPECT_EQ(full->SerializeAsString(), again->SerializeAsString()) << DataYaml(*full);
}

TEST(DataSection, FaultsOfChat) {
  EXPECT_THAT(
      FaultOfChat("{train: a.txt, validation: b.csv, test: c.jsonl}", v1::ARCHITECTURE_LLAMA),
      AllOf(HasSubstr("data.train: /where/a.txt: training.objective: sft learns from .jsonl"),
            HasSubstr("data.validation: /where/b.csv: training.objective: sft")));
  EXPECT_THAT(FaultOfChat("{train: a.jsonl, template: chat-ml, loss_on: user, packing: often}",
                          v1::ARCHITECTURE_LLAMA),
              AllOf(HasSubstr("job.yaml:1: data.template: 'chat-ml'"), HasSubstr("data.loss_on"),
                    HasSubstr("data.packing: ")));
  EXPECT_THAT(FaultOfChat("{train: a.jsonl, tokenizer: v}", v1::ARCHITECTURE_BERT),
              HasSubstr("data.train: training.objective: sft needs a decoder"));
  EXPECT_THAT(FaultOfChat("{train: a.jsonl, tokenizer: v}", v1::ARCHITECTURE_T5),
              HasSubstr("t5 predicts no answers"));
  EXPECT_THAT(FaultOf("{train: a.jsonl, template: chatml, loss_on: all, packing: true}",
                      Model(v1::ARCHITECTURE_LLAMA)),
              AllOf(HasSubstr("data.template: only training.objective: sft"),
                    HasSubstr("data.packing: only training.objective: sft"),
                    HasSubstr("data.loss_on: only training.objective: sft")));
}

TEST(DataSection, TheObjectiveOfTheTrainingDecidesAboutChats) {
  const auto parse = [](const std::string& objective) {
    return ParseJobText(
        "model: {layers: 1, hidden: 8, heads: 1, context: 8}\n"
        "data: {train: a.jsonl, template: chatml}\n"
        "training: {steps: 1, global_batch: 1, optimizer: {learning_rate: 1}, objective: " +
            objective + "}\n",
        "job.yaml", "/where", {});
  };
  const auto chat = parse("sft");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->training().objective(), v1::TRAINING_OBJECTIVE_SFT);
  EXPECT_EQ(chat->data().chat().template_(), "chatml");
  const auto again = ParseJobText(EffectiveYaml(*chat), "again", "/", {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(chat->SerializeAsString(), again->SerializeAsString());
  EXPECT_THAT(std::string(parse("pretrain").status().message()),
              HasSubstr("job.yaml:2: data.template: only training.objective: sft"));
  EXPECT_THAT(std::string(parse("stf").status().message()),
              HasSubstr("job.yaml:3: training.objective: 'stf' is not one of pretrain, sft"));
}

TEST(DataSection, KeysOfOtherModels) {
  EXPECT_THAT(
      FaultOf("{train: a, masking: {}, special_tokens: {}, text_pair_key: x, label_key: y}",
              Model(v1::ARCHITECTURE_LLAMA)),
      AllOf(HasSubstr("data.masking: only bert and t5 mask tokens, llama does not"),
            HasSubstr("data.special_tokens: only bert and t5 have special tokens, llama does not"),
            HasSubstr("data.text_pair_key: only a classifier"),
            HasSubstr("data.label_key: only a classifier")));
  EXPECT_THAT(FaultOf("{train: a, label_key: y}", Model(v1::ARCHITECTURE_BERT)),
              HasSubstr("data.label_key: only a classifier"));
}

TEST(DataSection, BadValues) {
  EXPECT_THAT(FaultOf("{train: a.txt}", Model(v1::ARCHITECTURE_BERT)),
              HasSubstr("data.tokenizer: missing; bert needs one with [CLS]"));
  EXPECT_THAT(
      FaultOf("{train: a, masking: {probability: 0, whole: true}}", Model(v1::ARCHITECTURE_BERT)),
      AllOf(HasSubstr("data.masking.probability"), HasSubstr("data.masking.whole")));
  EXPECT_THAT(FaultOf("{train: a, special_tokens: {cls: 1, sep: -2, mask: 3}}",
                      Model(v1::ARCHITECTURE_BERT)),
              AllOf(HasSubstr("data.special_tokens.sep"),
                    HasSubstr("data.special_tokens.pad: missing; name all of")));
}

}  // namespace
}  // namespace tercio::config
