#include "config/job_file.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/architectures/registry.h"
#include "plan/names.h"

namespace tercio::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGood[] = R"(name: small
model:
  layers: 2
  hidden: 32
  heads: 4
  context: 16
data:
  train: corpus.txt
training:
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

absl::StatusOr<v1::JobSpec> Parse(const std::string& text,
                                  const std::vector<std::string>& overrides = {}) {
  return ParseJobText(text, "job.yaml", "/where", overrides);
}

std::string FaultOf(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto spec = Parse(text, overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(JobFile, DefaultsAreThoseThatAreDocumented) {
  const auto spec = Parse(kGood);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().train(), "/where/corpus.txt");
  EXPECT_EQ(spec->data().tokenizer(), "bytes");
  EXPECT_EQ(spec->model().ffn_hidden(), 128);
  EXPECT_TRUE(spec->model().bias());
  EXPECT_EQ(spec->training().optimizer().beta2(), 0.95);
  EXPECT_EQ(spec->training().optimizer().weight_decay(), 0.1);
  EXPECT_EQ(spec->training().clip_grad_norm(), 1.0);
  EXPECT_EQ(spec->training().seed(), 1337u);
  EXPECT_EQ(spec->training().schedule().decay_steps(), 10);
  EXPECT_EQ(spec->checkpoint().every_steps(), 500);
  EXPECT_EQ(spec->checkpoint().keep_last(), 3);
  EXPECT_EQ(spec->checkpoint().peer_copies(), 0);
  EXPECT_EQ(spec->checkpoint().snapshot(), v1::SNAPSHOT_KIND_COPY);
  EXPECT_EQ(spec->checkpoint().timeout_seconds(), 600);
  EXPECT_EQ(spec->checkpoint().path(), "");
  EXPECT_EQ(spec->fault_tolerance().max_restarts(), 3);
  EXPECT_TRUE(spec->parallelism().automatic());
  EXPECT_EQ(spec->resources().ranks(), 1);
}

TEST(JobFile, EffectiveYamlParsesBackToTheSameSpec) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"parallelism={tensor: 2, pipeline: 2, data: 2, schedule: gpipe}"},
           {"data.validation=0.1", "training.optimizer.learning_rate=0.1234567890123",
            "fault_tolerance.elastic_wait=90s", "resources.threads_per_rank=3",
            "checkpoint.peer_copies=2", "checkpoint.timeout=90s",
            "checkpoint.path='/shared/a b, c}'"},
           {"data.validation=other.txt", "training.micro_batch=2", "resources.ranks=4",
            "checkpoint.snapshot=in_place"},
           {"training.lanes=2"},
           {"training.schedule.kind=wsd", "training.label_smoothing=0.1",
            "training.frozen=[embedding.*]",
            "training.optimizer.no_decay=['*.bias', final_norm.*]"},
           {"model.architecture=llama", "model.kv_heads=2", "model.rope_scaling={factor: 8}",
            "parallelism.pipeline=2", "parallelism.virtual_pipeline=2",
            "parallelism.recompute=full"},
           {"data.train=[{path: a.jsonl, weight: 0.7}, {path: [b.bin, c.bin], weight: 1e-3}]",
            "data.validation=[{path: v, weight: 2}]", "data.text_key=body",
            "data.skip_bad_lines=true"},
           {"data.train=[s_0.bin, s_1.bin]", "data.tokenizer=chars"},
           {"training.steps=null", "training.epochs=3", "data.validation=0.1",
            "training.evaluate={every_epochs: 1, keep_best: loss}"},
           {"training.steps=null", "training.epochs=3",
            "training.schedule={kind: linear, decay_steps: 40}"},
           {"model.architecture=bert", "model.labels=[no, yes]", "data.tokenizer=vocab.txt",
            "data.validation=0.1",
            "training.evaluate={every_steps: 2, metrics: [loss, f1], keep_best: f1}"}}) {
    const auto spec = Parse(kGood, overrides);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(EffectiveYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status() << EffectiveYaml(*spec);
    EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString());
  }
}

TEST(JobFile, OverridesWin) {
  const auto spec =
      Parse(kGood, {"training.steps=77", "parallelism.tensor=2", "resources.ranks=4"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().steps(), 77);
  EXPECT_EQ(spec->parallelism().tensor(), 2);
  EXPECT_EQ(spec->parallelism().data(), 0);
  EXPECT_THAT(FaultOf(kGood, {"steps"}), HasSubstr("KEY=VALUE"));
}

TEST(JobFile, AllFaultsTogetherWithTheirPlaces) {
  const std::string text = R"(name: small
model:
  layers: two
  hiden: 32
  heads: 5
  context: 16
data: {tokenizer: chars}
training:
  steps: 0
  global_batch: 8
  optimizer: {learning_rate: 1e-3, betas: [0.9]}
  steps: 4
)";
  EXPECT_THAT(FaultOf(text),
              AllOf(HasSubstr("job.yaml:3: model.layers: expected a whole number"),
                    HasSubstr("job.yaml:4: model.hiden: unknown key; did you mean 'hidden'?"),
                    HasSubstr("model.hidden: missing"), HasSubstr("data.train: missing"),
                    HasSubstr("training.steps"), HasSubstr("given twice"),
                    HasSubstr("training.optimizer.betas")));
}

