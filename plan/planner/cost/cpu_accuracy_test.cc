// Predictions beside steps that were measured on CPUs, with the figures of the same machine and
// minute (tests/bench/planner/cpu_steps.py renews both).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/planner/cost/measured.h"
#include "plan/planner/cost/step_cost.h"
#include "plan/text_form.h"

namespace tercio::plan::cost {
namespace {

constexpr char kSteps[] = "plan/planner/cost/testdata/cpu_steps.csv";
constexpr char kFigures[] = "plan/planner/cost/testdata/cpu_figures.jsonl";

std::string ReadText(const char* path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// By round and model.
std::map<std::pair<int, std::string>, v1::MachineFigures> AllFigures() {
  std::map<std::pair<int, std::string>, v1::MachineFigures> all;
  const std::string text = ReadText(kFigures);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    v1::MachineFigures figures;
    EXPECT_TRUE(FromJson(json["figures"].dump(), &figures).ok());
    all[{json["round"].get<int>(), json["model"].get<std::string>()}] = figures;
  }
  return all;
}

// The models of cpu_steps.py.
v1::JobSpec JobOf(const std::string& name) {
  v1::JobSpec job;
  v1::ModelSpec* model = job.mutable_model();
  const bool nano = name == "nanogpt";
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(4);
  model->set_heads(4);
  model->set_hidden(nano ? 128 : 256);
  model->set_ffn_hidden(4 * model->hidden());
  model->set_context(nano ? 64 : 128);
  model->set_vocab_size(nano ? 65 : 512);
  model->set_bias(!nano);
  job.mutable_training()->set_global_batch(nano ? 12 : 8);
  return job;
}

struct Case {
  std::string model;
  v1::Layout layout;
  std::string name;
  std::vector<double> measured;
  std::vector<double> predicted;

