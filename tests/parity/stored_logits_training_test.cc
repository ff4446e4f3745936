// A student that learns from logits which its teacher has left, with ranks as threads: equal bits
// in many layouts, the losses of a teacher in the job where all logits are stored, those of a
// reference in double where only some are, and memory as planned.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/logits/reader.h"
#include "checkpoint/weight_source.h"
#include "common/temp_dir.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"
#include "worker/engine/memory_use.h"
#include "worker/inference/stored_logits.h"
#include "worker/inference/teacher_pass.h"
#include "worker/trainer/samples_of_rank.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;
using ::testing::HasSubstr;

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};
constexpr double kTemperature = 2;

// Whole tensors in memory.
class StateSource : public checkpoint::WeightSource {
 public:
  StateSource(v1::ModelSpec model, const State& state) : model_(std::move(model)), state_(state) {}

  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override {
    return absl::NotFoundError("no tokenizer");
  }
  bool Has(const std::string& tensor) const override { return state_.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override {
    const std::vector<float>& values = state_.at(slice.tensor());
    const int64_t columns = slice.shape_size() > 1 ? slice.shape(1) : 1;
    for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row) {
      out = std::copy(values.begin() + row * columns + slice.column_begin(),
                      values.begin() + row * columns + slice.column_end(), out);
    }
    return absl::OkStatus();
  }

 private:
  const v1::ModelSpec model_;
  const State& state_;
};

inference::OpenedModel Opened(const v1::ModelSpec& model, const State& state) {
  inference::OpenedModel opened;
  opened.directory = "teacher";
  opened.weights = std::make_unique<StateSource>(model, state);
  return opened;
}

v1::ModelSpec TeacherModel() {
  v1::ModelSpec model = SmallLlama().model();
  model.set_layers(3);
  model.set_hidden(48);
  model.set_dropout(0);
  return model;
}

// A teacher that was trained for some steps: its distributions are not flat.
const State& TeacherWeights() {
  static const State* const weights = [] {
    v1::JobSpec spec = SmallLlama();
    *spec.mutable_model() = TeacherModel();
    return new State(Train(spec, kOneRank, {.steps = 10}).state);
  }();
  return *weights;
}

class StoredLogitsTraining : public ::testing::Test {
 protected:
  StoredLogitsTraining() : job_(SmallJob()) {
    job_.mutable_model()->set_dropout(0);
    v1::TrainingSpec* training = job_.mutable_training();
    training->set_objective(v1::TRAINING_OBJECTIVE_DISTILL);
    training->mutable_distillation()->set_temperature(kTemperature);
    training->mutable_distillation()->set_weight(0.6);
    training->mutable_distillation()->set_direction(v1::DISTILLATION_DIRECTION_FORWARD);
    const auto tokens = [&](int64_t count, int64_t factor) {
      auto ids = std::make_shared<std::vector<int32_t>>();
      for (int64_t i = 0; i < count; ++i) {
        ids->push_back(static_cast<int32_t>((i * factor + i * i) % job_.model().vocab_size()));
      }
      return data::TokenDataset(ids, ids->data(), data::TokenType::kInt32, count);
    };
    const int64_t context = job_.model().context();
    data_.vocab_size = job_.model().vocab_size();
    data_.digest = "0123";
    // Fewer samples than three steps read, so that an epoch ends among them.
    data_.train = data::BlendedDataset({tokens(13 * context + 1, 7)}, *data::Blend::Create({1.0}));
    data_.validation =
        data::BlendedDataset({tokens(5 * context + 1, 3)}, *data::Blend::Create({1.0}));
    data_.numbered = {13, 5};
  }

