// Training agrees with PyTorch: the gradients of one step, and 100 losses and gradient norms, of
// tiny models of every architecture. Fixtures and their meaning: tests/golden/make_fixtures.py.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/names.h"
#include "tests/huggingface/published.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

std::string ReadFixture(const std::string& name) {
  std::ifstream file("tests/golden/fixtures/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Tensors ReadTensors(const std::string& name) {
  const std::string bytes = ReadFixture(name);
  const auto layout = checkpoint::ParseSafetensors(bytes, static_cast<int64_t>(bytes.size()));
  EXPECT_TRUE(layout.ok()) << layout.status();
  Tensors tensors;
  if (!layout.ok()) return tensors;
  for (const checkpoint::TensorEntry& entry : layout->tensors) {
    std::vector<float>& values = tensors[entry.name];
    values.resize(static_cast<size_t>(entry.end - entry.begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + layout->data_begin + entry.begin,
                values.size() * sizeof(float));
  }
  return tensors;
}

class FixtureSource : public data::CausalSource {
 public:
  FixtureSource() : tokens_(nlohmann::json::parse(ReadFixture("tokens.json"))["tokens"]) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    for (const auto& id :
         tokens_.at(static_cast<size_t>(step - 1)).at(static_cast<size_t>(sequence))) {
      *out++ = id.get<int32_t>();
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void ReadHeldOut(data::HeldOut, int64_t, int32_t*) override {}

 private:
  const nlohmann::json tokens_;
};

// As encoder_samples() in make_fixtures.py.
class EncoderFixtureSource : public data::SampleSource {
 public:
  explicit EncoderFixtureSource(int labels) : labels_(labels) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    tokens_.TrainingSample(step, sequence, out);
    const std::vector<int32_t> ids = out->inputs;
    const auto context = static_cast<int64_t>(ids.size());
    const int64_t length = context - (step + sequence) % 5;
    out->length = static_cast<int32_t>(length);
    out->label = std::min(ids[0] % 5, std::max(2, labels_) - 1);
    for (int64_t i = 0; i < context; ++i) {
      const size_t at = static_cast<size_t>(i);
      const bool chosen = i < length && (7 * step + 3 * sequence + 5 * i) % 6 == 0;
      out->targets[at] = chosen ? ids[at] : data::kNoTarget;
      out->inputs[at] = chosen ? 3 : i < length ? ids[at] : 0;
      out->types[at] = i < length && i >= context / 2 ? 1 : 0;
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void HeldOutSample(data::HeldOut, int64_t, data::Sample*) override {}

 private:
  const int labels_;
  FixtureSource tokens_;
};

// As packed_samples() in make_fixtures.py.
class PackedFixtureSource : public data::SampleSource {
 public:
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    tokens_.TrainingSample(step, sequence, out);
    const int64_t first = 2 + (step + sequence) % 5;
    const int64_t second = first + 1 + (3 * step + sequence) % 7;
    out->document_starts.resize(out->inputs.size());
    for (size_t i = 0; i < out->inputs.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t start = at < first ? 0 : at < second ? first : second;
      out->document_starts[i] = static_cast<int32_t>(start);
      if (at + 1 == first || at + 1 == second) out->targets[i] = data::kNoTarget;
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void HeldOutSample(data::HeldOut, int64_t, data::Sample*) override {}

 private:
  FixtureSource tokens_;
};

// As decoder_samples() in make_fixtures.py.
class DecoderFixtureSource : public data::SampleSource {
 public:
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override {
    std::vector<int32_t> row(kRow);
    tokens_.ReadTraining(step, sequence, row.data());
    for (size_t i = 0; i < out->inputs.size(); ++i) out->inputs[i] = row[i % kRow];
    for (size_t i = 0; i < out->targets.size(); ++i) {
      out->targets[i] = row[kRow - 1 - i];
      out->decoder_inputs[i] = i == 0 ? 0 : row[kRow - i];
    }
    out->length = static_cast<int32_t>(out->inputs.size());
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void HeldOutSample(data::HeldOut, int64_t, data::Sample*) override {}

 private:
  static constexpr size_t kRow = 17;
  FixtureSource tokens_;
};

// What only some architectures have.
void SetFurther(const nlohmann::json& model, v1::ModelSpec* spec) {
  spec->set_activation(plan::Named<v1::Activation>(model.value("activation", ""))
                           .value_or(v1::ACTIVATION_UNSPECIFIED));
  spec->set_head_dim(model.value("head_dim", 0));
  spec->set_rotary_dim(model.value("rotary_dim", 0));
  spec->set_sliding_window(model.value("sliding_window", 0));
  spec->set_attention_softcap(model.value("attention_softcap", 0.0));
  spec->set_logit_softcap(model.value("logit_softcap", 0.0));
  spec->set_query_scale(model.value("query_scale", 0.0));
  spec->set_sequential_residual(model.value("sequential_residual", false));
  spec->set_decoder_layers(model.value("decoder_layers", 0));
  spec->set_decoder_context(model.value("decoder_context", 0));
  spec->set_relative_buckets(model.value("relative_buckets", 0));
  spec->set_relative_distance(model.value("relative_distance", 0));
  spec->set_gated_mlp(model.value("gated_mlp", false));
}

v1::JobSpec JobOf(const nlohmann::json& fixture) {
  v1::JobSpec spec;
  const nlohmann::json& model = fixture["model"];
  spec.mutable_model()->set_architecture(
      plan::Named<v1::Architecture>(model.value("architecture", "gpt2")).value());
  spec.mutable_model()->set_kv_heads(model.value("kv_heads", 0));
  spec.mutable_model()->set_untied_head(model.value("untied_head", false));
  spec.mutable_model()->set_norm_eps(model.value("norm_eps", 0.0));
  spec.mutable_model()->set_rope_theta(model.value("rope_theta", 0.0));
  spec.mutable_model()->set_norm(plan::Named<v1::NormPlacement>(model.value("norm", ""))
                                     .value_or(v1::NORM_PLACEMENT_UNSPECIFIED));
  spec.mutable_model()->set_token_types(model.value("token_types", 0));
  spec.mutable_model()->set_sentence_order(model.value("sentence_order", false));
  spec.mutable_model()->set_labels(model.value("labels", 0));
  if (model.contains("rope_scaling")) {
    const nlohmann::json& scaling = model["rope_scaling"];
    v1::RopeScaling* rope = spec.mutable_model()->mutable_rope_scaling();
    rope->set_factor(scaling["factor"]);
    rope->set_low_freq_factor(scaling["low_freq_factor"]);
    rope->set_high_freq_factor(scaling["high_freq_factor"]);
    rope->set_original_context(scaling["original_context"]);
  }
  spec.mutable_model()->set_layers(model["layers"]);
  spec.mutable_model()->set_hidden(model["hidden"]);
  spec.mutable_model()->set_heads(model["heads"]);
  spec.mutable_model()->set_ffn_hidden(model["ffn_hidden"]);
  spec.mutable_model()->set_context(model["context"]);
  spec.mutable_model()->set_vocab_size(model["vocab_size"]);
  spec.mutable_model()->set_bias(model["bias"]);
  SetFurther(model, spec.mutable_model());
  if (model.value("packed", false)) spec.mutable_data()->mutable_chat()->set_packing(true);
  const nlohmann::json& training = fixture["training"];
  spec.mutable_training()->set_steps(training["steps"]);
  spec.mutable_training()->set_global_batch(training["global_batch"]);
  spec.mutable_training()->set_seed(training["seed"]);
  spec.mutable_training()->set_clip_grad_norm(training["clip_grad_norm"]);
  v1::OptimizerSpec* optimizer = spec.mutable_training()->mutable_optimizer();
  optimizer->set_name(v1::OPTIMIZER_KIND_ADAMW);
  optimizer->set_learning_rate(training["learning_rate"]);
  optimizer->set_beta1(training["beta1"]);
  optimizer->set_beta2(training["beta2"]);
  optimizer->set_eps(training["eps"]);
  optimizer->set_weight_decay(training["weight_decay"]);
  v1::ScheduleSpec* schedule = spec.mutable_training()->mutable_schedule();
  schedule->set_kind(v1::LEARNING_RATE_SCHEDULE_COSINE);
  schedule->set_warmup_steps(training["warmup_steps"]);
  schedule->set_min_learning_rate(training["min_learning_rate"]);
  schedule->set_decay_steps(training["decay_steps"]);
  return spec;
}

struct Layout {
  int tensor, pipeline, data;
};

// The state before the first step of a fixture that does not begin with Tercio's initial weights.
Tensors StartOf(const Tensors& shapes) {
  Tensors state;
  for (const auto& [name, values] : shapes) {
    state[name] = checkpoint::PublishedValues(name, static_cast<int64_t>(values.size()));
    for (const char* moment : {"adamw.m.", "adamw.v."}) {
      state[moment + name] = std::vector<float>(values.size(), 0);
    }
  }
  return state;
}

// `start` may be empty: the initial weights of the seed.
RunResult Train(v1::JobSpec spec, const Layout& layout, int64_t steps, const Tensors& start) {
  spec.mutable_parallelism()->set_tensor(layout.tensor);
  spec.mutable_parallelism()->set_pipeline(layout.pipeline);
  spec.mutable_parallelism()->set_data(layout.data);
  spec.mutable_parallelism()->set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  spec.mutable_resources()->set_ranks(layout.tensor * layout.pipeline * layout.data);
  spec.mutable_training()->set_micro_batch(2);
  FixtureSource tokens;
  EncoderFixtureSource samples(spec.model().labels());
  DecoderFixtureSource pairs;
  PackedFixtureSource documents;
  RunOptions options;
  options.steps = steps;
  options.source = &tokens;
  if (!start.empty()) options.state = &start;
  if (spec.model().architecture() == v1::ARCHITECTURE_BERT) options.source = &samples;
  if (spec.model().decoder_layers() > 0) options.source = &pairs;
  if (spec.data().has_chat()) options.source = &documents;
  absl::StatusOr<RunResult> result = TrainWithThreads(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult{};
}

// Query, key and value biases of a layer count as one tensor: the key's gradient is rounding noise.
std::string ScaleGroup(const std::string& name) {
  for (const char* part : {"query.bias", "key.bias", "value.bias"}) {
    const size_t at = name.find(std::string("attention.") + part);
    if (at != std::string::npos) return name.substr(0, at) + "attention biases";
  }
  return name;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  const nlohmann::json fixture_ = nlohmann::json::parse(ReadFixture(GetParam() + ".json"));
  const Tensors gradients_ = ReadTensors(GetParam() + ".safetensors");
  const Tensors start_ =
      fixture_.value("start", "") == "published" ? StartOf(gradients_) : Tensors();
};

TEST_P(Golden, GradientsOfTheFirstStepAgreeWithPyTorch) {
  v1::JobSpec spec = JobOf(fixture_);
  spec.mutable_training()->set_clip_grad_norm(0);
  const RunResult result = Train(spec, {1, 1, 1}, 1, start_);
  const Tensors& expected = gradients_;
  std::map<std::string, double> scale;
  for (const auto& [name, values] : expected) {
    double& largest = scale[ScaleGroup(name)];
    for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  }
  // After one step the first moment is (1 - beta1) times the gradient.
  const double factor = 1 - spec.training().optimizer().beta1();
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(result.state.count("adamw.m." + name)) << name;
    const std::vector<float>& moment = result.state.at("adamw.m." + name);
    ASSERT_EQ(moment.size(), values.size()) << name;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::abs(moment[i] / factor - values[i]));
    }
    EXPECT_LE(worst, 1e-5 * scale[ScaleGroup(name)]) << name;
  }
  EXPECT_EQ(result.state.size(), 3 * expected.size());
}

TEST_P(Golden, OneHundredStepsAgreeWithPyTorchInEveryLayout) {
  for (const Layout& layout : {Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2},
                               Layout{2, 2, 1}, Layout{2, 2, 2}}) {
    SCOPED_TRACE(absl::StrCat(layout.tensor, " x ", layout.pipeline, " x ", layout.data));
    const RunResult result = Train(JobOf(fixture_), layout, fixture_["training"]["steps"], start_);
    ASSERT_EQ(result.steps.size(), fixture_["steps"].size());
    for (size_t i = 0; i < result.steps.size(); ++i) {
      const nlohmann::json& expected = fixture_["steps"][i];
      const double loss = expected["loss"];
      const double norm = expected["grad_norm"];
      EXPECT_NEAR(result.steps[i].loss, loss, 1e-4 * loss) << "step " << i + 1;
      EXPECT_NEAR(result.steps[i].grad_norm, norm, 1e-4 * norm) << "step " << i + 1;
      EXPECT_NEAR(result.steps[i].learning_rate, expected["learning_rate"], 1e-9)
          << "step " << i + 1;
    }
  }
}

struct Fixture {
  const char* name;
  v1::Architecture architecture;
};

constexpr Fixture kFixtures[] = {
    {"bias", v1::ARCHITECTURE_GPT2},
    {"no_bias", v1::ARCHITECTURE_GPT2},
    {"llama", v1::ARCHITECTURE_LLAMA},
    {"bert", v1::ARCHITECTURE_BERT},
    {"megatron_bert", v1::ARCHITECTURE_BERT},
    {"bert_classes", v1::ARCHITECTURE_BERT},
    {"opt", v1::ARCHITECTURE_OPT},
    {"gptj", v1::ARCHITECTURE_GPT_J},
    {"gpt_neox", v1::ARCHITECTURE_GPT_NEOX},
    {"gpt_neox_sequential", v1::ARCHITECTURE_GPT_NEOX},
    {"phi", v1::ARCHITECTURE_PHI},
    {"phi3", v1::ARCHITECTURE_PHI3},
    {"qwen2", v1::ARCHITECTURE_QWEN2},
    {"qwen3", v1::ARCHITECTURE_QWEN3},
    {"mistral", v1::ARCHITECTURE_MISTRAL},
    {"gemma2", v1::ARCHITECTURE_GEMMA2},
    {"t5", v1::ARCHITECTURE_T5},
    {"t5_gated", v1::ARCHITECTURE_T5},
    {"gpt2_packed", v1::ARCHITECTURE_GPT2},
    {"llama_packed", v1::ARCHITECTURE_LLAMA},
};

// An architecture has its word as soon as the engine trains it.
std::vector<std::string> TrainedFixtures() {
  std::vector<std::string> names;
  for (const Fixture& fixture : kFixtures) {
    if (plan::IsNamed(fixture.architecture)) names.push_back(fixture.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(TrainedFixtures()));

}  // namespace
}  // namespace tercio::testing