std::vector<std::string> Classifier(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"model.architecture=bert", "model.labels=[no, yes]",
                                        "data.tokenizer=vocab.txt", "data.validation=dev.jsonl"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

TEST(JobFile, LanesAreThoseOfTheBatchOrChosen) {
  const auto lanes = [](const std::vector<std::string>& overrides) {
    const auto spec = Parse(kGood, overrides);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->training().lanes() : 0;
  };
  EXPECT_EQ(lanes({}), 8);
  EXPECT_EQ(lanes({"training.global_batch=12"}), 4);
  EXPECT_EQ(lanes({"training.global_batch=64"}), 8);
  EXPECT_EQ(lanes({"training.global_batch=64", "training.lanes=32"}), 32);
  EXPECT_EQ(lanes({"training.global_batch=64", "training.lanes=1"}), 1);
  EXPECT_EQ(lanes({"training.global_batch=8192", "training.lanes=4096"}), 4096);
  EXPECT_THAT(FaultOf(kGood, {"training.global_batch=24", "training.lanes=16"}),
              HasSubstr("training.lanes: 16 is not a power of two that divides global_batch 24"));
  EXPECT_THAT(FaultOf(kGood, {"training.global_batch=24", "training.lanes=3"}),
              HasSubstr("training.lanes: 3 is not a power of two"));
  EXPECT_THAT(FaultOf(kGood, {"training.global_batch=8192", "training.lanes=8192"}),
              HasSubstr("training.lanes"));
  // Those that nobody has chosen follow a change of the batch.
  const auto spec = Parse(kGood);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto changed = ChangeJob(*spec, {"training.global_batch=12"});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->training().lanes(), 4);
}

TEST(JobFile, ALengthIsGivenByStepsOrEpochs) {
  const auto spec = Parse(kGood, {"training.steps=null", "training.epochs=3"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().epochs(), 3);
  // Both follow from the data.
  EXPECT_EQ(spec->training().steps(), 0);
  EXPECT_EQ(spec->training().schedule().decay_steps(), 0);
  EXPECT_THAT(EffectiveYaml(*spec), AllOf(HasSubstr("epochs: 3"), Not(HasSubstr("\n  steps")),
                                          Not(HasSubstr("decay_steps"))));
  EXPECT_THAT(FaultOf(kGood, {"training.epochs=3"}),
              HasSubstr("training.epochs: conflicts with training.steps"));
  EXPECT_THAT(FaultOf(kGood, {"training.steps=null"}),
              HasSubstr("training.steps: missing; a job needs it, or training.epochs"));
  EXPECT_THAT(FaultOf(kGood, {"training.steps=null", "training.epochs=0"}),
              HasSubstr("training.epochs: expected a whole number of at least 1"));
  EXPECT_THAT(FaultOf(kGood, {"training.steps=0"}),
              HasSubstr("training.steps: 0 steps only evaluate data.test"));
  EXPECT_THAT(FaultOf(kGood, {"training.steps=null", "training.epochs=3",
                              "training.schedule={decay_steps: 0}"}),
              HasSubstr("training.schedule.decay_steps: expected a whole number of at least 1"));
  EXPECT_THAT(
      FaultOf(kGood, {"training.steps=null", "training.epochs=2", "data.validation=0.1",
                      "data.train=[{path: a.txt, weight: 1}, {path: b.txt, weight: 1}]",
                      "training.evaluate={every_epochs: 1}"}),
      AllOf(HasSubstr("training.epochs: data.train is a blend of 2 weighted data sets, which has "
                      "no epochs; give training.steps instead"),
            HasSubstr("training.evaluate.every_epochs: data.train is a blend of 2")));
  EXPECT_TRUE(
      Parse(kGood, {"training.steps=null", "training.epochs=2", "data.train=[a.txt, b.txt]"}).ok());
}

TEST(JobFile, MetricsOfTheModelAreReported) {
  EXPECT_TRUE(Parse(kGood)->training().evaluate().metrics().empty());
  const auto loss = Parse(kGood, {"data.validation=0.1"});
  EXPECT_EQ(loss->training().evaluate().metrics_size(), 1);
  EXPECT_EQ(loss->training().evaluate().keep_best(), v1::QUALITY_METRIC_UNSPECIFIED);
  const auto all = Parse(kGood, Classifier({}));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->training().evaluate().metrics_size(), 5);
  const auto some =
      Parse(kGood, Classifier({"training.evaluate={metrics: [recall], keep_best: recall}"}));
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->training().evaluate().metrics_size(), 1);
  EXPECT_EQ(some->training().evaluate().keep_best(), v1::QUALITY_METRIC_RECALL);
  // The loss is always reported.
  EXPECT_TRUE(
      Parse(kGood, Classifier({"training.evaluate={metrics: [f1], keep_best: loss}"})).ok());
}

