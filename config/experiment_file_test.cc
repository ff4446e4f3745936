#include "config/experiment_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJobOfExperiment[] = R"(name: sst2
model: {layers: 4, hidden: 32, heads: 4, context: 16}
data: {train: corpus.txt}
training:
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3, betas: [0.9, 0.99]}
parallelism: auto
)";

constexpr char kFourWays[] = R"(name: one against many
job: jobs/sst2.yaml
variants:
  - {name: one device}
  - {name: data 2,     set: {parallelism: {data: 2}}}
  - {name: pipeline 2, set: {parallelism: {pipeline: 2}}}
  - {name: tensor 2,   set: {parallelism: {tensor: 2}, training: {precision: bf16}}}
baselines:
  - {name: transformers, results: transformers.json}
cost: {per_device_hour: 2.50, currency: USD}
)";

class ExperimentFile : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeDirectories(absl::StrCat(directory_.path(), "/jobs")).ok());
    WriteJob(kJobOfExperiment);
  }
  void WriteJob(const std::string& text) {
    ASSERT_TRUE(WriteFileDurably(absl::StrCat(directory_.path(), "/jobs/sst2.yaml"), text).ok());
  }
  absl::StatusOr<Experiment> Parse(const std::string& text,
                                   DifferentTraining different = DifferentTraining::kRefuse) {
    const std::string path = absl::StrCat(directory_.path(), "/e.yaml");
    EXPECT_TRUE(WriteFileDurably(path, text).ok());
    return ParseExperimentFile(path, different);
  }
  // Without the directory, which is another one in every run.
  std::string FaultOf(const std::string& text) {
    const auto parsed = Parse(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    const std::vector<std::string> parts =
        absl::StrSplit(parsed.status().message(), absl::StrCat(directory_.path(), "/"));
    return absl::StrJoin(parts, "");
  }
  std::string WithVariants(const std::string& variants) {
    return absl::StrCat("job: jobs/sst2.yaml\nvariants:\n", variants);
  }

  TempDir directory_;
};

TEST_F(ExperimentFile, MergesTheJobFileWithEachVariant) {
  const auto experiment = Parse(kFourWays);
  ASSERT_TRUE(experiment.ok()) << experiment.status();
  EXPECT_EQ(experiment->name, "one against many");
  ASSERT_EQ(experiment->variants.size(), 4u);
  const Variant& one = experiment->variants[0];
  EXPECT_EQ(one.job.name(), "sst2: one device");
  EXPECT_TRUE(one.job.parallelism().automatic());
  EXPECT_EQ(one.job.resources().ranks(), 1);
  // `auto` gives way to a map, and other keys stay as they are.
  const Variant& data = experiment->variants[1];
  EXPECT_FALSE(data.job.parallelism().automatic());
  EXPECT_EQ(data.job.parallelism().data(), 2);
  EXPECT_EQ(data.job.parallelism().tensor(), 1);
  EXPECT_EQ(data.job.resources().ranks(), 2);
  EXPECT_EQ(data.job.training().optimizer().beta2(), 0.99);
  // Paths of the job are relative to its own file.
  EXPECT_EQ(data.job.data().train(), absl::StrCat(directory_.path(), "/jobs/corpus.txt"));
  EXPECT_EQ(experiment->variants[3].job.training().precision(), v1::PRECISION_BF16);
  ASSERT_EQ(experiment->baselines.size(), 1u);
  EXPECT_EQ(experiment->baselines[0].name, "transformers");
  EXPECT_EQ(experiment->baselines[0].results,
            absl::StrCat(directory_.path(), "/transformers.json"));
  EXPECT_DOUBLE_EQ(experiment->cost->per_device_hour, 2.5);
  EXPECT_EQ(experiment->cost->currency, "USD");
  EXPECT_TRUE(experiment->different.empty());
}

