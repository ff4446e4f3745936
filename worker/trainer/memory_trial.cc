#include "worker/trainer/memory_trial.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "plan/memory_map.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"
#include "worker/collective/thread_transport.h"
#include "worker/engine/training_engine.h"
#include "worker/trainer/memory_meter.h"

namespace tercio::trainer {
namespace {

// In the second step the moments are read that the first one has written.
constexpr int64_t kSteps = 2;
constexpr int64_t kTimedSteps = 41;
constexpr char kLibraryBudget[] = "workspace.device";

class TrialSource : public data::CausalSource {
 public:
  explicit TrialSource(const v1::ModelSpec& model) : model_(model) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    for (int64_t i = 0; i <= model_.context(); ++i) {
      // Any ids will do that are spread over the vocabulary.
      out[i] = static_cast<int32_t>((7 * step + 3 * sequence + i * i) % model_.vocab_size());
    }
  }
  int64_t held_out_samples(data::HeldOut) const override { return 1; }
  void ReadHeldOut(data::HeldOut, int64_t index, int32_t* out) override {
    ReadTraining(0, index, out);
  }

 private:
  const v1::ModelSpec& model_;
};

// Everything that a rank does with its memory.
absl::Status Train(engine::TrainingEngine& engine) {
  for (int64_t step = 1; step <= kSteps; ++step) {
    TERCIO_RETURN_IF_ERROR(engine.Step(step, 0).status());
  }
  TERCIO_RETURN_IF_ERROR(engine.CheckReplicas().status());
  TERCIO_RETURN_IF_ERROR(engine.Evaluate(data::HeldOut::kValidation).status());
  return engine.Snapshot().status();
}

nlohmann::json Report(std::vector<engine::BufferUse> buffers, int64_t outside,
                      int64_t most_outside) {
  // Libraries take as much of their budget as they need, which no plan can know.
  std::erase_if(buffers, [](const engine::BufferUse& use) { return use.name == kLibraryBudget; });
  int64_t planned = 0;
  int64_t touched = 0;
  for (const engine::BufferUse& buffer : buffers) {
    planned += buffer.planned_bytes;
    touched += buffer.high_water_bytes;
  }
  const std::vector<std::string> unused =
      absl::StrSplit(engine::UnusedText(buffers), '\n', absl::SkipEmpty());
  return {{"buffers", buffers.size()}, {"planned_bytes", planned},
          {"touched_bytes", touched},  {"unused", unused},
          {"outside_bytes", outside},  {"most_outside_bytes", most_outside}};
}

}  // namespace

// The model is small, so that the trial takes a moment on any device.
// What counts is that every buffer of its plan is used to its end.
v1::JobSpec TrialJob(v1::DeviceKind kind) {
  v1::JobSpec job;
  job.mutable_resources()->set_device(kind);
  job.mutable_resources()->set_ranks(1);
  v1::ModelSpec* model = job.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(1);
  model->set_hidden(32);
  model->set_heads(2);
  model->set_ffn_hidden(64);
  model->set_context(32);
  model->set_vocab_size(96);
  model->set_bias(true);
  v1::TrainingSpec* training = job.mutable_training();
  training->set_steps(kSteps);
  // Four sequences are four lanes, which use every gradient buffer.
  training->set_global_batch(4);
  training->set_micro_batch(2);
  // A job in 16 bits has a rounded copy of the weights, which one in fp32 lacks.
  training->set_precision(v1::PRECISION_BF16);
  training->set_seed(1);
  training->mutable_optimizer()->set_learning_rate(1e-3);
  training->mutable_optimizer()->set_beta1(0.9);
  training->mutable_optimizer()->set_beta2(0.95);
  training->mutable_optimizer()->set_eps(1e-8);
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_CONSTANT);
  v1::ParallelismSpec* parallelism = job.mutable_parallelism();
  parallelism->set_tensor(1);
  parallelism->set_pipeline(1);
  parallelism->set_data(1);
  return job;
}

namespace {

absl::Status WithTrialEngine(device::Device& device, const v1::JobSpec& job,
                             const CommunicatorAdapter& adapt, int threads, bool fill_pattern,
                             absl::FunctionRef<absl::Status(engine::TrainingEngine&)> body) {
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(job));
  TERCIO_ASSIGN_OR_RETURN(const v1::Plan whole,
                          plan::BuildPlan(job, layout, {{"here", 0}}, threads));
  const v1::RankPlan plan = plan::SliceForRank(whole, 0);
  TERCIO_ASSIGN_OR_RETURN(const engine::Communicators communicators,
                          engine::Communicators::Create(
                              plan,
                              [&](const v1::ProcessGroup& group)
                                  -> absl::StatusOr<std::unique_ptr<collective::Communicator>> {
                                auto alone = collective::CreateCommunicator(
                                    {group.name(), absl::Seconds(60)},
                                    std::move(collective::CreateThreadTransports(1).front()));
                                // A GPU's streams need a communicator that takes memory of the GPU.
                                return adapt ? adapt(std::move(alone)) : std::move(alone);
                              }));
  TrialSource source(job.model());
  TERCIO_ASSIGN_OR_RETURN(const auto engine,
                          engine::TrainingEngine::Create(job, plan, device, communicators, source,
                                                         {.fill_pattern = fill_pattern}));
  return body(*engine);
}

}  // namespace

absl::StatusOr<nlohmann::json> TryMemoryPlan(device::Device& device, const v1::JobSpec& job,
                                             const CommunicatorAdapter& adapt) {
  // What is in use before this counts for others.
  MemoryMeter meter(device);
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(job));
  std::vector<engine::BufferUse> buffers;
  const absl::Status trained =
      WithTrialEngine(device, job, adapt, /*threads=*/1, /*fill_pattern=*/true,
                      [&](engine::TrainingEngine& engine) -> absl::Status {
                        TERCIO_RETURN_IF_ERROR(Train(engine));
                        // This comes before the arena is copied to the host, which takes memory as
                        // well.
                        meter.MeasureAll(engine);
                        TERCIO_ASSIGN_OR_RETURN(buffers, engine.HighWaterMarks());
                        return absl::OkStatus();
                      });
  TERCIO_RETURN_IF_ERROR(trained);
  return Report(std::move(buffers), meter.outside_bytes(), plan::MostBytesOutside(job, layout, 0));
}

absl::StatusOr<double> SecondsOfTrialStep(device::Device& device, const v1::JobSpec& job,
                                          const CommunicatorAdapter& adapt, int threads,
                                          const std::function<absl::Time()>& now) {
  std::vector<double> seconds;
  const absl::Status timed =
      WithTrialEngine(device, job, adapt, threads, /*fill_pattern=*/false,
                      [&](engine::TrainingEngine& engine) -> absl::Status {
                        for (int64_t step = 1; step <= kTimedSteps; ++step) {
                          const absl::Time begin = now();
                          TERCIO_RETURN_IF_ERROR(engine.Step(step, 0).status());
                          seconds.push_back(absl::ToDoubleSeconds(now() - begin));
                        }
                        return absl::OkStatus();
                      });
  TERCIO_RETURN_IF_ERROR(timed);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace tercio::trainer