TEST(JobFile, MetricsThatCannotBeAreFaults) {
  const auto fault = [](const std::string& evaluate, std::vector<std::string> overrides) {
    overrides.push_back("training.evaluate=" + evaluate);
    return FaultOf(kGood, overrides);
  };
  EXPECT_THAT(fault("{metrics: [loss]}", {}),
              HasSubstr("training.evaluate.metrics: there is no data.validation"));
  EXPECT_THAT(fault("{keep_best: loss}", {}),
              HasSubstr("training.evaluate.keep_best: there is no data.validation"));
  EXPECT_THAT(fault("{metrics: [accuracy], keep_best: f1}", {"data.validation=0.1"}),
              AllOf(HasSubstr("training.evaluate.metrics: accuracy is a classifier's"),
                    HasSubstr("training.evaluate.keep_best: f1 is a classifier's")));
  EXPECT_THAT(fault("{metrics: [recall, loss], keep_best: f1}", Classifier({})),
              HasSubstr("keep_best: f1 is not among training.evaluate.metrics; add it"));
  EXPECT_THAT(fault("{metrics: [loss, loss, bleu], keep_best: bleu}", Classifier({})),
              AllOf(HasSubstr("loss is given twice"), HasSubstr("metrics: 'bleu' is not one of "),
                    HasSubstr("keep_best: 'bleu' is not one of loss, accuracy, precision")));
  for (const char* list : {"{metrics: []}", "{metrics: f1}"}) {
    EXPECT_THAT(fault(list, Classifier({})), HasSubstr("metrics: expected a list of loss, "));
  }
  EXPECT_THAT(fault("{metrics: [f1]}", Classifier({"model.labels=300"})),
              HasSubstr("f1 of more than 256 classes is not supported by this version"));
  EXPECT_EQ(Parse(kGood, Classifier({"model.labels=300"}))->training().evaluate().metrics_size(),
            1);
}

// Whoever lists jobs has their names on the terminal.
TEST(JobFile, ANameHasNoControlCharacters) {
  for (const char* name : {"\"a\\e[2J\"", "\"a\\nb\"", "\"\\u009b2J\"", "\"\\u202egpj\""}) {
    EXPECT_THAT(FaultOf(absl::StrCat("name: ", name, "\n")),
                HasSubstr("job.yaml:1: name: has control characters"))
        << name;
  }
  EXPECT_THAT(FaultOf("name: gr\xc3\xb6\xc3\x9f"
                      "er\n"),
              Not(HasSubstr("control characters")));
}

TEST(JobFile, ANameIsAName) {
  EXPECT_THAT(FaultOf("name: ''\n"), HasSubstr("job.yaml:1: name: empty"));
  EXPECT_THAT(FaultOf(absl::StrCat("name: ", std::string(257, 'n'), "\n")),
              HasSubstr("job.yaml:1: name: has 257 bytes; expected at most 256"));
}

// What is wrong with --set has its place there, not in a line of the file, which is right, or in
// its own first.
TEST(JobFile, FaultsOfChangesNameTheChange) {
  const std::string fault = FaultOf(
      kGood, {"training.steps=ten", "data.train=[]", "steps", "training.optimizer={eps: -1}",
              "training.stps=3", "model.layers=[1", "checkpoint.keep_last=0"});
  for (const char* line :
       {"--set training.steps=ten: training.steps: expected a whole number",
        "--set data.train=[]: data.train: a list of 0 data sets",
        "--set steps: steps: expected KEY=VALUE",
        "--set training.optimizer={eps: -1}: training.optimizer.eps: expected a number",
        "--set training.optimizer={eps: -1}: training.optimizer.learning_rate: missing",
        "--set training.stps=3: training.stps: unknown key; did you mean 'steps'?",
        "--set model.layers=[1: model.layers: not YAML: ",
        "--set checkpoint.keep_last=0: checkpoint.keep_last: expected a whole number"}) {
    EXPECT_THAT(fault, HasSubstr(line));
  }
  EXPECT_THAT(fault, Not(HasSubstr("job.yaml")));
  // What is beside it is still the file's.
  EXPECT_THAT(FaultOf("training: {stepss: 1}\n", {"training.steps=1"}),
              HasSubstr("job.yaml:1: training.stepss: unknown key"));
}

TEST(JobFile, WhatIsMissingHasTheLineWhereItBelongs) {
  EXPECT_THAT(FaultOf("name: a\nmodel: {layers: 1}\ntraining:\n"),
              AllOf(HasSubstr("job.yaml:2: model.hidden: missing"),
                    HasSubstr("job.yaml:3: training.steps: missing"),
                    HasSubstr("job.yaml:3: training.optimizer.learning_rate: missing"),
                    HasSubstr("job.yaml:1: data.train: missing")));
}

TEST(JobFile, NothingOfAFileIsLeftOut) {
  EXPECT_THAT(FaultOf(absl::StrCat(kGood, "---\nname: another\n")),
              HasSubstr("job.yaml:13: a second document"));
  EXPECT_THAT(FaultOf(absl::StrCat(kGood, "---\nname: [\n")), HasSubstr("not YAML"));
  EXPECT_THAT(FaultOf(", , x\n"), HasSubstr("expected a job"));
  EXPECT_TRUE(Parse(absl::StrCat("---\n", kGood, "...\n")).ok());
  std::string windows = kGood;
  for (size_t at = 0; (at = windows.find('\n', at)) != std::string::npos; at += 2) {
    windows.insert(at, "\r");
  }
  const auto spec = Parse(absl::StrCat("\xef\xbb\xbf", windows));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->SerializeAsString(), Parse(kGood)->SerializeAsString());
}

TEST(JobFile, NumbersThatAreNone) {
  for (const char* seconds : {"nan", "inf", ".nan", "-1s", "1e400s", "s", "5 parsecs"}) {
    EXPECT_THAT(FaultOf(kGood, {absl::StrCat("fault_tolerance.elastic_wait=", seconds)}),
                HasSubstr("is not a duration"))
        << seconds;
  }
  EXPECT_THAT(FaultOf(kGood, {"fault_tolerance.hang_timeout=0s"}),
              HasSubstr("expected more than 0; auto learns it"));
  for (const char* steps :
       {".nan", ".inf", "1e300", "-.inf", "0.5", "99999999999999999999", "0x"}) {
    EXPECT_THAT(FaultOf(kGood, {absl::StrCat("training.steps=", steps)}),
                HasSubstr("training.steps: expected a whole number"))
        << steps;
  }
  EXPECT_THAT(FaultOf(kGood, {"training.steps=1e13"}), HasSubstr("and at most 1099511627776"));
  EXPECT_EQ(Parse(kGood, {"training.steps=1e3"})->training().steps(), 1000);
}