TEST_F(ExperimentFile, NullTakesAKeyAwayAndListsAreReplaced) {
  WriteJob(absl::StrCat(kJobOfExperiment, "resources: {threads_per_rank: 3}\n"));
  const auto experiment = Parse(WithVariants(
      "  - {name: a, set: {resources: {threads_per_rank: null}, name: mine}}\n"
      "  - {name: b, set: {training: {optimizer: {betas: [0.8, 0.9]}}, parallelism: null}}\n"));
  ASSERT_TRUE(experiment.ok()) << experiment.status();
  EXPECT_EQ(experiment->variants[0].job.resources().threads_per_rank(), 0);
  EXPECT_EQ(experiment->variants[0].job.name(), "mine");
  EXPECT_EQ(experiment->variants[1].job.resources().threads_per_rank(), 3);
  EXPECT_EQ(experiment->variants[1].job.training().optimizer().beta1(), 0.8);
  EXPECT_TRUE(experiment->variants[1].job.parallelism().automatic());
  EXPECT_FALSE(experiment->cost.has_value());
}

TEST_F(ExperimentFile, AVariantIsWhatTheSameFileWouldBe) {
  const auto experiment = Parse(WithVariants("  - {name: a, set: {parallelism: {tensor: 2}}}\n"));
  ASSERT_TRUE(experiment.ok()) << experiment.status();
  const auto alone =
      ParseJobText(kJobOfExperiment, "sst2.yaml", absl::StrCat(directory_.path(), "/jobs"),
                   {"parallelism.tensor=2", "name='sst2: a'"});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(EffectiveYaml(experiment->variants[0].job), EffectiveYaml(*alone));
}

TEST_F(ExperimentFile, AllFaultsAreReportedTogether) {
  EXPECT_EQ(FaultOf("jop: sst2.yaml\n"
                    "variants:\n"
                    "  - {name: a, sett: {}}\n"
                    "  - {name: a, set: 3}\n"
                    "  - {set: {}}\n"
                    "  - one\n"
                    "baselines:\n"
                    "  - {name: a, result: f.json}\n"
                    "cost: {per_device_hour: -1}\n"),
            "e.yaml:1: job: missing; name the job file that the variants change\n"
            "e.yaml:1: jop: unknown key; did you mean 'job'?\n"
            "e.yaml:3: variants[0].sett: unknown key; did you mean 'set'?\n"
            "e.yaml:4: variants[1].name: 'a' is the name of another one\n"
            "e.yaml:4: variants[1].set: expected a map of keys as in a job file\n"
            "e.yaml:5: variants[2].name: missing; it heads the column of its results\n"
            "e.yaml:6: variants[3]: expected a map of keys\n"
            "e.yaml:8: baselines[0].name: 'a' is the name of another one\n"
            "e.yaml:8: baselines[0].results: missing; name the file of its results\n"
            "e.yaml:8: baselines[0].result: unknown key; did you mean 'results'?\n"
            "e.yaml:9: cost.per_device_hour: expected a number from 0 to 1e+09");
  EXPECT_THAT(FaultOf("job: jobs/sst2.yaml\n"), HasSubstr("variants: missing; list at least one"));
  EXPECT_THAT(FaultOf(WithVariants("  {name: a}\n")), HasSubstr("variants: expected a list"));
  EXPECT_THAT(FaultOf("- job\n"), HasSubstr("expected an experiment (a map of keys)"));
  EXPECT_THAT(FaultOf("job: [\n"), HasSubstr(": not YAML: "));
  EXPECT_THAT(FaultOf(absl::StrCat(kFourWays, "---\njob: x\n")),
              HasSubstr("e.yaml:11: a second document"));
  EXPECT_THAT(FaultOf(WithVariants(absl::StrCat("  - {name: ", std::string(49, 'n'), "}\n"))),
              HasSubstr("has 49 bytes; expected at most 48"));
  EXPECT_THAT(FaultOf(WithVariants("  - {name: \"a\\e[31m\"}\n")),
              HasSubstr("variants[0].name: has control characters"));
}

