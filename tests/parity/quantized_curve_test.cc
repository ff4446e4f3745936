// The 100 losses of a small llama over NF4 weights are those of transformers with bitsandbytes'
// Linear4bit (tests/bitsandbytes/make_curve.py, which says what is trained, and by what).
//
// bitsandbytes looks the codes of scales up in a coarse table on CPUs, so that a few of them are
// those of the neighbour: the curves are near each other, and not nearer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "tests/huggingface/published.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

constexpr double kTolerance = 2e-4;

nlohmann::json ReadCurve(const std::string& name) {
  std::ifstream file("tests/bitsandbytes/fixtures/" + name);
  EXPECT_TRUE(file.good());
  return nlohmann::json::parse(
      std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>()));
}

// tokens() of make_curve.py.
class CurveSource : public data::CausalSource {
 public:
  CurveSource(int64_t context, int64_t vocabulary) : context_(context), vocabulary_(vocabulary) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    int64_t token = (7 * step + 13 * sequence) % vocabulary_;
    for (int64_t i = 0; i <= context_; ++i) {
      *out++ = static_cast<int32_t>(token);
      token = (5 * token + 3 + (step + sequence + i) % 2) % vocabulary_;
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 0; }
  void ReadHeldOut(data::HeldOut, int64_t, int32_t*) override {}

 private:
  const int64_t context_;
  const int64_t vocabulary_;
};

v1::JobSpec JobOf(const nlohmann::json& curve) {
  v1::JobSpec spec;
  v1::ModelSpec* model = spec.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_LLAMA);
  model->set_untied_head(true);
  model->set_layers(curve["model"]["layers"]);
  model->set_hidden(curve["model"]["hidden"]);
  model->set_heads(curve["model"]["heads"]);
  model->set_ffn_hidden(curve["model"]["ffn_hidden"]);
  model->set_context(curve["model"]["context"]);
  model->set_vocab_size(curve["model"]["vocab_size"]);
  model->set_norm_eps(curve["model"]["norm_eps"]);
  model->set_rope_theta(curve["model"]["rope_theta"]);
  model->set_base_format(v1::BASE_FORMAT_NF4);
  v1::TrainingSpec* training = spec.mutable_training();
  if (curve.contains("adapter")) {
    v1::AdapterSpec* adapter = model->mutable_adapter();
    adapter->set_kind(v1::ADAPTER_KIND_LORA);
    adapter->set_rank(curve["adapter"]["rank"]);
    adapter->set_alpha(curve["adapter"]["alpha"]);
    adapter->add_targets("all-linear");
  } else {
    for (const char* block : {"attention", "mlp"}) {
      training->add_frozen("layers.*." + std::string(block) + ".*");
    }
  }
  training->set_steps(curve["training"]["steps"]);
  training->set_global_batch(curve["training"]["global_batch"]);
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  v1::OptimizerSpec* optimizer = training->mutable_optimizer();
  optimizer->set_name(v1::OPTIMIZER_KIND_ADAMW);
  optimizer->set_learning_rate(curve["training"]["learning_rate"]);
  optimizer->set_beta1(curve["training"]["beta1"]);
  optimizer->set_beta2(curve["training"]["beta2"]);
  optimizer->set_eps(curve["training"]["eps"]);
  optimizer->set_weight_decay(curve["training"]["weight_decay"]);
  return spec;
}

std::map<std::string, std::vector<float>> WeightsOf(const v1::ModelSpec& model) {
  std::map<std::string, std::vector<float>> weights;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
    std::vector<float> values =
        checkpoint::PublishedValues(tensor.name, tensor.rows * tensor.columns);
    const bool is_a = tensor.name.ends_with(".lora_a");
    const float scale = tensor.is_vector || is_a ? 1.0f : tensor.of_adapter ? 0.1f : 0.25f;
    for (float& value : values) value *= scale;
    weights[tensor.name] = std::move(values);
  }
  return weights;
}

// `learnt`: the share of the first loss that is left of the last at most, so that the test is of
// training.
void ExpectCurve(const std::string& name, double learnt) {
  const nlohmann::json curve = ReadCurve(name);
  v1::JobSpec spec = JobOf(curve);
  const std::map<std::string, std::vector<float>> weights = WeightsOf(spec.model());
  CurveSource source(spec.model().context(), spec.model().vocab_size());
  for (const auto& [tensor, pipeline, data] : {std::array{1, 1, 1}, std::array{2, 2, 2}}) {
    spec.mutable_parallelism()->set_tensor(tensor);
    spec.mutable_parallelism()->set_pipeline(pipeline);
    spec.mutable_parallelism()->set_data(data);
    spec.mutable_parallelism()->set_schedule(k1f1b);
    spec.mutable_resources()->set_ranks(tensor * pipeline * data);
    spec.mutable_training()->set_micro_batch(2);
    RunOptions options;
    options.steps = spec.training().steps();
    options.source = &source;
    options.weights = &weights;
    const absl::StatusOr<RunResult> run = TrainWithThreads(spec, options);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_EQ(run->steps.size(), curve["losses"].size());
    double most = 0;
    for (size_t i = 0; i < run->steps.size(); ++i) {
      const double expected = curve["losses"][i];
      most = std::max(most, std::abs(run->steps[i].loss / expected - 1));
    }
    EXPECT_LT(most, kTolerance) << tensor << "x" << pipeline << "x" << data;
    std::printf("largest relative difference of a loss: %.2e\n", most);
    EXPECT_LT(run->steps.back().loss, learnt * run->steps.front().loss);
  }
}

TEST(QuantizedCurve, IsThatOfTransformersAndBitsandbytes) { ExpectCurve("curve.json", 0.1); }

TEST(QuantizedCurve, AdaptersHaveThatOfPeftAndBitsandbytes) {
  ExpectCurve("qlora_curve.json", 0.8);
}

}  // namespace
}  // namespace tercio::testing