  // The job with the k largest logits of the teacher, and the samples with these.
  v1::JobSpec WithLogits(int64_t k) {
    v1::JobSpec job = job_;
    const std::string directory = absl::StrCat(directory_.path(), "/", k);
    job.mutable_training()->mutable_distillation()->set_logits(directory);
    job.mutable_training()->mutable_distillation()->set_top_k(static_cast<int32_t>(k));
    const auto report = inference::WriteLogits(Opened(TeacherModel(), TeacherWeights()), job, data_,
                                               {.directory = directory, .k = k});
    EXPECT_TRUE(report.ok()) << report.status();
    data::PreparedData checked = data_;
    const absl::Status status = inference::CheckStoredLogits(job, &checked);
    EXPECT_TRUE(status.ok()) << status;
    auto source = trainer::WithStoredLogits(data::MakeSampleSource(data_, job), directory);
    EXPECT_TRUE(source.ok()) << source.status();
    source_ = *std::move(source);
    return job;
  }

  RunResult TrainWithLogits(const v1::JobSpec& job, const Case& c, RunOptions options) const {
    options.source = source_.get();
    return Train(job, c, options);
  }

  const TempDir directory_;
  v1::JobSpec job_;
  data::PreparedData data_;
  std::unique_ptr<data::SampleSource> source_;
};

// Sums over a tensor group have orders of their own: the layouts of a table are compared with each
// other.
std::vector<std::vector<Case>> Tables() {
  return {{kOneRank,
           {1, 2, 1, 2, 1, k1f1b},
           {1, 1, 2, 4, 1, kGpipe},
           {1, 2, 2, 2, 1, k1f1b, kFull},
           {1, 2, 1, 2, 1, kInterleaved, kNone, 2}},
          {{2, 1, 1, 8, 1, k1f1b}, {2, 2, 2, 2, 1, k1f1b}},
          {{2, 1, 1, 2, 1, k1f1b, kNone, 1, true}, {2, 2, 2, 2, 1, k1f1b, kFull, 1, true}}};
}

TEST_F(StoredLogitsTraining, LayoutsHaveTheSameBits) {
  const v1::JobSpec job = WithLogits(7);
  std::vector<double> losses;
  for (const std::vector<Case>& table : Tables()) {
    const RunOptions options = {.steps = 3, .evaluate = true};
    const RunResult first = TrainWithLogits(job, table.front(), options);
    ASSERT_EQ(first.steps.size(), 3);
    losses.push_back(first.steps.back().loss);
    EXPECT_NEAR(losses.back(), losses.front(), 1e-4);
    for (size_t i = 1; i < table.size(); ++i) {
      SCOPED_TRACE(NameOf(table[i]));
      const RunResult other = TrainWithLogits(job, table[i], options);
      ExpectSameBits(first, other);
      EXPECT_EQ(first.validation.figures().SerializeAsString(),
                other.validation.figures().SerializeAsString());
    }
  }
}

TEST_F(StoredLogitsTraining, AllLogitsAreTheTeacherItself) {
  v1::JobSpec with_teacher = job_;
  with_teacher.mutable_training()->mutable_distillation()->set_teacher("teacher");
  *with_teacher.mutable_training()->mutable_distillation()->mutable_model() = TeacherModel();
  const auto source = data::MakeSampleSource(data_, with_teacher);
  const v1::JobSpec job = WithLogits(job_.model().vocab_size());
  for (const Case& c : {kOneRank, Case{2, 2, 1, 4, 1, k1f1b}}) {
    SCOPED_TRACE(NameOf(c));
    RunOptions options = {.steps = 4, .evaluate = true, .source = source.get()};
    options.teacher = &TeacherWeights();
    const RunResult expected = Train(with_teacher, c, options);
    options.teacher = nullptr;
    const RunResult actual = TrainWithLogits(job, c, options);
    ASSERT_EQ(expected.steps.size(), 4);
    ASSERT_EQ(actual.steps.size(), 4);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(actual.steps[i].loss, expected.steps[i].loss, 1e-5);
      EXPECT_NEAR(actual.steps[i].figures->teacher_divergence(),
                  expected.steps[i].figures->teacher_divergence(), 1e-5);
    }
    EXPECT_NEAR(actual.validation.loss(), expected.validation.loss(), 1e-5);
  }
}

