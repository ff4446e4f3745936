// The results of an experiment: JSON, CSV, figures, page.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/compare/method_json.h"
#include "cli/compare/page.h"
#include "cli/compare/results.h"
#include "cli/compare/testing/test_methods.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::compare {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

config::Experiment TestExperiment() {
  config::Experiment experiment;
  experiment.name = "one against many";
  experiment.cost = config::DeviceCost{3600, "EUR"};
  return experiment;
}

Method TestBaseline() {
  Method method = TestMethod("transformers", 1, 20);
  method.kind = MethodKind::kBaseline;
  method.software = "transformers 4.5, torch 2.1";
  method.history = TestJob("b", 20, 1).steps;
  return method;
}

std::vector<report::JobData> TestJobs() {
  std::vector<report::JobData> jobs = {TestJob("one device", 100, 1), TestJob("data 2", 100, 2)};
  for (v1::StepRecord& step : jobs[1].steps) step.set_step_seconds(0.0625);
  return jobs;
}

Results TestResults() {
  std::vector<Method> variants;
  for (const report::JobData& job : TestJobs()) variants.push_back(MethodOfJob(job.label, job));
  variants.push_back(
      MethodWithoutJob("tensor 2", MethodState::kFailed, "does not fit in memory\nKIND  BYTES"));
  return ResultsOf(TestExperiment(), variants, {TestBaseline()});
}

std::string PageOfTest(const Results& results) {
  return ComparePage(results, TestJobs(), "1.2.3", 1e9);
}

// The fields of a line of RFC 4180.
std::vector<std::string> FieldsOf(const std::string& line) {
  std::vector<std::string> fields = {""};
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

std::vector<std::vector<std::string>> LinesOf(const std::string& csv) {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(csv, "\r\n"))) {
    if (!line.empty()) lines.push_back(FieldsOf(line));
  }
  return lines;
}

