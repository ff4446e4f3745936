#include "tests/parity/thread_ranks.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <thread>

#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/random.h"
#include "plan/lanes.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"
#include "plan/state_digest.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/state_slices.h"

namespace tercio::testing {
namespace {

using State = std::map<std::string, std::vector<float>>;

int64_t ColumnsOf(const v1::TensorSlice& slice) {
  return slice.shape_size() == 2 ? slice.shape(1) : 1;
}

// Copies between a slice's own row-major values and the whole tensor.
template <typename Copy>
void ForRows(const v1::TensorSlice& slice, const Copy& copy) {
  const int64_t width = slice.column_end() - slice.column_begin();
  for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row) {
    copy(row * ColumnsOf(slice) + slice.column_begin(), (row - slice.row_begin()) * width, width);
  }
}

// All groups of a job: one transport per (group, member).
struct Groups {
  explicit Groups(const v1::Plan& plan) {
    for (const v1::ProcessGroup& group : plan.groups()) {
      transports[group.name()] = collective::CreateThreadTransports(group.size());
    }
  }
  std::map<std::string, std::vector<std::unique_ptr<collective::Transport>>> transports;
};

struct Shared {
  const v1::JobSpec& spec;
  const RunOptions& options;
  const v1::Plan& plan;
  Groups& groups;
  std::mutex mutex;
  RunResult result;
  absl::Status status;
};

absl::Status LoadState(const State& state, engine::TrainingEngine& engine) {
  for (size_t i = 0; i < engine.NeededSlices().size(); ++i) {
    const v1::TensorSlice& slice = engine.NeededSlices()[i];
    if (engine::IsOptionalState(slice.tensor()) && !state.contains(slice.tensor())) continue;
    const std::vector<float>& whole = state.at(slice.tensor());
    std::vector<float> values;
    ForRows(slice, [&](int64_t at, int64_t, int64_t width) {
      values.insert(values.end(), whole.begin() + at, whole.begin() + at + width);
    });
    // In two parts, as large slices come.
    const size_t first = engine::IsOptionalState(slice.tensor()) ? 0 : values.size() / 2;
    const absl::Span<const float> all = values;
    if (first > 0) {
      TERCIO_RETURN_IF_ERROR(engine.Load(static_cast<int64_t>(i), 0, all.first(first)));
    }
    TERCIO_RETURN_IF_ERROR(
        engine.Load(static_cast<int64_t>(i), static_cast<int64_t>(first), all.subspan(first)));
  }
  return absl::OkStatus();
}

absl::Status LoadWeights(const State& weights, engine::LoadTarget& engine) {
  for (size_t i = 0; i < engine.InitialSlices().size(); ++i) {
    const v1::TensorSlice& slice = engine.InitialSlices()[i];
    const auto whole = weights.find(slice.tensor());
    if (whole == weights.end()) continue;
    std::vector<float> values;
    ForRows(slice, [&](int64_t at, int64_t, int64_t width) {
      const auto begin = whole->second.begin() + at;
      values.insert(values.end(), begin, begin + width);
    });
    // In pieces of some rows, as large slices come.
    const auto width = static_cast<size_t>(slice.column_end() - slice.column_begin());
    const size_t most = 7 * width;
    for (size_t at = 0; at < values.size(); at += most) {
      const auto piece = absl::MakeConstSpan(values).subspan(at, most);
      TERCIO_RETURN_IF_ERROR(engine.Load(static_cast<int64_t>(i), static_cast<int64_t>(at), piece));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadCopies(const std::vector<std::vector<float>>& copies,
                        engine::TrainingEngine& engine) {
  TERCIO_CHECK_EQ(copies.size(), engine.NeededSlices().size());
  for (size_t i = 0; i < copies.size(); ++i) {
    TERCIO_RETURN_IF_ERROR(engine.Load(static_cast<int64_t>(i), 0, copies[i]));
  }
  return absl::OkStatus();
}

void SaveState(const engine::TrainingEngine& engine, const engine::StateSnapshot& snapshot,
               State* state) {
  TERCIO_CHECK_EQ(snapshot.saved.size(), engine.SavedSlices().size());
  for (size_t i = 0; i < snapshot.saved.size(); ++i) {
    const v1::TensorSlice& slice = engine.SavedSlices()[i];
    const absl::Span<const float> values = snapshot.saved[i];
    int64_t elements = 1;
    for (const int64_t size : slice.shape()) elements *= size;
    std::vector<float>& whole = (*state)[slice.tensor()];
    whole.resize(static_cast<size_t>(elements));
    ForRows(slice, [&](int64_t to, int64_t from, int64_t width) {
      std::copy_n(values.begin() + from, width, whole.begin() + to);
    });
  }
}

// What a rank computes on and talks through, in the order in which it is made.
struct Equipment {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<Machine::Groups> groups;
  engine::Communicators communicators;
};

absl::StatusOr<Equipment> Equip(int rank, const v1::RankPlan& plan, Shared& shared) {
  const Machine* machine = shared.options.machine;
  Equipment made;
  if (machine != nullptr) {
    TERCIO_ASSIGN_OR_RETURN(made.device, machine->open_device(rank));
    TERCIO_ASSIGN_OR_RETURN(
        made.groups, machine->join(rank, static_cast<int>(shared.plan.ranks_size()), *made.device));
  } else {
    made.device = device::CreateCpuDevice(shared.options.threads_per_rank);
  }
  const auto make = [&](const v1::ProcessGroup& group)
      -> absl::StatusOr<std::unique_ptr<collective::Communicator>> {
    const int index = plan::IndexInGroup(group, rank);
    std::unique_ptr<collective::Transport> transport;
    {
      std::lock_guard<std::mutex> lock(shared.mutex);
      transport = std::move(shared.groups.transports.at(group.name())[static_cast<size_t>(index)]);
    }
    const collective::CommunicatorOptions options = {group.name(), absl::Seconds(60),
                                                     plan::RanksOf(group)};
    auto communicator = collective::CreateCommunicator(options, std::move(transport));
    if (made.groups == nullptr) return communicator;
    return made.groups->Group(std::move(communicator), options, group.kind());
  };
  TERCIO_ASSIGN_OR_RETURN(made.communicators, engine::Communicators::Create(plan, make));
  return made;
}

// The state that the run starts from, where it is not that of the seed.
absl::Status LoadStart(const RunOptions& options, int rank, engine::TrainingEngine& engine) {
  if (options.state != nullptr) TERCIO_RETURN_IF_ERROR(LoadState(*options.state, engine));
  if (options.weights != nullptr) TERCIO_RETURN_IF_ERROR(LoadWeights(*options.weights, engine));
  if (options.copies == nullptr) return absl::OkStatus();
  return LoadCopies(options.copies->at(rank), engine);
}

// Whichever rank comes first, the others have learned the same.
void Learned(const v1::Evaluation& mine, const RunResult& result, v1::Evaluation* all) {
  TERCIO_CHECK(result.stages.size() == 1 || all->SerializeAsString() == mine.SerializeAsString());
  *all = mine;
}

absl::Status RunRank(int rank, Shared& shared) {
  const v1::RankPlan plan = plan::SliceForRank(shared.plan, rank);
  TERCIO_ASSIGN_OR_RETURN(const Equipment equipment, Equip(rank, plan, shared));
  const std::unique_ptr<data::SampleSource> synthetic = SyntheticSourceOf(shared.spec.model());
  data::SampleSource& source =
      shared.options.source == nullptr ? *synthetic : *shared.options.source;
  TERCIO_ASSIGN_OR_RETURN(auto engine,
                          engine::TrainingEngine::Create(
                              shared.spec, plan, *equipment.device, equipment.communicators, source,
                              {.fill_pattern = shared.options.fill_pattern,
                               .scratch_directory = std::filesystem::temp_directory_path()}));
  if (engine->teacher() != nullptr) {
    TERCIO_CHECK(shared.options.teacher != nullptr);
    TERCIO_RETURN_IF_ERROR(LoadWeights(*shared.options.teacher, *engine->teacher()));
  }
  TERCIO_RETURN_IF_ERROR(engine->MeasureReferences(shared.options.first_step - 1));
  TERCIO_RETURN_IF_ERROR(LoadStart(shared.options, rank, *engine));
  std::vector<engine::StepResult> steps;
  steps.reserve(static_cast<size_t>(shared.options.steps));  // tests count a step's allocations
  const bool flips = rank == shared.options.flip_bit_rank ||
                     (shared.options.flip_bit_in_all_groups && plan.placement().data_index() == 0);
  for (int64_t i = 0; i < shared.options.steps; ++i) {
    if (flips && i + 1 == shared.options.steps) engine->FlipBit();
    TERCIO_ASSIGN_OR_RETURN(const engine::StepResult step,
                            engine->Step(shared.options.first_step + i, rank == 0 ? 5.0 : 0.0));
    TERCIO_CHECK_EQ(step.signal, 5.0);
    steps.push_back(step);
    if (shared.options.after_step) shared.options.after_step(rank, shared.options.first_step + i);
  }
  // It waits for weights that are still sent.
  TERCIO_RETURN_IF_ERROR(engine->Snapshot().status());
  const v1::CommunicationBytes sent = equipment.communicators.SentBytes();
  TERCIO_ASSIGN_OR_RETURN(const engine::ReplicaVerdict replicas, engine->CheckReplicas());
  TERCIO_CHECK_EQ(replicas.equal,
                  shared.options.flip_bit_rank < 0 && !shared.options.flip_bit_in_all_groups);
  v1::Evaluation validation;
  v1::Evaluation test;
  if (shared.options.evaluate) {
    TERCIO_ASSIGN_OR_RETURN(validation, engine->Evaluate(data::HeldOut::kValidation));
  }
  if (shared.options.evaluate_test) {
    TERCIO_ASSIGN_OR_RETURN(test, engine->Evaluate(data::HeldOut::kTest));
  }
  TERCIO_ASSIGN_OR_RETURN(const engine::StateSnapshot snapshot, engine->Snapshot());
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, engine->StateDigest());
  std::vector<engine::BufferUse> memory;
  if (shared.options.fill_pattern) {
    TERCIO_ASSIGN_OR_RETURN(memory, engine->HighWaterMarks());
  }
  std::lock_guard<std::mutex> lock(shared.mutex);
  SaveState(*engine, snapshot, &shared.result.state);
  for (const absl::Span<const float> values : snapshot.needed) {
    shared.result.copies[rank].emplace_back(values.begin(), values.end());
  }
  TERCIO_CHECK(shared.result.replicas.equal || shared.result.replicas.text == replicas.text);
  shared.result.replicas = replicas;
  shared.result.state_digest = digest;
  shared.result.holds_what_it_loaded = engine->HoldsWhatItLoaded();
  shared.result.memory[rank] = std::move(memory);
  shared.result.stages[rank] = plan.placement().pipeline_index();
  shared.result.sent[rank] = sent;
  Learned(validation, shared.result, &shared.result.validation);
  Learned(test, shared.result, &shared.result.test);
  shared.result.validation_loss = validation.loss();
  if (rank == 0) shared.result.steps = steps;
  return absl::OkStatus();
}

// By its definition, of whole tensors.
uint64_t DigestOf(const std::map<std::string, std::vector<float>>& state) {
  uint64_t digest = 0;
  for (const auto& [name, values] : state) {
    // What else is training state does not count.
    if (name.rfind("training.", 0) == 0) continue;
    digest += plan::FactorOfTensor(name) * plan::DigestOfElements(values, 0);
  }
  return digest;
}

}  // namespace

std::map<int, std::vector<engine::BufferUse>> UseOfStages(const RunResult& result) {
  std::map<int, std::vector<engine::BufferUse>> stages;
  for (const auto& [rank, buffers] : result.memory) {
    std::vector<engine::BufferUse>& most = stages[result.stages.at(rank)];
    if (most.empty()) most = buffers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      most[i].high_water_bytes = std::max(most[i].high_water_bytes, buffers[i].high_water_bytes);
    }
  }
  return stages;
}

v1::JobSpec SmallJob() {
  v1::JobSpec spec;
  v1::ModelSpec* model = spec.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_GPT2);
  model->set_layers(4);
  model->set_hidden(32);
  model->set_heads(4);
  model->set_ffn_hidden(128);
  model->set_context(24);
  model->set_bias(true);
  model->set_dropout(0.1);
  model->set_vocab_size(61);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_steps(10);
  training->set_global_batch(8);
  training->set_clip_grad_norm(0.5);
  training->set_seed(1337);
  training->mutable_evaluate()->set_batches(1);
  v1::OptimizerSpec* optimizer = training->mutable_optimizer();
  optimizer->set_learning_rate(1e-2);
  optimizer->set_beta1(0.9);
  optimizer->set_beta2(0.95);
  optimizer->set_eps(1e-8);
  optimizer->set_weight_decay(0.1);
  training->mutable_schedule()->set_kind(v1::LEARNING_RATE_SCHEDULE_COSINE);
  training->mutable_schedule()->set_warmup_steps(2);
  training->mutable_schedule()->set_min_learning_rate(1e-3);
  training->mutable_schedule()->set_decay_steps(10);
  return spec;
}