// KL(p, q) of a row at a temperature: p over the stored pairs alone, q over all logits of the
// student.
double Divergence(absl::Span<const int32_t> ids, absl::Span<const float> teacher,
                  const std::map<int32_t, double>& student) {
  double teacher_sum = 0;
  double student_sum = 0;
  for (const float logit : teacher) teacher_sum += std::exp(logit / kTemperature);
  for (const auto& [id, logit] : student) student_sum += std::exp(logit / kTemperature);
  double divergence = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double p = std::exp(teacher[i] / kTemperature) / teacher_sum;
    const double q = std::exp(student.at(ids[i]) / kTemperature) / student_sum;
    divergence += p * std::log(p / q);
  }
  return divergence;
}

TEST_F(StoredLogitsTraining, TheDivergenceIsThatOfTheRenormalisedTeacher) {
  constexpr int64_t kTopK = 5;
  const v1::JobSpec job = WithLogits(kTopK);
  const RunResult result = TrainWithLogits(job, {2, 1, 1, 8, 1, k1f1b}, {.steps = 1});
  ASSERT_EQ(result.steps.size(), 1);
  const State start = TrainWithLogits(job, kOneRank, {.steps = 0}).state;
  const int64_t vocabulary = job.model().vocab_size();
  const auto student = inference::TeacherPass::Load(Opened(job.model(), start), 1,
                                                    job.model().context(), vocabulary);
  ASSERT_TRUE(student.ok()) << student.status();
  double sum = 0;
  int64_t rows = 0;
  std::vector<inference::LargestLogits> all;
  data::Sample sample(job.model().context());
  for (int64_t i = 0; i < job.training().global_batch(); ++i) {
    source_->TrainingSample(1, i, &sample);
    ASSERT_TRUE((*student)->Run({sample}, &all).ok());
    for (int64_t row = 0; row < job.model().context(); ++row, ++rows) {
      std::map<int32_t, double> logits;
      for (int64_t at = row * vocabulary; at < (row + 1) * vocabulary; ++at) {
        logits[all[0].ids[static_cast<size_t>(at)]] = all[0].logits[static_cast<size_t>(at)];
      }
      const auto pairs = static_cast<size_t>(row * kTopK);
      sum += Divergence(absl::MakeConstSpan(sample.teacher_ids).subspan(pairs, kTopK),
                        absl::MakeConstSpan(sample.teacher_logits).subspan(pairs, kTopK), logits);
    }
  }
  EXPECT_NEAR(result.steps[0].figures->teacher_divergence(), sum / static_cast<double>(rows), 1e-5);
}

TEST_F(StoredLogitsTraining, UsesTheMemoryThatIsPlanned) {
  const v1::JobSpec job = WithLogits(7);
  for (const Case& c : {kOneRank, Case{2, 2, 1, 2, 1, k1f1b}}) {
    SCOPED_TRACE(NameOf(c));
    const RunResult result =
        TrainWithLogits(job, c, {.steps = 2, .evaluate = true, .fill_pattern = true});
    ASSERT_FALSE(result.memory.empty());
    for (const auto& [stage, buffers] : UseOfStages(result)) {
      EXPECT_EQ(engine::UnusedText(buffers), "") << "stage " << stage;
    }
  }
}

TEST_F(StoredLogitsTraining, TheReverseDirectionIsRefused) {
  v1::JobSpec job = job_;
  job.mutable_training()->mutable_distillation()->set_logits("logits");
  job.mutable_training()->mutable_distillation()->set_top_k(7);
  job.mutable_training()->mutable_distillation()->set_direction(v1::DISTILLATION_DIRECTION_REVERSE);
  EXPECT_THAT(TrainWithThreads(job, {}).status().message(),
              HasSubstr("direction: reverse needs all logits of the teacher"));
}

}  // namespace
}  // namespace tercio::testing
