// Adapters of peft beside what it computes (make_adapters.py): logits, merged models, training
// curves, and files that come back as they were.
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/adapted_weights.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/huggingface/peft_export.h"
#include "checkpoint/huggingface/peft_import.h"
#include "checkpoint/huggingface/peft_names.h"
#include "checkpoint/model_description.h"
#include "checkpoint/safetensors.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/architectures/registry.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "tests/huggingface/logits.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

constexpr const char* kFixtures[] = {"gpt2",     "llama_bf16", "qwen3",
                                     "gpt_neox", "phi3",       "bert_classes"};

std::string FolderOf(const std::string& name) { return "tests/huggingface/adapters/" + name; }

nlohmann::json ExpectedOf(const std::string& name) {
  nlohmann::json expected = nlohmann::json::parse(*ReadFile(FolderOf(name) + ".json"));
  if (expected.contains("classes")) {
    expected["length"] = expected["tokens"].size();
    expected["types"] = std::vector<int>(expected["tokens"].size(), 0);
  }
  return expected;
}

// The tensors of a safetensors file: shape and bytes by name.
std::map<std::string, std::pair<std::vector<int64_t>, std::string>> TensorsOf(
    const std::string& path) {
  const std::string content = *ReadFile(path);
  const auto layout = ParseSafetensors(content, static_cast<int64_t>(content.size()));
  EXPECT_TRUE(layout.ok()) << layout.status();
  std::map<std::string, std::pair<std::vector<int64_t>, std::string>> tensors;
  for (const TensorEntry& entry : layout->tensors) {
    tensors[entry.name] = {entry.shape,
                           content.substr(static_cast<size_t>(layout->data_begin + entry.begin),
                                          static_cast<size_t>(entry.end - entry.begin))};
  }
  return tensors;
}

TEST(PeftAdapters, LogitsArePefts) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    EXPECT_LT(LogitErrorOf(FolderOf(name), ExpectedOf(name)), 1e-5);
  }
}

TEST(PeftAdapters, MergedModelsHaveTheSameLogits) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    TempDir scratch;
    const auto imported = ImportPeft(FolderOf(name), "", scratch.path() + "/checkpoint", {});
    ASSERT_TRUE(imported.ok()) << imported.status();
    const auto plain =
        ExportHuggingFace(scratch.path() + "/checkpoint", scratch.path() + "/plain", {});
    EXPECT_THAT(plain.status().message(), HasSubstr("add --merge"));
    ExportOptions merge;
    merge.merge = true;
    const auto merged =
        ExportHuggingFace(scratch.path() + "/checkpoint", scratch.path() + "/merged", merge);
    ASSERT_TRUE(merged.ok()) << merged.status();
    EXPECT_FALSE(merged->model.has_adapter());
    EXPECT_LT(LogitErrorOf(scratch.path() + "/merged", ExpectedOf(name)), 1e-5);
  }
}

TEST(PeftAdapters, ComeBackAsTheyWere) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    TempDir scratch;
    ASSERT_TRUE(ImportPeft(FolderOf(name), "", scratch.path() + "/checkpoint", {}).ok());
    const auto exported = ExportPeft(scratch.path() + "/checkpoint", scratch.path() + "/peft");
    ASSERT_TRUE(exported.ok()) << exported.status();
    EXPECT_EQ(TensorsOf(scratch.path() + "/peft/adapter_model.safetensors"),
              TensorsOf(FolderOf(name) + "/adapter_model.safetensors"));
    const auto ours = Json::parse(*ReadFile(scratch.path() + "/peft/adapter_config.json"));
    const auto theirs = Json::parse(*ReadFile(FolderOf(name) + "/adapter_config.json"));
    for (const auto& [key, value] : ours.items()) {
      // Where peft made the list longer than it had to be, and where the model is.
      if (key == "target_modules" || key == "base_model_name_or_path" || key == "modules_to_save" ||
          key == "feedforward_modules") {
        continue;
      }
      EXPECT_EQ(value, theirs.value(key, Json())) << key;
    }
  }
}