const Json* AtPath(const Json& json, const std::string& path) {
  const Json* at = &json;
  for (const std::string& key : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return at;
}

TEST(Results, HaveSpeedsAndCosts) {
  const Json json = ResultsToJson(TestResults());
  EXPECT_EQ(json["format"], "tercio-results-1");
  EXPECT_EQ(json["experiment"], "one against many");
  EXPECT_EQ(json["base"], "one device");
  EXPECT_EQ(json["cost"]["currency"], "EUR");
  ASSERT_EQ(json["methods"].size(), 4u);
  EXPECT_DOUBLE_EQ(json["methods"][1]["speed_up"], 1.6);
  EXPECT_DOUBLE_EQ(json["methods"][1]["efficiency"], 0.8);
  // 12 s of two devices, for one unit of money a second.
  EXPECT_DOUBLE_EQ(json["methods"][1]["cost"], 24);
  EXPECT_EQ(json["methods"][2]["state"], "failed");
  EXPECT_EQ(json["methods"][3]["kind"], "baseline");
  EXPECT_DOUBLE_EQ(json["methods"][3]["speed_up"], 0.5);
  EXPECT_TRUE(json["methods"][3]["cost"].is_null());
}

TEST(Results, CsvReadBackIsTheJson) {
  Results results = TestResults();
  results.methods[0].name = "one, \"quoted\"";
  const Json json = ResultsToJson(results);
  const auto lines = LinesOf(ResultsToCsv(results));
  ASSERT_EQ(lines.size(), results.methods.size() + 1);
  EXPECT_EQ(lines[0][0], "name");
  size_t numbers = 0;
  for (size_t i = 0; i < results.methods.size(); ++i) {
    ASSERT_EQ(lines[i + 1].size(), lines[0].size());
    for (size_t column = 0; column < lines[0].size(); ++column) {
      const Json* value = AtPath(json["methods"][i], lines[0][column]);
      const std::string& field = lines[i + 1][column];
      if (value == nullptr || value->is_null()) {
        EXPECT_EQ(field, "") << lines[0][column];
      } else if (value->is_string()) {
        EXPECT_EQ(field, value->get<std::string>());
      } else {
        EXPECT_EQ(Json::parse(field), *value) << lines[0][column];
        numbers += value->is_number() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(numbers, 40u);
  // Nothing of the JSON has no column, except for single steps.
  for (const char* column : {"layout.tensor", "step_seconds.median", "memory.resident_bytes",
                             "communication_bytes.data", "largest_model.parameters",
                             "evaluation.validation", "device_utilization", "cost", "runs"}) {
    EXPECT_NE(std::find(lines[0].begin(), lines[0].end(), column), lines[0].end()) << column;
  }
  EXPECT_EQ(std::find(lines[0].begin(), lines[0].end(), "history"), lines[0].end());
}

TEST(Results, DifferentKeysNameTheirVariants) {
  Results results = TestResults();
  results.different = {{"model.layers", {"4", "2", ""}}};
  const Json json = ResultsToJson(results);
  EXPECT_EQ(json["different"]["model.layers"]["data 2"], "2");
  const std::string page = PageOfTest(results);
  EXPECT_THAT(page, HasSubstr("<h2>What the variants train differs</h2>"));
  EXPECT_THAT(page, HasSubstr("not set"));
  EXPECT_THAT(PageOfTest(TestResults()), Not(HasSubstr("What the variants train differs")));
}

TEST(Figures, AreThoseOfWhatIsKnown) {
  std::vector<std::string> names;
  for (const NamedFigure& figure : FiguresOf(TestResults(), plot::SvgPlace::kOwnFile)) {
    names.push_back(figure.name);
    EXPECT_THAT(figure.svg, AllOf(HasSubstr("<svg"), HasSubstr("data 2"))) << figure.name;
    EXPECT_THAT(FigureNames(), ::testing::Contains(figure.name));
    EXPECT_THAT(figure.svg, Not(HasSubstr("nan")));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("throughput", "efficiency", "steps", "waiting", "cost",
                                            "memory", "communication", "loss", "loss-by-time"));
  EXPECT_TRUE(FiguresOf(Results(), plot::SvgPlace::kPage).empty());
}

TEST(Page, HasEverySection) {
  const std::string page = PageOfTest(TestResults());
  for (const char* heading :
       {"Methods side by side", "Speed and cost", "Memory and communication", "Losses",
        "Classification", "Runs", "Planned and measured", "Time by phase", "Memory of each rank",
        "Where the time went", "Faults", "Environment", "Configuration"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("<h2>", heading, "</h2>")));
  }
  EXPECT_THAT(page, HasSubstr("2 of 3 variants have succeeded; 1 baseline stands beside them."));
  EXPECT_THAT(page, HasSubstr("data 2 is the fastest: 64 samples/s, 1.60× as fast as one device, "
                              "80.0 % efficiency."));
  EXPECT_THAT(page, HasSubstr("tensor 2: failed: does not fit in memory</p>"));
  EXPECT_THAT(page, HasSubstr("transformers (baseline)"));
  EXPECT_THAT(page, HasSubstr("transformers 4.5, torch 2.1"));
  EXPECT_THAT(page, HasSubstr("24 EUR"));
  EXPECT_THAT(page, HasSubstr("layers of"));
  EXPECT_THAT(page, Not(HasSubstr(">nan")));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(Page, EqualEvaluationsAreShownOnce) {
  Results results = TestResults();
  const Json evaluation = Json::parse(R"({"step": 10, "loss": 0.5, "accuracy": 0.75,
      "per_class": {"bad": {"precision": 0.5, "recall": 1, "f1": 0.6667, "support": 1},
                    "good": {"precision": 1, "recall": 0.6667, "f1": 0.8, "support": 3}},
      "macro": {"precision": 0.75, "recall": 0.8333, "f1": 0.7333},
      "weighted": {"precision": 0.875, "recall": 0.75, "f1": 0.7667},
      "confusion": [[1, 0], [1, 2]]})");
  results.methods[0].test = evaluation;
  results.methods[1].test = evaluation;
  results.methods[1].test["step"] = 9;
  results.methods[3].test = evaluation;
  results.methods[3].test["confusion"][0][0] = 7;
  const std::string page = PageOfTest(results);
  EXPECT_THAT(page, HasSubstr("Classification report on the test data:"));
  EXPECT_THAT(page, HasSubstr(">one device, data 2</th>"));
  EXPECT_THAT(page, HasSubstr("Confusion matrix on the test data: one device, data 2"));
  EXPECT_THAT(page, HasSubstr("Confusion matrix on the test data: transformers (baseline)"));
  EXPECT_THAT(page, HasSubstr("test F1, macro average"));
  EXPECT_THAT(page, Not(HasSubstr("on the validation data")));
}

TEST(Page, BeforeAnythingHasRun) {
  const Results results =
      ResultsOf(TestExperiment(), {MethodWithoutJob("one device", MethodState::kNotRun, "")}, {});
  const std::string page = ComparePage(results, {}, "1.2.3", 1e9);
  EXPECT_THAT(page, HasSubstr("0 of 1 variant has succeeded."));
  EXPECT_THAT(page, HasSubstr("one device: not run"));
  EXPECT_THAT(page, HasSubstr("Nothing is known yet."));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Configuration</h2>")));
}

// The names in an experiment, and the texts in a file of results, inject nothing into the page.
TEST(Page, HostileNames) {
  const std::string bad = "</script><script>alert(1)</script>\"'&\x01\xff<!--";
  Results results = TestResults();
  results.experiment = bad;
  results.cost->currency = bad;
  for (Method& method : results.methods) {
    method.name = bad;
    method.error = bad + "\n" + bad;
    method.software = bad;
    method.device = bad;
    method.job_id = bad;
  }
  results.methods[0].test = {{"per_class", {{"<script>", {{"f1", 1}}}}}, {"confusion", {{3}}}};
  const std::string page = PageOfTest(results);
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, Not(HasSubstr("<!--")));
  const size_t begin = page.find('>', page.find("<script type=\"application/json\"")) + 1;
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["methods"].size(), 4u);
  EXPECT_THAT(ResultsText(results), HasSubstr("alert"));
  EXPECT_THAT(ResultsToCsv(results), HasSubstr("alert"));
}

TEST(ResultRows, HaveALineForEachMethod) {
  const auto rows = ResultRows(TestResults());
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0][0], "METHOD");
  EXPECT_EQ(rows[2][0], "data 2");
  EXPECT_EQ(rows[2][4], "1.60×");
  EXPECT_EQ(rows[3][1], "failed");
  EXPECT_EQ(rows[3][2], "-");
  EXPECT_EQ(rows[4][0], "transformers (baseline)");
  EXPECT_EQ(rows[1].back(), "12 EUR");
}

}  // namespace
}  // namespace tercio::compare