  // The round that others disturbed least counts: figures and steps only ever get slower.
  double seconds() const { return *std::min_element(measured.begin(), measured.end()); }
  double prediction() const { return *std::min_element(predicted.begin(), predicted.end()); }
  double error() const { return prediction() / seconds() - 1; }
};

v1::Layout LayoutOf(const std::vector<std::string>& fields, const v1::JobSpec& job) {
  const auto number = [&](size_t column) {
    int value = 0;
    EXPECT_TRUE(absl::SimpleAtoi(fields[column], &value)) << fields[column];
    return value;
  };
  v1::Layout layout;
  layout.set_tensor(number(2));
  layout.set_pipeline(number(3));
  layout.set_data(number(4));
  layout.set_micro_batch(number(5));
  layout.set_micro_batches(static_cast<int>(job.training().global_batch()) /
                           (layout.data() * layout.micro_batch()));
  layout.set_virtual_pipeline(1);
  layout.set_recompute(fields[6] == "full" ? v1::RECOMPUTE_FULL : v1::RECOMPUTE_NONE);
  layout.set_sequence_parallel(fields[7] == "true");
  return layout;
}

// Rounds of a layout together.
const std::vector<Case>& Cases() {
  static const auto* const kAll = [] {
    auto* cases = new std::vector<Case>;
    const auto figures = AllFigures();
    std::map<std::string, size_t> places;
    const std::vector<std::string> lines =
        absl::StrSplit(ReadText(kSteps), '\n', absl::SkipEmpty());
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
      const v1::JobSpec job = JobOf(fields[1]);
      const v1::Layout layout = LayoutOf(fields, job);
      const std::string name = absl::StrCat(
          fields[1], " ", fields[2], "x", fields[3], "x", fields[4], " micro_batch ", fields[5],
          fields[6] == "full" ? " recompute" : "", fields[7] == "true" ? " sequence_parallel" : "");
      if (places.emplace(name, cases->size()).second) {
        cases->push_back({.model = fields[1], .layout = layout, .name = name});
      }
      const v1::MachineFigures& machine = figures.at({std::stoi(fields[0]), fields[1]});
      const int ranks = layout.tensor() * layout.pipeline() * layout.data();
      const double cores = static_cast<double>(machine.devices()) / ranks;
      const ClusterModel cluster = MeasuredCluster(machine, 1, ranks, cores);
      Case& one = (*cases)[places[name]];
      one.measured.push_back(std::stod(fields[9]));
      one.predicted.push_back(CostOfStep(job, layout, cluster, CpuRecipe()).seconds);
    }
    return cases;
  }();
  return *kAll;
}

void PrintParts(const Case& one, const v1::MachineFigures& machine) {
  const int ranks = one.layout.tensor() * one.layout.pipeline() * one.layout.data();
  const StepCost cost =
      CostOfStep(JobOf(one.model), one.layout,
                 MeasuredCluster(machine, 1, ranks, static_cast<double>(machine.devices()) / ranks),
                 CpuRecipe());
  absl::PrintF(
      "%-52s measured %7.2f ms, predicted %7.2f ms (%+5.1f %%); compute %6.2f tensor %6.2f again "
      "%6.2f bubble %6.2f messages %6.2f data %6.2f optimizer %6.2f other %6.2f\n",
      one.name, 1e3 * one.seconds(), 1e3 * one.prediction(), 100 * one.error(), 1e3 * cost.compute,
      1e3 * cost.tensor_communication, 1e3 * cost.recompute, 1e3 * cost.pipeline_bubble,
      1e3 * cost.pipeline_transfers, 1e3 * cost.data_exposed, 1e3 * cost.optimizer,
      1e3 * cost.other);
}

TEST(CpuAccuracy, StepsArePredictedWithin15PerCent) {
  const auto figures = AllFigures();
  double sum = 0;
  double most = 0;
  for (const Case& one : Cases()) {
    PrintParts(one, figures.at({0, one.model}));
    sum += std::abs(one.error());
    most = std::max(most, std::abs(one.error()));
  }
  const double mean = sum / static_cast<double>(Cases().size());
  absl::PrintF("%d layouts: mean error %.1f %%, largest %.1f %%\n",
               static_cast<int>(Cases().size()), 100 * mean, 100 * most);
  EXPECT_GE(Cases().size(), 24u);
  EXPECT_LE(mean, 0.15);
}

// The layout that would be chosen, and the order of all. The fastest ones are within a few per cent
// of each other, less than a layout's own rounds are apart, so that their order among themselves
// means little; it is printed.
TEST(CpuAccuracy, TheChosenLayoutIsAmongTheFastest) {
  std::map<std::string, std::vector<Case>> models;
  for (const Case& one : Cases()) models[one.model].push_back(one);
  for (auto& [model, cases] : models) {
    const auto chosen = std::min_element(
        cases.begin(), cases.end(),
        [](const Case& a, const Case& b) { return a.prediction() < b.prediction(); });
    const double seconds = chosen->seconds();
    const std::string name = chosen->name;
    std::sort(cases.begin(), cases.end(),
              [](const Case& a, const Case& b) { return a.seconds() < b.seconds(); });
    const double regret = seconds / cases.front().seconds() - 1;
    int inverted = 0;
    int pairs = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      for (size_t j = i + 1; j < cases.size(); ++j, ++pairs) {
        if (cases[i].prediction() > cases[j].prediction()) ++inverted;
      }
    }
    absl::PrintF(
        "%s: chosen %s, %.1f %% slower than the fastest; %d of %d pairs in the wrong order\n",
        model, name, 100 * regret, inverted, pairs);
    for (size_t i = 0; i < 5; ++i) {
      absl::PrintF("  %-52s measured %7.2f ms, predicted %7.2f ms\n", cases[i].name,
                   1e3 * cases[i].seconds(), 1e3 * cases[i].prediction());
    }
    // Those of the fastest three that differ by more than rounds of one layout do at their best.
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = i + 1; j < 3; ++j) {
        if (cases[j].seconds() < 1.03 * cases[i].seconds()) continue;
        EXPECT_LT(cases[i].prediction(), cases[j].prediction())
            << cases[i].name << " was faster than " << cases[j].name;
      }
    }
    EXPECT_LE(regret, 0.05) << model;
    EXPECT_LE(inverted, pairs / 4) << model;
  }
}

}  // namespace
}  // namespace tercio::plan::cost