// peft's rule (inject_adapter): a module whose path is one of the names, or ends with one behind a
// dot.
bool PeftFinds(const PeftTargets& targets, const std::string& module) {
  for (const std::string& end : targets.ends) {
    if (module == end || module.ends_with("." + end)) return true;
  }
  return !targets.pattern.empty() && ::testing::Matches(::testing::MatchesRegex(absl::StrReplaceAll(
                                         targets.pattern, {{"\\.", "[.]"}})))(module);
}

TEST(PeftAdapters, TargetsFindTheirModulesAndNoOthers) {
  for (const model::ArchitectureFacts* facts : model::AllArchitectures()) {
    if (FindForm(facts->architecture) == nullptr || facts->presets.empty()) continue;
    v1::ModelSpec model = model::ModelOf({facts, &facts->presets.front()});
    model.set_layers(2);
    if (facts->Has("decoder_layers")) model.set_decoder_layers(2);
    const std::vector<std::string> names = model::AdaptableNames(model::ArchitectureOf(model));
    const std::vector<PeftModule> modules = PeftModulesOf(model);
    std::set<std::string> found;
    for (const PeftModule& module : modules) found.insert(module.target);
    // Each part is one product of transformers' model, and the other way round.
    EXPECT_EQ(found, std::set<std::string>(names.begin(), names.end()))
        << facts->presets.front().name;
    for (size_t chosen = 1; chosen < (size_t{1} << names.size()); ++chosen) {
      std::vector<std::string> targets;
      for (size_t i = 0; i < names.size(); ++i) {
        if ((chosen >> i & 1) != 0) targets.push_back(names[i]);
      }
      const PeftTargets written = PeftTargetsOf(model, targets);
      EXPECT_NE(written.ends.empty(), written.pattern.empty());
      for (const PeftModule& module : modules) {
        const bool wanted =
            std::find(targets.begin(), targets.end(), module.target) != targets.end();
        EXPECT_EQ(PeftFinds(written, module.module), wanted) << module.module;
      }
      for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
        const std::string path = tensor.name.substr(0, tensor.name.rfind('.'));
        const bool adaptable = std::any_of(modules.begin(), modules.end(),
                                           [&](const auto& m) { return m.module == path; });
        if (adaptable || tensor.is_vector) continue;
        EXPECT_FALSE(PeftFinds(written, path)) << path;
      }
    }
  }
}

// The batches of make_adapters.py.
class CurveSource : public data::CausalSource {
 public:
  explicit CurveSource(int64_t context) : context_(context) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    for (int64_t i = 0; i <= context_; ++i) {
      out[i] = static_cast<int32_t>((7 * sequence + 3 * (step % 5) + (sequence + 1) * i) % 40);
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 1; }
  void ReadHeldOut(data::HeldOut, int64_t index, int32_t* out) override {
    ReadTraining(0, index, out);
  }

 private:
  const int64_t context_;
};

v1::JobSpec CurveJob(const std::string& name) {
  v1::JobSpec spec = testing::SmallJob();
  *spec.mutable_model() = *DescribeModel(FolderOf(name));
  spec.mutable_model()->set_context(16);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_steps(100);
  training->set_global_batch(8);
  training->set_clip_grad_norm(1);
  training->clear_evaluate();
  training->mutable_optimizer()->set_learning_rate(0.003);
  training->mutable_schedule()->Clear();
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  return spec;
}

// The state of a run that starts from the adapter.
std::map<std::string, std::vector<float>> StartOf(const v1::JobSpec& spec,
                                                  const std::string& name) {
  testing::RunOptions none;
  none.steps = 0;
  auto state = testing::Train(spec, {1, 1, 1, 8, 1, testing::k1f1b}, none).state;
  const auto source = OpenWeightSource(FolderOf(name), DigestCheck::kNone);
  EXPECT_TRUE(source.ok()) << source.status();
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(spec.model())) {
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    EXPECT_EQ(ReadSliceFor(**source, slice, state.at(tensor.name).data()), absl::OkStatus());
  }
  return state;
}