v1::JobSpec SmallLlama() {
  v1::JobSpec spec = SmallJob();
  v1::ModelSpec* model = spec.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_LLAMA);
  model->set_kv_heads(2);
  model->set_ffn_hidden(96);
  model->set_bias(false);
  model->set_untied_head(true);
  model->set_norm_eps(1e-6);
  model->set_rope_theta(500);
  return spec;
}

v1::JobSpec SmallBert(v1::NormPlacement norm) {
  v1::JobSpec spec = SmallJob();
  spec.mutable_model()->set_architecture(v1::ARCHITECTURE_BERT);
  spec.mutable_model()->set_norm(norm);
  spec.mutable_model()->set_token_types(2);
  spec.mutable_model()->set_sentence_order(true);
  return spec;
}

v1::JobSpec SmallClassifier() {
  v1::JobSpec spec = SmallBert(kPost);
  spec.mutable_model()->set_sentence_order(false);
  spec.mutable_model()->set_labels(3);
  return spec;
}

v1::JobSpec SmallT5() {
  v1::JobSpec spec = SmallJob();
  v1::ModelSpec* model = spec.mutable_model();
  model->set_architecture(v1::ARCHITECTURE_T5);
  model->set_layers(2);
  model->set_decoder_layers(2);
  model->set_decoder_context(10);
  model->set_head_dim(6);
  model->set_ffn_hidden(64);
  model->set_relative_buckets(8);
  model->set_relative_distance(12);
  model->set_bias(false);
  return spec;
}