// As PyTorch has them; a double holds 53 bits.
TEST(JobFile, SeedsOfSixtyThreeBits) {
  const auto spec = Parse(kGood, {"training.seed=9223372036854775807"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().seed(), 9223372036854775807u);
  EXPECT_EQ(Parse(EffectiveYaml(*spec))->training().seed(), 9223372036854775807u);
  EXPECT_THAT(FaultOf(kGood, {"training.seed=9223372036854775808"}),
              HasSubstr("at most 9223372036854775807"));
}

TEST(JobFile, SizesHaveBounds) {
  EXPECT_THAT(FaultOf(kGood, {"parallelism={tensor: 65536, pipeline: 65536}"}),
              HasSubstr("parallelism: tensor 65536 x pipeline 65536 x data 1: a job has at most "
                        "1048576 ranks"));
  EXPECT_THAT(FaultOf(kGood, {"model.layers=1000000"}),
              HasSubstr("model.layers: expected a whole number of at least 1 and at most 4096"));
  EXPECT_THAT(FaultOf(kGood, {"model.context=16777216", "training.global_batch=16777216",
                              "model.hidden=1048576", "model.heads=4096"}),
              HasSubstr("job.yaml:2: model: too large: the activations"));
}

// Where nothing else says it: data may bring a tokenizer along.
TEST(JobFile, APresetKnowsItsVocabulary) {
  std::string text = kGood;
  const std::string sizes = "  layers: 2\n  hidden: 32\n  heads: 4\n  context: 16\n";
  text.replace(text.find(sizes), sizes.size(), "  preset: gpt2-124m\n");
  const auto vocabulary = [&](const std::vector<std::string>& changes) {
    const auto spec = Parse(text, changes);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->model().vocab_size() : -1;
  };
  EXPECT_EQ(vocabulary({"data.train=tokens"}), 50257);
  EXPECT_EQ(vocabulary({"data.train=tokens", "model.vocab_size=50304"}), 50304);
  EXPECT_EQ(vocabulary({}), 0);
  EXPECT_EQ(vocabulary({"data.train=tokens", "data.tokenizer=gpt2/tokenizer.json"}), 0);
}

TEST(JobFile, PatternsMustNameATensor) {
  EXPECT_THAT(FaultOf(kGood, {"training.frozen=[layer.*]"}),
              HasSubstr("training.frozen: no tensor of the model is named 'layer.*'"));
  EXPECT_THAT(FaultOf(kGood, {"training.frozen=[embedding.*, layers.*, final*]"}),
              HasSubstr("training.frozen: names every tensor of the model"));
}

TEST(JobFile, BertHasKeysOfItsOwn) {
  EXPECT_THAT(FaultOf(kGood, {"model.norm=pre"}),
              HasSubstr("model.norm: only bert supports this key"));
  EXPECT_THAT(FaultOf(kGood, {"model.architecture=bert", "model.labels=1"}),
              HasSubstr("model.labels: a classifier needs at least two classes"));
  EXPECT_THAT(FaultOf(kGood, {"model.architecture=bert", "model.labels=[a, b]",
                              "model.sentence_order=true"}),
              HasSubstr("model.sentence_order: conflicts with labels: it is for pretraining"));
  EXPECT_THAT(FaultOf(kGood, {"model.architecture=bert", "model.bias=false"}),
              HasSubstr("model.bias: bert without biases is not supported by this version"));
}

// Each architecture has the keys that its section lists, and no other.
TEST(JobFile, KeysBelongToArchitectures) {
  const std::pair<const char*, const char*> keys[] = {{"norm", "pre"},
                                                      {"token_types", "3"},
                                                      {"sentence_order", "true"},
                                                      {"labels", "3"},
                                                      {"activation", "gelu"},
                                                      {"head_dim", "4"},
                                                      {"rotary_dim", "4"},
                                                      {"sliding_window", "8"},
                                                      {"attention_softcap", "50"},
                                                      {"logit_softcap", "30"},
                                                      {"query_scale", "9"},
                                                      {"sequential_residual", "true"},
                                                      {"decoder_layers", "2"},
                                                      {"gated_mlp", "true"},
                                                      {"relative_buckets", "8"},
                                                      {"relative_distance", "16"},
                                                      {"decoder_context", "5"}};
  int accepted = 0;
  for (const model::ArchitectureFacts* facts : model::AllArchitectures()) {
    if (!plan::IsNamed(facts->architecture)) continue;
    const std::string name = plan::TextOf(facts->architecture);
    for (const auto& [key, value] : keys) {
      const std::vector<std::string> changes = {
          "model.architecture=" + name, absl::StrCat("model.", key, "=", value),
          "data.train=tokens", "data.special_tokens={cls: 1, sep: 2, mask: 3, pad: 0}"};
      if (!facts->Has(key)) {
        EXPECT_THAT(FaultOf(kGood, changes),
                    AllOf(HasSubstr(absl::StrCat("model.", key, ": ")), HasSubstr("this key")))
            << name;
        continue;
      }
      const auto spec = Parse(kGood, changes);
      const std::string fault(spec.status().message());
      EXPECT_THAT(fault, Not(HasSubstr(absl::StrCat("model.", key)))) << name;
      ++accepted;
    }
  }
  EXPECT_GE(accepted, 4);  // bert's
  EXPECT_THAT(FaultOf(kGood, {"model.rope_theta=500"}), HasSubstr("rotary positions"));
}

// Every preset is a job, which is written out completely.
TEST(JobFile, PresetsAreWrittenAndReadBack) {
  std::string text = kGood;
  const std::string sizes = "  layers: 2\n  hidden: 32\n  heads: 4\n  context: 16\n";
  text.replace(text.find(sizes), sizes.size(), "  preset: gpt2-124m\n");
  for (const model::ArchitectureFacts* facts : model::AllArchitectures()) {
    if (!plan::IsNamed(facts->architecture)) continue;
    for (const model::Preset& preset : facts->presets) {
      const auto spec = Parse(
          text, {absl::StrCat("model.preset=", preset.name), "data.train=tokens",
                 facts->Has("labels") ? "data.special_tokens={cls: 1, sep: 2, mask: 3, pad: 0}"
                                      : "data.tokenizer=null"});
      ASSERT_TRUE(spec.ok()) << preset.name << spec.status();
      const auto again = Parse(EffectiveYaml(*spec));
      ASSERT_TRUE(again.ok()) << preset.name << again.status();
      EXPECT_EQ(spec->model().DebugString(), again->model().DebugString()) << preset.name;
    }
  }
}

TEST(JobFile, FurtherKeysChangeAPreset) {
  const auto with = [](const std::string& preset, const std::vector<std::string>& changes) {
    std::string text = kGood;
    const std::string sizes = "  layers: 2\n  hidden: 32\n  heads: 4\n  context: 16\n";
    text.replace(text.find(sizes), sizes.size(), "  preset: " + preset + "\n");
    const auto spec = Parse(text, changes);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const auto again = spec.ok() ? Parse(EffectiveYaml(*spec)) : spec;
    return again.ok() ? again->model() : v1::ModelSpec();
  };
  EXPECT_EQ(with("mistral-7b", {}).sliding_window(), 4096);
  EXPECT_EQ(with("mistral-7b", {"model.sliding_window=0"}).sliding_window(), 0);
  EXPECT_EQ(with("qwen3-0.6b", {"model.head_dim=64"}).head_dim(), 64);
  EXPECT_EQ(with("phi-2", {"model.rotary_dim=16"}).rotary_dim(), 16);
  EXPECT_EQ(with("gemma2-2b", {"model.attention_softcap=20"}).attention_softcap(), 20);
  EXPECT_EQ(with("gemma2-2b", {"model.query_scale=144"}).query_scale(), 144);
  EXPECT_EQ(with("opt-125m", {"model.activation=gelu"}).activation(), v1::ACTIVATION_GELU);
  // The architecture's own stays unset.
  EXPECT_EQ(with("opt-125m", {"model.activation=relu"}).activation(), v1::ACTIVATION_UNSPECIFIED);
  EXPECT_EQ(with("gpt-neox-20b", {}).activation(), v1::ACTIVATION_GELU_TANH);
  EXPECT_TRUE(with("pythia-160m", {"model.sequential_residual=true"}).sequential_residual());
  // Heads of keys follow those of queries where the preset has as many of both.
  EXPECT_EQ(with("gpt2-124m", {"model.heads=4"}).kv_heads(), 4);
  EXPECT_EQ(with("gpt2-124m", {"model.heads=16"}).kv_heads(), 16);
  EXPECT_EQ(with("gpt2-124m", {}).kv_heads(), 12);
  EXPECT_EQ(with("llama2-7b", {"model.heads=64", "model.kv_heads=16"}).kv_heads(), 16);
  EXPECT_EQ(with("llama2-7b", {"model.kv_heads=8"}).kv_heads(), 8);
  EXPECT_EQ(with("llama3-8b", {"model.heads=64"}).kv_heads(), 8);
}

TEST(JobFile, FurtherSizesMustFit) {
  const auto fault = [](const char* architecture, const std::string& change) {
    return FaultOf(kGood, {absl::StrCat("model.architecture=", architecture), change});
  };
  EXPECT_THAT(fault("gptj", "model.rotary_dim=5"),
              HasSubstr("model.rotary_dim: 5, expected an even number up to 8"));
  EXPECT_THAT(fault("gptj", "model.rotary_dim=10"), HasSubstr("model.rotary_dim: 10, expected"));
  EXPECT_THAT(fault("gptj", "model.kv_heads=2"), HasSubstr("model.kv_heads: must equal heads"));
  EXPECT_THAT(fault("qwen3", "model.head_dim=7"),
              HasSubstr("model.head_dim: must be even for rotary positions"));
  EXPECT_THAT(fault("gemma2", "model.tied_head=false"),
              HasSubstr("gemma2 with an untied head is not supported"));
  EXPECT_THAT(fault("mistral", "model.bias=true"), HasSubstr("biases in mistral"));
  EXPECT_THAT(fault("phi", "model.bias=false"), HasSubstr("phi without biases"));
  EXPECT_THAT(fault("opt", "model.activation=silu"),
              HasSubstr("model.activation: silu in opt is not supported by this version"));
}

TEST(JobFile, WhatLaterVersionsBringIsRefusedByName) {
  for (const char* change : {"parallelism.context_parallel=2"}) {
    EXPECT_THAT(FaultOf(kGood, {change}), HasSubstr("is not supported by this version")) << change;
  }
}

TEST(JobFile, DevicesAndWhatFollowsFromThem) {
  const auto cuda = Parse(kGood, {"resources.device=cuda", "training.precision=auto"});
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  EXPECT_EQ(cuda->resources().device(), v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(cuda->training().precision(), v1::PRECISION_BF16);
  EXPECT_EQ(cuda->training().reproducibility(), v1::REPRODUCIBILITY_LAYOUT);
  auto either = Parse(
      kGood, {"resources.device=auto", "training.precision=auto", "training.reproducibility=exact",
              "resources.collectives=host", "training.tf32=true"});
  ASSERT_TRUE(either.ok()) << either.status();
  EXPECT_EQ(either->resources().device(), v1::DEVICE_KIND_AUTO);
  const auto again = Parse(EffectiveYaml(*either));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), either->SerializeAsString());
  v1::JobSpec on_cpu = *either;
  ResolveDevice(&on_cpu, AutoDevice::kCpu);
  EXPECT_EQ(on_cpu.resources().device(), v1::DEVICE_KIND_CPU);
  EXPECT_EQ(on_cpu.training().precision(), v1::PRECISION_FP32);
  ResolveDevice(&*either, AutoDevice::kCuda);
  EXPECT_EQ(either->resources().device(), v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(either->training().precision(), v1::PRECISION_BF16);
  EXPECT_THAT(FaultOf(kGood, {"resources.collectives=nccl"}), HasSubstr("nccl needs device: cuda"));
  EXPECT_THAT(FaultOf(kGood, {"resources.device=cuda", "resources.collectives=nccl",
                              "training.reproducibility=exact"}),
              HasSubstr("training.reproducibility: exact needs host"));
  EXPECT_THAT(FaultOf(kGood, {"training.tf32=true"}),
              HasSubstr("training.tf32 needs device: cuda"));
}

TEST(JobFile, Fp8NeedsGpusAndBf16) {
  const auto spec =
      Parse(kGood, {"training.fp8=true", "resources.device=cuda", "training.precision=auto"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->training().fp8());
  EXPECT_EQ(spec->training().precision(), v1::PRECISION_BF16);
  const auto again = Parse(EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), spec->SerializeAsString());
  const auto without = ChangeJob(*spec, {"training.fp8=false"});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->training().fp8());
  EXPECT_FALSE(Parse(kGood)->training().fp8());
  for (const char* device : {"cpu", "auto"}) {
    EXPECT_THAT(FaultOf(kGood, {"training.fp8=true", "training.precision=bf16",
                                absl::StrCat("resources.device=", device)}),
                HasSubstr("training.fp8 needs device: cuda"));
  }
  for (const char* precision : {"fp32", "fp16"}) {
    EXPECT_THAT(FaultOf(kGood, {"training.fp8=true", "resources.device=cuda",
                                absl::StrCat("training.precision=", precision)}),
                HasSubstr("training.fp8 needs training.precision: bf16"));
  }
  EXPECT_THAT(FaultOf(kGood, {"training.fp8=yes please"}), HasSubstr("training.fp8"));
}