TEST(PeftAdapters, CurvesArePeftsInEveryLayout) {
  using testing::Case;
  for (const char* name : {"gpt2", "llama_bf16", "llama_bf16_ia3"}) {
    const auto expected = ExpectedOf(name)["curve"].get<std::vector<double>>();
    const v1::JobSpec spec = CurveJob(name);
    const auto start = StartOf(spec, name);
    Case shards = {1, 1, 4, 1, 1, testing::k1f1b, testing::kFull};
    shards.zero_stage = 3;
    Case all = {2, 2, 2, 1, 1, testing::k1f1b};
    Case all_divided = all;
    all_divided.zero_stage = 2;
    for (const Case& c : {Case{1, 1, 1, 8, 1, testing::k1f1b}, Case{2, 1, 1, 4, 1, testing::k1f1b},
                          Case{1, 2, 2, 2, 1, testing::k1f1b}, shards, all, all_divided,
                          Case{2, 1, 2, 4, 1, testing::k1f1b, testing::kSelective, 1, true}}) {
      SCOPED_TRACE(absl::StrCat(name, " ", testing::NameOf(c)));
      CurveSource source(16);
      testing::RunOptions options;
      options.steps = 100;
      options.state = &start;
      options.source = &source;
      const testing::RunResult result = testing::Train(spec, c, options);
      ASSERT_EQ(result.steps.size(), expected.size());
      double largest = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(result.steps[i].loss - expected[i]));
      }
      EXPECT_LT(largest, 1e-4);
    }
  }
}

// The adapter in `directory` with a changed file.
std::string Changed(const std::string& name, const std::string& file,
                    const std::vector<std::pair<std::string, std::string>>& changes,
                    const TempDir& scratch) {
  for (const char* part : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::string content = *ReadFile(FolderOf(name) + "/" + part);
    if (part == file) {
      const std::string before = content;
      content = absl::StrReplaceAll(content, changes);
      EXPECT_NE(content, before);
    }
    std::ofstream(scratch.path() + "/" + part, std::ios::binary) << content;
  }
  return scratch.path();
}

std::string FaultOf(const std::string& name, const std::string& file,
                    const std::vector<std::pair<std::string, std::string>>& changes) {
  TempDir scratch;
  const v1::ModelSpec base = *DescribeModel("tests/huggingface/fixtures/" + name);
  const auto opened = PeftAdapter::Open(Changed(name, file, changes, scratch), base);
  return std::string(opened.status().message());
}

TEST(PeftAdapters, WhatCannotBeReadIsNamed) {
  const std::string config = "adapter_config.json";
  const std::string weights = "adapter_model.safetensors";
  EXPECT_THAT(FaultOf("gpt2", config, {{"\"LORA\"", "\"LOHA\""}}), HasSubstr("peft_type"));
  EXPECT_THAT(FaultOf("gpt2", config, {{"\"rank_pattern\": {}", "\"rank_pattern\": {\"a\": 2}"}}),
              HasSubstr("rank_pattern"));
  EXPECT_THAT(FaultOf("gpt2", config, {{"\"use_dora\": false", "\"use_dora\": true"}}),
              HasSubstr("use_dora"));
  EXPECT_THAT(FaultOf("gpt2", config, {{"\"r\": 4", "\"r\": 3"}}), HasSubstr("another model"));
  EXPECT_THAT(FaultOf("gpt2", weights, {{"h.1.attn.c_attn", "h.1.attn.c_else"}}),
              HasSubstr("belongs to no product"));
  EXPECT_THAT(FaultOf("llama_bf16", weights, {{"layers.1.self_attn.q", "layers.1.self_attn.k"}}),
              HasSubstr("though other layers have one"));
}

TEST(PeftAdapters, AnotherModelIsRefused) {
  v1::ModelSpec base = *DescribeModel("tests/huggingface/fixtures/gpt2");
  base.set_hidden(64);
  const auto opened = PeftAdapter::Open(FolderOf("gpt2"), base);
  EXPECT_THAT(opened.status().message(), HasSubstr("it is for another model"));
  TempDir empty;
  EXPECT_TRUE(absl::IsNotFound(
      PeftAdapter::Open(empty.path(), *DescribeModel("tests/huggingface/fixtures/gpt2")).status()));
}

}  // namespace
}  // namespace tercio::checkpoint