std::unique_ptr<data::SampleSource> SyntheticSourceOf(const v1::ModelSpec& model) {
  if (model.decoder_layers() > 0) return std::make_unique<SyntheticDecoderSource>(model);
  if (model.architecture() == v1::ARCHITECTURE_BERT) {
    return std::make_unique<SyntheticEncoderSource>(model);
  }
  return std::make_unique<SyntheticSource>(model.vocab_size(), model.context());
}

void SyntheticDecoderSource::TrainingSample(int64_t step, int64_t sequence, data::Sample* out) {
  SyntheticSource source(model_.vocab_size(), model_.context());
  std::vector<int32_t> ids(out->inputs.size() + 1);
  source.ReadTraining(step, sequence, ids.data());
  out->inputs.assign(ids.begin(), ids.end() - 1);
  for (size_t i = 0; i < out->targets.size(); ++i) {
    // Every second token, from the end.
    out->targets[i] = out->inputs[out->inputs.size() - 1 - 2 * i % out->inputs.size()];
    out->decoder_inputs[i] = i == 0 ? 0 : out->targets[i - 1];
  }
  out->types.assign(out->inputs.size(), 0);
  out->length = static_cast<int32_t>(out->inputs.size());
  out->label = data::kNoTarget;
}

void SyntheticEncoderSource::TrainingSample(int64_t step, int64_t sequence, data::Sample* out) {
  SyntheticSource source(model_.vocab_size(), model_.context());
  std::vector<int32_t> ids(out->inputs.size() + 1);
  source.ReadTraining(step, sequence, ids.data());
  const uint64_t word = kernels::SplitMix64(static_cast<uint64_t>(step * 977 + sequence));
  const int64_t context = model_.context();
  out->length = static_cast<int32_t>(context - static_cast<int64_t>(word % 8) * context / 16);
  const int64_t classes = std::max(2, model_.labels());
  out->label = static_cast<int32_t>(word / 8 % static_cast<uint64_t>(classes));
  const bool predicts = sequence % 3 != 1;
  for (int64_t i = 0; i < context; ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool masked = predicts && i < out->length && kernels::SplitMix64(word + at) % 5 == 0;
    out->targets[at] = masked ? ids[at] : data::kNoTarget;
    out->inputs[at] = masked ? 3 : i < out->length ? ids[at] : 0;
    out->types[at] = i > context / 2 && i < out->length ? 1 : 0;
  }
}

