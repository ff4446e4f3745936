// Curves of a published model that learns from another one, beside those of PyTorch in double
// precision (tests/distillation/make_distillation_fixtures.py), in many layouts.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/model_description.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;

std::string FolderOf(const std::string& name) { return "tests/huggingface/fixtures/" + name; }

// The batches of make_distillation_fixtures.py.
class CurveSource : public data::CausalSource {
 public:
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    for (int64_t i = 0; i <= 16; ++i) {
      out[i] = static_cast<int32_t>((7 * sequence + 3 * (step % 5) + (sequence + 1) * i) % 40);
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 8; }
  void ReadHeldOut(data::HeldOut, int64_t index, int32_t* out) override {
    ReadTraining(1, index, out);
  }
};

v1::JobSpec CurveJob(const nlohmann::json& curve) {
  v1::JobSpec spec = SmallJob();
  *spec.mutable_model() = *checkpoint::DescribeModel(FolderOf("gpt2"));
  spec.mutable_model()->set_context(16);
  spec.mutable_model()->set_dropout(0);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_steps(100);
  training->set_clip_grad_norm(1);
  training->mutable_optimizer()->set_learning_rate(0.003);
  training->mutable_schedule()->Clear();
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  training->set_objective(v1::TRAINING_OBJECTIVE_DISTILL);
  v1::DistillationSpec* distillation = training->mutable_distillation();
  distillation->set_teacher(FolderOf("llama_bf16"));
  *distillation->mutable_model() = *checkpoint::DescribeModel(FolderOf("llama_bf16"));
  distillation->set_temperature(curve["temperature"]);
  distillation->set_weight(curve["weight"]);
  distillation->set_direction(curve["reverse"].get<bool>() ? v1::DISTILLATION_DIRECTION_REVERSE
                                                           : v1::DISTILLATION_DIRECTION_FORWARD);
  return spec;
}

// The weights of a published model; `model` may have a shorter context.
State WeightsOf(const std::string& name, const v1::ModelSpec& model) {
  const auto source = checkpoint::OpenWeightSource(FolderOf(name), checkpoint::DigestCheck::kNone);
  EXPECT_TRUE(source.ok()) << source.status();
  State state;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    std::vector<float>& values = state[tensor.name];
    values.resize(static_cast<size_t>(tensor.rows * tensor.columns));
    EXPECT_EQ(checkpoint::ReadSliceFor(**source, slice, values.data()), absl::OkStatus());
  }
  return state;
}

TEST(Distillation, CurvesArePyTorchsInEveryLayout) {
  const auto curves = nlohmann::json::parse(*ReadFile("tests/distillation/fixtures/curves.json"));
  for (const nlohmann::json& curve : curves) {
    const v1::JobSpec spec = CurveJob(curve);
    const State start = WeightsOf("gpt2", spec.model());
    const State teacher = WeightsOf("llama_bf16", spec.training().distillation().model());
    Case shards = {1, 1, 4, 1, 1, k1f1b, kFull};
    shards.zero_stage = 3;
    for (const Case& c :
         {Case{1, 1, 1, 8, 1, k1f1b}, Case{1, 2, 2, 2, 1, k1f1b}, shards,
          Case{2, 2, 2, 1, 1, k1f1b}, Case{2, 1, 2, 4, 1, k1f1b, kSelective, 1, true}}) {
      SCOPED_TRACE(absl::StrCat(curve["reverse"].get<bool>() ? "reverse " : "forward ", NameOf(c)));
      CurveSource source;
      RunOptions options;
      options.steps = 100;
      options.weights = &start;
      options.teacher = &teacher;
      options.source = &source;
      const RunResult result = Train(spec, c, options);
      ASSERT_EQ(result.steps.size(), curve["losses"].size());
      double largest = 0;
      for (size_t i = 0; i < result.steps.size(); ++i) {
        const engine::StepResult& step = result.steps[i];
        for (const auto& [ours, key] :
             {std::pair(step.loss, "losses"),
              std::pair(step.figures->teacher_divergence(), "divergences"),
              std::pair(step.figures->cross_entropy(), "cross_entropies")}) {
          largest = std::max(largest, std::abs(ours - curve[key][i].get<double>()));
        }
      }
      EXPECT_LT(largest, 1e-4);
    }
  }
}

}  // namespace
}  // namespace tercio::testing