TEST_F(ExperimentFile, FaultsOfAJobNameTheirVariants) {
  WriteJob(absl::StrCat(kJobOfExperiment, "resource: {}\n"));
  EXPECT_EQ(FaultOf(WithVariants("  - {name: a}\n"
                                 "  - name: b\n"
                                 "    set:\n"
                                 "      training: {step: 3, micro_batch: 0}\n"
                                 "  - {name: c, set: {model: {heads: 5}}}\n")),
            "jobs/sst2.yaml:9: resource: unknown key; did you mean 'resources'?\n"
            "variant 'b': e.yaml:6: training.micro_batch: expected a whole number of at least 1 "
            "and at most 16777216\n"
            "variant 'b': e.yaml:6: training.step: unknown key; did you mean 'steps'?\n"
            "variant 'c': jobs/sst2.yaml:2: model.hidden: 32 is not a multiple of heads 5");
  EXPECT_EQ(Parse("job: nowhere.yaml\nvariants: [{name: a}]\n").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ExperimentFile, VariantsThatTrainSomethingElseAreRefused) {
  const std::string text = WithVariants(
      "  - {name: a}\n"
      "  - {name: b, set: {model: {layers: 2}, training: {precision: bf16}}}\n"
      "  - {name: c, set: {training: {steps: 20, seed: 3}, data: {train: other.txt}}}\n");
  const std::string fault = FaultOf(text);
  EXPECT_THAT(fault, AllOf(HasSubstr("e.yaml: variant 'b': model.layers is 2, but 4 in 'a'\n"),
                           HasSubstr("e.yaml: variant 'c': training.steps is 20, but 10 in 'a'\n"),
                           HasSubstr("e.yaml: variant 'c': training.seed is 3, but 1337 in 'a'\n"),
                           HasSubstr("variant 'c': data.train is "),
                           HasSubstr("--allow-different runs them anyway")));
  EXPECT_THAT(fault, Not(HasSubstr("precision")));
  const auto allowed = Parse(text, DifferentTraining::kAllow);
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  std::vector<std::string> keys;
  for (const DifferentKey& different : allowed->different) keys.push_back(different.key);
  EXPECT_THAT(keys, ElementsAre("model.layers", "data.train", "training.steps", "training.seed"));
  EXPECT_THAT(allowed->different[0].values, ElementsAre("4", "2", "4"));
}

TEST_F(ExperimentFile, HowAJobTrainsMayDiffer) {
  const auto experiment = Parse(WithVariants(
      "  - {name: a}\n"
      "  - {name: b, set: {training: {micro_batch: 2, precision: bf16, reproducibility: exact}}}\n"
      "  - {name: c, set: {parallelism: {pipeline: 2, recompute: full}}}\n"
      "  - {name: d, set: {resources: {threads_per_rank: 1}, checkpoint: {every_steps: 5}}}\n"));
  EXPECT_TRUE(experiment.ok()) << experiment.status();
}

// Aliases of YAML can make a few lines endlessly large.
TEST_F(ExperimentFile, EndlessMapsEnd) {
  EXPECT_THAT(FaultOf(WithVariants("  - {name: a, set: &s {model: *s}}\n")),
              HasSubstr("variants[0].set: nested too deeply"));
  std::string bomb = "x0: &x0 {}\n";
  for (int i = 1; i <= 7; ++i) {
    absl::StrAppend(&bomb, "x", i, ": &x", i, " {");
    for (int k = 0; k < 40; ++k) absl::StrAppend(&bomb, "k", k, ": *x", i - 1, ", ");
    absl::StrAppend(&bomb, "}\n");
  }
  EXPECT_THAT(FaultOf(absl::StrCat(bomb, WithVariants("  - {name: a, set: *x7}\n"))),
              HasSubstr("variants[0].set: too many keys"));
}

}  // namespace
}  // namespace tercio::config