void SyntheticSource::ReadTraining(int64_t step, int64_t sequence, int32_t* out) {
  for (int i = 0; i <= context_; ++i) {
    const uint64_t word =
        kernels::SplitMix64(static_cast<uint64_t>((step * 4096 + sequence) * 4096 + i));
    // Half of the tokens follow from the one before, so that there is something to learn.
    out[i] = i > 0 && word % 2 == 0
                 ? (out[i - 1] + 1) % vocab_size_
                 : static_cast<int32_t>(word / 2 % static_cast<uint64_t>(vocab_size_));
  }
}

void SyntheticSource::ReadHeldOut(data::HeldOut set, int64_t index, int32_t* out) {
  ReadTraining(StepOf(set), index, out);
}

absl::StatusOr<RunResult> TrainWithThreads(const v1::JobSpec& spec, const RunOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, plan::LayoutOfJob(spec));
  const int world = layout.tensor() * layout.pipeline() * layout.data();
  std::vector<plan::DeviceSlot> slots;
  for (int rank = 0; rank < world; ++rank) slots.push_back({"here", rank});
  TERCIO_ASSIGN_OR_RETURN(v1::Plan plan,
                          plan::BuildPlan(spec, layout, slots, options.threads_per_rank));
  if (options.change_plan) options.change_plan(plan);
  Groups groups(plan);
  Shared shared{spec, options, plan, groups, {}, {}, {}};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([rank, &shared] {
      const absl::Status status = RunRank(rank, shared);
      std::lock_guard<std::mutex> lock(shared.mutex);
      if (shared.status.ok()) shared.status = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  TERCIO_RETURN_IF_ERROR(shared.status);
  // Ranks sum up the digests of their parts.
  TERCIO_CHECK_EQ(shared.result.state_digest, DigestOf(shared.result.state));
  return std::move(shared.result);
}

}  // namespace tercio::testing
