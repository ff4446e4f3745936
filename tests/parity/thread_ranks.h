// Trains a job with all its ranks as threads of this process: any layout, no sockets.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio::testing {

// What each rank holds of itself: values of its NeededSlices.
using RankCopies = std::map<int, std::vector<std::vector<float>>>;

// What ranks compute on and how they talk, where that is not the CPU over threads.
struct Machine {
  std::function<absl::StatusOr<std::unique_ptr<device::Device>>(int rank)> open_device;
  // Made by each rank, which asks it for its communicators, of all kinds in the same order. It ends
  // after them, before the device.
  class Groups {
   public:
    virtual ~Groups() = default;
    // `over_host` takes memory of the host; `options` are those it was made with. Null as in
    // worker/trainer/backend.h.
    virtual absl::StatusOr<std::unique_ptr<collective::Communicator>> Group(
        std::unique_ptr<collective::Communicator> over_host,
        const collective::CommunicatorOptions& options, v1::GroupKind kind) = 0;
  };
  std::function<absl::StatusOr<std::unique_ptr<Groups>>(int rank, int world_size,
                                                        device::Device& device)>
      join;
};

struct RunOptions {
  int64_t steps = 3;
  const Machine* machine = nullptr;
  int threads_per_rank = 1;
  bool evaluate = false;
  bool evaluate_test = false;  // test data, after validation data
  // Start from this state instead of the initial weights, at step first_step.
  const std::map<std::string, std::vector<float>>* state = nullptr;
  // Or from these weights of a model, which may be some of them: what is quantised is so as it is
  // loaded.
  const std::map<std::string, std::vector<float>>* weights = nullptr;
  // The weights of the teacher that the job learns from.
  const std::map<std::string, std::vector<float>>* teacher = nullptr;
  // Or from these: the same layout, of a job that keeps copies of snapshots.
  const RankCopies* copies = nullptr;
  int64_t first_step = 1;
  // Where the tokens come from; null: SyntheticSource. Ranks share it: ReadTraining must be safe
  // to call from several threads.
  data::SampleSource* source = nullptr;
  // A bit of this rank's weights turns over before the last step, or, with flip_bit_in_all_groups,
  // one of the first rank of each group of replicas.
  int flip_bit_rank = -1;
  bool flip_bit_in_all_groups = false;
  // The arenas begin with the pattern of worker/engine/memory_use.h, and RunResult::memory is
  // known.
  bool fill_pattern = false;
  // Changes the plan of the job before ranks get theirs; null: it stays as it is.
  std::function<void(v1::Plan&)> change_plan;
  // Called by each rank after each of its steps, with the number of it; may be null.
  std::function<void(int rank, int64_t step)> after_step;
};

struct RunResult {
  std::vector<engine::StepResult> steps;
  double validation_loss = 0;
  v1::Evaluation validation;  // these two are the same on every rank
  v1::Evaluation test;
  engine::ReplicaVerdict replicas;  // after the last step; the same on every rank
  // Every logical tensor and its moments, whole, by the names of checkpoints.
  std::map<std::string, std::vector<float>> state;
  bool holds_what_it_loaded = true;  // the same on every rank
  uint64_t state_digest = 0;         // that of `state`, as every rank has learned it
  RankCopies copies;                 // for jobs that keep copies of snapshots
  // What each rank has used of its memory, by rank.
  std::map<int, std::vector<engine::BufferUse>> memory;
  std::map<int, int> stages;                   // the pipeline stage of each rank
  std::map<int, v1::CommunicationBytes> sent;  // in the steps, by rank
};

// The memory table is one for all ranks of a stage, with the most that one of them needs: a stage's
// use of a buffer, by stage, is that of the rank that uses most of it.
std::map<int, std::vector<engine::BufferUse>> UseOfStages(const RunResult& result);

// Short names for tables of models and layouts.
inline constexpr v1::NormPlacement kPost = v1::NORM_PLACEMENT_POST;
inline constexpr v1::NormPlacement kPre = v1::NORM_PLACEMENT_PRE;
inline constexpr v1::PipelineSchedule kGpipe = v1::PIPELINE_SCHEDULE_GPIPE;
inline constexpr v1::PipelineSchedule k1f1b = v1::PIPELINE_SCHEDULE_1F1B;
inline constexpr v1::PipelineSchedule kInterleaved = v1::PIPELINE_SCHEDULE_INTERLEAVED;
inline constexpr v1::Recompute kNone = v1::RECOMPUTE_NONE;
inline constexpr v1::Recompute kSelective = v1::RECOMPUTE_SELECTIVE;
inline constexpr v1::Recompute kFull = v1::RECOMPUTE_FULL;

// A small model and batch; tests change what they are about.
v1::JobSpec SmallJob();
// The same as a llama: grouped queries, rotary positions, gated feed-forward, a head of its own.
v1::JobSpec SmallLlama();

// A masked language model with sentence order.
v1::JobSpec SmallBert(v1::NormPlacement norm);
// A classifier of whole sequences with three classes.
v1::JobSpec SmallClassifier();
v1::JobSpec SmallT5();

// Samples that suit the model.
std::unique_ptr<data::SampleSource> SyntheticSourceOf(const v1::ModelSpec& model);

// INVALID_ARGUMENT when the layout in spec.parallelism is impossible, else what the engine said.
absl::StatusOr<RunResult> TrainWithThreads(const v1::JobSpec& spec, const RunOptions& options);

// The step whose samples stand for held-out ones: beyond those that tests train.
inline int64_t StepOf(data::HeldOut set) { return set == data::HeldOut::kTest ? 1 << 21 : 1 << 20; }
// Neither fills up the last of its batches.
inline int64_t SyntheticSamples(data::HeldOut set) { return set == data::HeldOut::kTest ? 19 : 7; }

// Tokens that look random, but are a function of (step, sequence, position).
class SyntheticSource : public data::CausalSource {
 public:
  SyntheticSource(int vocab_size, int context) : vocab_size_(vocab_size), context_(context) {}
  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override;
  int64_t held_out_samples(data::HeldOut set) const override { return SyntheticSamples(set); }
  void ReadHeldOut(data::HeldOut set, int64_t index, int32_t* out) override;

 private:
  int vocab_size_;
  int context_;
};

// Samples of a bert, as a function of (step, sequence): of several lengths, with masked tokens, of
// which a sequence may have none, segments and labels.
class SyntheticEncoderSource : public data::SampleSource {
 public:
  explicit SyntheticEncoderSource(const v1::ModelSpec& model) : model_(model) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override;
  int64_t held_out_samples(data::HeldOut set) const override { return SyntheticSamples(set); }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    TrainingSample(StepOf(set), index, out);
  }

 private:
  const v1::ModelSpec model_;
};

// For a model with an encoder and a decoder, which repeats a part of what the encoder has read.
class SyntheticDecoderSource : public data::SampleSource {
 public:
  explicit SyntheticDecoderSource(const v1::ModelSpec& model) : model_(model) {}
  void TrainingSample(int64_t step, int64_t sequence, data::Sample* out) override;
  int64_t held_out_samples(data::HeldOut set) const override { return SyntheticSamples(set); }
  void HeldOutSample(data::HeldOut set, int64_t index, data::Sample* out) override {
    TrainingSample(StepOf(set), index, out);
  }

 private:
  const v1::ModelSpec model_;
};

}  // namespace tercio::testing