TEST(JobFile, PrecisionAndWhatToDoAboutBadNumbers) {
  const auto plain = Parse(kGood, {"training.precision=auto"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->training().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(plain->fault_tolerance().on_nan(), v1::ON_NAN_STOP);
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const auto spec = Parse(
        kGood, {absl::StrCat("training.precision=", precision), "fault_tolerance.on_nan=skip"});
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(EffectiveYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(plan::TextOf(again->training().precision()), precision);
    EXPECT_EQ(again->fault_tolerance().on_nan(), v1::ON_NAN_SKIP);
    const auto resumed = ChangeJob(*spec, {"training.precision=bf16"});
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_EQ(resumed->training().precision(), v1::PRECISION_BF16);
  }
  EXPECT_THAT(FaultOf(kGood, {"training.precision=fp8"}), HasSubstr("training.precision"));
  EXPECT_THAT(FaultOf(kGood, {"fault_tolerance.on_nan=retry"}), HasSubstr("on_nan"));
}

TEST(JobFile, GuardsAgainstSilentFaults) {
  const auto plain = Parse(kGood);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->fault_tolerance().on_spike(), v1::ON_SPIKE_REPORT);
  EXPECT_EQ(plain->fault_tolerance().spike_threshold(), 10);
  EXPECT_EQ(plain->fault_tolerance().check_replicas_every(), 100);
  for (const char* policy : {"\"off\"", "report", "skip", "rollback"}) {
    const auto spec = Parse(
        kGood, {absl::StrCat("fault_tolerance.on_spike=", policy),
                "fault_tolerance.spike_threshold=7.5", "fault_tolerance.check_replicas_every=0"});
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(EffectiveYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->fault_tolerance().SerializeAsString(),
              spec->fault_tolerance().SerializeAsString());
  }
  EXPECT_THAT(FaultOf(kGood, {"fault_tolerance.on_spike=restart"}), HasSubstr("on_spike"));
  EXPECT_THAT(FaultOf(kGood, {"fault_tolerance.spike_threshold=1"}), HasSubstr("spike_threshold"));
  EXPECT_THAT(FaultOf(kGood, {"fault_tolerance.check_replicas_every=-1"}),
              HasSubstr("check_replicas_every"));
  // A job that an older version has submitted.
  v1::JobSpec old = *plain;
  old.mutable_fault_tolerance()->clear_on_spike();
  old.mutable_fault_tolerance()->clear_spike_threshold();
  const auto resumed = ChangeJob(old, {"training.steps=77"});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->fault_tolerance().on_spike(), v1::ON_SPIKE_OFF);
}

TEST(JobFile, TokenizersArePathsOfTheJobFile) {
  const auto spec = Parse(kGood, {"data.tokenizer=gpt2/tokenizer.json"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().tokenizer(), "/where/gpt2/tokenizer.json");
  const auto again = Parse(EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data().tokenizer(), spec->data().tokenizer());
}

TEST(JobFile, EventsOfTensorBoardGoToADirectoryBesideTheJobFile) {
  EXPECT_EQ(Parse(kGood)->tensorboard(), "");
  const auto spec = Parse(kGood, {"tensorboard=runs/../events"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tensorboard(), "/where/events");
  const auto again = Parse(EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->tensorboard(), spec->tensorboard());
  const auto empty = Parse(kGood, {"tensorboard=''"});
  EXPECT_THAT(std::string(empty.status().message()),
              HasSubstr("tensorboard: expected the directory"));
}

TEST(JobFile, ACheckpointPathIsRelativeToTheJobFile) {
  const auto spec = Parse(kGood, {"checkpoint.path=runs/../kept"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->checkpoint().path(), "/where/kept");
  EXPECT_THAT(FaultOf(kGood, {"checkpoint.path=s3://bucket/runs"}),
              HasSubstr("'s3://bucket/runs', which is not a directory, is not supported by this "
                        "version"));
  EXPECT_THAT(FaultOf(kGood, {"checkpoint.path=''"}), HasSubstr("expected the directory"));
}

TEST(JobFile, SnapshotsInPlaceAreNotForCopiesInMemory) {
  const auto spec = Parse(kGood, {"checkpoint.snapshot=in_place"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->checkpoint().snapshot(), v1::SNAPSHOT_KIND_IN_PLACE);
  EXPECT_THAT(FaultOf(kGood, {"checkpoint={snapshot: in_place, peer_copies: 1}"}),
              HasSubstr("in_place cannot be combined with peer_copies"));
}

TEST(JobFile, ASaveHasATimeAboveZero) {
  const auto spec = Parse(kGood, {"checkpoint.timeout=2m"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->checkpoint().timeout_seconds(), 120);
  EXPECT_THAT(FaultOf(kGood, {"checkpoint.timeout=0s"}), HasSubstr("checkpoint.timeout"));
  v1::JobSpec old = *spec;
  old.mutable_checkpoint()->clear_timeout_seconds();
  EXPECT_THAT(EffectiveYaml(old), HasSubstr("timeout: 600.0s"));
}

TEST(JobFile, DataSetsOfManyKinds) {
  const auto spec = Parse(kGood, {"data.train=[{path: a.jsonl, weight: 0.7}, "
                                  "{path: ['/b/x_*.bin', c.bin], weight: 3}]"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().train(), "");
  ASSERT_EQ(spec->data().train_blend_size(), 2);
  EXPECT_EQ(spec->data().train_blend(0).paths(0), "/where/a.jsonl");
  EXPECT_EQ(spec->data().train_blend(0).weight(), 0.7);
  EXPECT_EQ(spec->data().train_blend(1).paths(0), "/b/x_*.bin");
  EXPECT_EQ(spec->data().train_blend(1).paths(1), "/where/c.bin");
  EXPECT_EQ(spec->data().tokenizer(), "bytes");
  EXPECT_EQ(spec->data().text_key(), "text");
  EXPECT_FALSE(spec->data().skip_bad_lines());
  const auto parts = Parse(kGood, {"data.train=[s_0.bin, s_1.bin]"});
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->data().train_blend_size(), 1);
  EXPECT_EQ(parts->data().train_blend(0).paths_size(), 2);
  EXPECT_EQ(parts->data().tokenizer(), "");
}

TEST(JobFile, BadDataSets) {
  std::string text = kGood;
  const std::string line = "  train: corpus.txt\n";
  text.replace(text.find(line), line.size(),
               "  train:\n    - {path: a.txt, weight: 0}\n    - {path: b.txt}\n"
               "    - {weight: 2}\n    - {path: c.txt, weight: 1, wight: 2}\n    - d.txt\n"
               "    - {path: [], weight: .inf}\n");
  EXPECT_THAT(
      FaultOf(text),
      AllOf(HasSubstr("job.yaml:9: data.train[0].weight: 0 is not a positive number"),
            HasSubstr("job.yaml:10: data.train[1].weight: missing"),
            HasSubstr("job.yaml:11: data.train[2].path: missing"),
            HasSubstr("job.yaml:12: data.train[3].wight: unknown key; did you mean 'weight'?"),
            HasSubstr("job.yaml:13: data.train[4]: expected {path, weight}"),
            HasSubstr("data.train[5].path: empty; name at least one file"),
            HasSubstr("data.train[5].weight: .inf is not a positive number")));
  EXPECT_THAT(FaultOf(kGood, {"data.train=[]"}), HasSubstr("data.train: a list of 0 data sets"));
  EXPECT_THAT(FaultOf(kGood, {"data.train={path: a, weight: 1}"}),
              HasSubstr("data.train: expected a path, a list of paths"));
  EXPECT_THAT(FaultOf(kGood, {"data.skip_bad_lines=maybe"}), HasSubstr("data.skip_bad_lines"));
  EXPECT_THAT(FaultOf(kGood, {"data.text_key=''"}), HasSubstr("data.text_key: an empty key"));
}

constexpr char kFrom[] = R"(name: small
model: {from: tests/huggingface/fixtures/gpt2}
data:
  train: corpus.txt
training:
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

absl::StatusOr<v1::JobSpec> ParseFrom(const std::vector<std::string>& overrides) {
  return ParseJobText(kFrom, "job.yaml", std::filesystem::current_path().string(), overrides);
}

std::string FaultOfFrom(const std::vector<std::string>& overrides) {
  const auto spec = ParseFrom(overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(JobFile, AModelFromADirectoryHasItsSizes) {
  const auto spec = ParseFrom({"model.context=8", "model.dropout=0.1", "model.layers=2"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().architecture(), v1::ARCHITECTURE_GPT2);
  EXPECT_EQ(spec->model().hidden(), 32);
  EXPECT_EQ(spec->model().ffn_hidden(), 40);
  EXPECT_EQ(spec->model().norm_eps(), 2e-5);
  EXPECT_EQ(spec->model().vocab_size(), 40);
  EXPECT_EQ(spec->model().context(), 8);
  EXPECT_EQ(spec->model().dropout(), 0.1);
  EXPECT_THAT(spec->model().from(), ::testing::EndsWith("tests/huggingface/fixtures/gpt2"));
  const auto again = Parse(EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString());
  const auto llama = ParseFrom({"model.from=tests/huggingface/fixtures/llama"});
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->model().rope_scaling().factor(), 4);
  EXPECT_TRUE(llama->model().untied_head());
  // A preset that is switched off says nothing of the vocabulary.
  const auto other = ParseFrom({"model.preset=null"});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->model().vocab_size(), spec->model().vocab_size());
}

TEST(JobFile, WhatContradictsTheDirectoryIsAFault) {
  EXPECT_THAT(FaultOfFrom({"model.layers=3", "model.context=32", "model.tied_head=false"}),
              AllOf(HasSubstr("model.layers: 3, but the model in "), HasSubstr("gpt2 has 2"),
                    HasSubstr("model.context: 32, but the model in "), HasSubstr("has only 16"),
                    HasSubstr("model.tied_head: false, but the model in ")));
  EXPECT_THAT(FaultOfFrom({"model.preset=gpt2-124m"}), HasSubstr("leave one of the two out"));
  EXPECT_THAT(FaultOfFrom({"model.layer=2"}), HasSubstr("did you mean 'layers'?"));
  const std::string from = "model.from=tests/huggingface/fixtures/";
  EXPECT_THAT(FaultOfFrom({from + "mistral", "model.sliding_window=7", "model.head_dim=4"}),
              AllOf(HasSubstr("model.sliding_window: 7, but the model in "), HasSubstr("has 5"),
                    HasSubstr("model.head_dim: 4, but the model in "), HasSubstr("has 8"),
                    Not(HasSubstr("rotary_dim")), Not(HasSubstr("query_scale"))));
  EXPECT_THAT(FaultOfFrom({from + "gpt_neox", "model.rotary_dim=8", "model.activation=gelu_tanh",
                           "model.sequential_residual=true"}),
              AllOf(HasSubstr("model.rotary_dim: 8, but"), HasSubstr("model.activation: gelu_tanh"),
                    HasSubstr("model.sequential_residual: true, but")));
  EXPECT_THAT(
      FaultOfFrom({from + "gemma2", "model.attention_softcap=9", "model.logit_softcap=9",
                   "model.query_scale=9"}),
      AllOf(HasSubstr("model.attention_softcap: 9.0, but"),
            HasSubstr("model.logit_softcap: 9.0, but"), HasSubstr("model.query_scale: 9.0, but")));
}

// A job that goes on has every size, and may do without the directory.
TEST(JobFile, ADirectoryThatIsNotThere) {
  EXPECT_THAT(FaultOfFrom({"model.from=/not/there"}),
              AllOf(HasSubstr("model.from: /not/there is not a model"),
                    Not(HasSubstr("missing; a model needs it"))));
  const auto spec = ParseFrom({"training.steps=5"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto moved = ChangeJob(*spec, {"model.from=/not/there", "training.steps=6"});
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->model().from(), "/not/there");
  EXPECT_EQ(moved->model().hidden(), 32);
  EXPECT_EQ(moved->training().steps(), 6);
}

TEST(JobFile, NotUtf8) {
  EXPECT_THAT(FaultOf("name: a\nmodel: caf\xe9\n"), HasSubstr("job.yaml:2: not UTF-8"));
  EXPECT_THAT(FaultOf(kGood, {"name=\xff"}), HasSubstr("--set:1: not UTF-8"));
}

TEST(JobFile, NotYaml) {
  EXPECT_THAT(FaultOf("a: [1"), HasSubstr("job.yaml:"));
  EXPECT_THAT(FaultOf("just text"), HasSubstr("expected a job"));
  EXPECT_THAT(FaultOf(absl::StrCat("name: ", std::string(100000, '['))), HasSubstr("not YAML"));
}

TEST(JobFile, AFileThatIsNone) {
  const auto endless = ParseJobFile("/dev/zero", {});
  EXPECT_EQ(endless.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(endless.status().ToString(), HasSubstr("/dev/zero: larger than 1048576 bytes"));
  EXPECT_EQ(ParseJobFile("/not/there.yaml", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(JobFile, RanksMustAgreeWithTheLayout) {
  EXPECT_THAT(FaultOf(kGood, {"parallelism={tensor: 2, data: 2}", "resources.ranks=8"}),
              HasSubstr("tensor 2 x pipeline 1 x data 2 = 4 ranks"));
}

}  // namespace
}  // namespace tercio::config
