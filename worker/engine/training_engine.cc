#include "worker/engine/training_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "plan/base_format.h"
#include "plan/distillation.h"
#include "plan/lanes.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/preference.h"
#include "plan/program.h"
#include "plan/snapshots.h"
#include "plan/state_shards.h"
#include "plan/token_buffers.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/engine/arena.h"
#include "worker/engine/gradient_rounds.h"
#include "worker/engine/held_out_evaluation.h"
#include "worker/engine/initialization.h"
#include "worker/engine/packed_exchange.h"
#include "worker/engine/pages_ahead.h"
#include "worker/engine/pipeline_links.h"
#include "worker/engine/program_executor.h"
#include "worker/engine/promises.h"
#include "worker/engine/quantized_base.h"
#include "worker/engine/rank_batch.h"
#include "worker/engine/reference_pass.h"
#include "worker/engine/repeated_steps.h"
#include "worker/engine/stage_model.h"
#include "worker/engine/staged_copy.h"
#include "worker/engine/state_digest.h"
#include "worker/engine/state_parts.h"
#include "worker/engine/state_slices.h"
#include "worker/engine/state_store.h"
#include "worker/engine/step_judge.h"
#include "worker/engine/step_trace.h"
#include "worker/engine/stored_teacher.h"
#include "worker/engine/stream_links.h"
#include "worker/engine/teacher.h"
#include "worker/engine/weight_gather.h"
#include "worker/engine/weight_update.h"

namespace tercio::engine {
namespace {

using blocks::GradientLanes;

std::vector<v1::Action> ActionsOf(const v1::RankPlan& plan) {
  return {plan.stage().actions().begin(), plan.stage().actions().end()};
}

std::vector<device::Event*> Pointers(const std::vector<std::unique_ptr<device::Event>>& events) {
  std::vector<device::Event*> pointers;
  for (const auto& event : events) pointers.push_back(event.get());
  return pointers;
}

class Engine : public TrainingEngine {
 public:
  // The engine's memory, streams and events; the arena is destroyed last.
  struct Machine {
    Arena arena;
    std::unique_ptr<device::Stream> compute;
    std::unique_ptr<device::Stream> communication;
    std::unique_ptr<device::Stream> gradient_sums;  // null: they run on `communication`, too
    std::unique_ptr<device::Event> bucket_ready;
    std::unique_ptr<device::Event> updated;
    std::array<std::unique_ptr<device::Event>, 2> summed;
    std::vector<std::unique_ptr<device::Event>> gathered;
    // For sums over tensor ranks beside products.
    std::unique_ptr<device::Stream> tensor_sums;
    std::unique_ptr<device::Event> product_done;
    plan::Program program;
  };

  Engine(const v1::JobSpec& spec, const v1::RankPlan& plan, const Communicators& communicators,
         data::SampleSource& source, Machine machine, EngineOptions options)
      : spec_(spec),
        precision_(plan::PrecisionOf(spec)),
        plan_(plan),
        communicators_(communicators),
        where_(options.whereabouts != nullptr ? *options.whereabouts : nowhere_),
        source_(source),
        arena_(std::move(machine.arena)),
        compute_(std::move(machine.compute)),
        communication_(std::move(machine.communication)),
        gradient_sums_(std::move(machine.gradient_sums)),
        bucket_ready_(std::move(machine.bucket_ready)),
        updated_(std::move(machine.updated)),
        summed_(std::move(machine.summed)),
        gathered_(std::move(machine.gathered)),
        program_(std::move(machine.program)),
        repeated_steps_(RepeatedSteps(spec, plan.layout(), program_)),
        tensor_sums_(std::move(machine.tensor_sums)),
        product_done_(std::move(machine.product_done)),
        shape_(plan::ShapeOfStage(spec, plan.layout(), stage())),
        tensors_(plan::TensorsOfStage(spec, plan.layout(), stage())),
        shards_(plan::ShardsOfRank(spec, plan, tensors_)),
        model_(spec, plan, shards_.of_model, arena_, *compute_, communicators.tensor(),
               blocks::OverlappedSums{tensor_sums_.get(), product_done_.get(), &where_}),
        batch_(spec_, plan_, shape_, arena_, communicators_, *compute_),
        lanes_(arena_, plan, tensors_, shape_.sequences_per_rank, plan::GradientFormatOf(spec)),
        links_(communicators.pipeline(), *compute_),
        streams_(plan_, shape_, model_, links_),
        store_(tensors_, shards_, arena_),
        guard_(spec),
        judge_(spec_, plan_, guard_),
        compared_(ComparedTensors(shards_)),
        replicas_(plan_, compared_, arena_.Get<double>("replica_exchange"), communicators),
        packed_(shards_, tensors_, plan::WeightFormatOf(spec), plan::GradientFormatOf(spec), arena_,
                communicators_.shard(), communicators_.sums()),
        rounds_(
            spec_, plan_, shape_, tensors_, shards_, lanes_, packed_, arena_, communicators_,
            links_,
            GradientRounds::Streams{*compute_,
                                    gradient_sums_ != nullptr ? *gradient_sums_ : *communication_,
                                    *bucket_ready_,
                                    {summed_[0].get(), summed_[1].get()}},
            trace_, where_),
        gather_(shards_,
                WeightGather::Weights{
                    arena_.ValuesOf(WeightsName(), precision_), arena_.Floats("parameters"),
                    arena_.Floats(NearName("parameters")),
                    arena_.ValuesOf(shards_.frozen_buffer, shards_.frozen_precision),
                    arena_.ValuesOf("parameters.secondary", precision_)},
                WeightGather::Groups{communicators_.shard(), communicators_.secondary()}, packed_,
                arena_,
                WeightGather::Streams{*compute_, *communication_, *updated_, Pointers(gathered_)},
                trace_, where_),
        executor_(plan_, shape_,
                  {arena_.ValuesOf("gradient_flow.0", precision_),
                   arena_.ValuesOf("gradient_flow.1", precision_)},
                  ProgramExecutor::Parts{model_, batch_, streams_, links_, lanes_, rounds_, gather_,
                                         *compute_, trace_, where_}),
        staged_(arena_, *compute_),
        teacher_(MakeTeacher()),
        evaluation_(spec_, plan_, shape_, source_, model_, batch_, executor_, links_,
                    communicators_, *compute_, where_, teacher_.get()),
        base_(tensors_, plan_, arena_, *compute_, communicators_.tensor()),
        parts_(PartsOf(StatePartsOf(spec_, plan_, guard_, model_.products().scaling()), base_)),
        to_save_(SlicesToSave(tensors_, shards_, plan_, store_, parts_)),
        to_load_(SlicesToLoad(tensors_, plan_, store_, parts_)),
        keeps_copies_(plan::KeepsCopies(spec)) {
    if (teacher_ != nullptr && model_.language_head() != nullptr) {
      model_.language_head()->SetTeacher(teacher_.get());
    }
    if (plan::ReadsStoredLogits(spec_.training()) && model_.language_head() != nullptr) {
      stored_teacher_.emplace(spec_, shape_, plan_.placement().tensor_index(), arena_,
                              compute_->ops());
      model_.language_head()->SetTeacher(&*stored_teacher_);
    }
    if (precision_.format != kernels::Format::kFloat32 && !shards_.gathers_weights &&
        !packed_.packs_weights()) {
      rounded_parameters_ = arena_.ValuesOf("parameters.compute", precision_);
    }
    snapshot_ = arena_.Floats("snapshot");
    before_update_ = std::move(options.before_update);
    // A checkpoint has the weights and the moments of each tensor side by side.
    state_pages_ = std::make_unique<PagesAhead>(StateMemory());
    for (const StateSlice& state : to_save_) saved_slices_.push_back(state.slice);
    for (const StateSlice& state : to_load_) needed_slices_.push_back(state.slice);
    initial_slices_ = needed_slices_;
    for (const v1::TensorSlice& slice : base_.ValueSlices()) initial_slices_.push_back(slice);
    if (keeps_copies_) saved_in_needed_ = FindAmong(to_load_, to_save_);
    update_ =
        std::make_unique<WeightUpdate>(spec_.training(), tensors_, shards_, store_,
                                       UpdateBuffers{rounds_.sums(), rounded_parameters_}, arena_);
  }

  // Initializes the weights from the seed.
  absl::Status Initialize();

  absl::Status MeasureReferences(int64_t after_step) override;
  absl::StatusOr<StepResult> Step(int64_t step, double signal) override;
  absl::StatusOr<v1::Evaluation> Evaluate(data::HeldOut set) override {
    CompleteWeights();
    return evaluation_.Run(set);
  }
  absl::StatusOr<ReplicaVerdict> CheckReplicas() override;
  absl::StatusOr<uint64_t> StateDigest() override {
    where_.BeginAction("state digest");
    // The exchange is free between steps, once nothing else is under way.
    gather_.Await();
    const ExchangeVector& exchange = batch_.exchange();
    return DigestOfState(to_save_, arena_, communicators_.world(), *compute_, staged_,
                         {exchange.begin(), exchange.count()}, &holds_what_it_loaded_);
  }
  bool HoldsWhatItLoaded() const override { return holds_what_it_loaded_; }
  LoadTarget* teacher() override { return teacher_.get(); }
  void FlipBit() override {
    // The weights may be on their way to where the model reads them.
    gather_.Await();
    if (replicas_.ComparesShards()) return FlipBitOfShard(store_, *compute_);
    // The next update gives every rank the weights of their owners, so that it would undo this.
    if (shards_.divided()) {
      flips_before_check_ = true;
      return;
    }
    FlipWeightBit();
  }
  void SetTracing(bool on) override { trace_.Set(on); }
  std::vector<TraceEvent> TakeTrace() override { return trace_.Take(); }
  absl::StatusOr<StateSnapshot> Snapshot() override;
  absl::Status Load(int64_t slice_index, int64_t first, absl::Span<const float> values) override;
  std::shared_ptr<float> LoadPlace(int64_t slice_index) override;

  const std::vector<v1::TensorSlice>& SavedSlices() const override { return saved_slices_; }
  const std::vector<v1::TensorSlice>& NeededSlices() const override { return needed_slices_; }
  const std::vector<v1::TensorSlice>& InitialSlices() const override { return initial_slices_; }
  int64_t planned_bytes() const override { return plan_.stage().memory().total_bytes(); }
  int64_t used_bytes() const override { return arena_.UsedBytes(); }
  absl::StatusOr<std::vector<BufferUse>> HighWaterMarks() override {
    return arena_.HighWaterMarks(*compute_);
  }

 private:
  static StateParts PartsOf(StateParts parts, QuantizedBase& base) {
    base.AddParts(&parts);
    return parts;
  }

  // Null where no teacher is learnt from.
  std::unique_ptr<Teacher> MakeTeacher() {
    if (!plan::HasTeacher(spec_.training())) return nullptr;
    return std::make_unique<Teacher>(
        spec_, plan_, Teacher::Parts{arena_, communicators_, *compute_, staged_, where_});
  }

  int stage() const { return plan_.placement().pipeline_index(); }
  int stages() const { return plan_.layout().pipeline(); }
  int LaunchRepeatedSteps(int64_t step);
  void FinishReduction();
  absl::Status UpdateWeights(int64_t taken_step, const StepResult& result);
  std::string WeightsName() const { return plan::WeightsBuffer(spec_, plan_.layout()); }
  // All ranks call it before they read the model's weights.
  void CompleteWeights() {
    gather_.Begin();
    gather_.Await();
  }
  // The forward pass waits for each layer, unless something else uses the communicator before it,
  // as data ranks that count predictions together, or what it enqueues is recorded.
  void BeginWeights() {
    gather_.Begin();
    if (shards_.gathers_weights || batch_.counts_predictions() || repeated_steps_ > 0)
      gather_.Await();
  }
  absl::StatusOr<std::vector<uint64_t>> WeightDigests();
  // In the weights that an update begins with, or, where these are divided, that the model reads.
  void FlipWeightBit() {
    const bool of_model = shards_.divided() || shards_.gathers_weights;
    if (!of_model) return FlipBitOfShard(store_, *compute_);
    tercio::engine::FlipBit(compared_, arena_.Get<std::byte>(WeightsName()), precision_.bytes(),
                            *compute_);
  }
  void WeightsChanged(kernels::ConstValues from, bool frozen, int64_t model_offset, int64_t count);
  // None for what is on disk, whose pages come when they are used.
  absl::Span<std::byte> MemoryOf(const std::string& name) {
    auto* const begin = arena_.Get<std::byte>(name);
    if (arena_.IsOnDisk(begin)) return {};
    return absl::MakeSpan(begin, static_cast<size_t>(arena_.Bytes(name)));
  }
  static std::string NearName(const char* name) { return absl::StrCat(name, plan::kNearSuffix); }
  // The state's memory in the order in which it is loaded: the last layers are near.
  std::vector<absl::Span<std::byte>> StateMemory() {
    std::vector<absl::Span<std::byte>> memory =
        InTurns({MemoryOf("parameters"), MemoryOf("adamw.m"), MemoryOf("adamw.v")});
    for (const absl::Span<std::byte>& near :
         InTurns({MemoryOf(NearName("parameters")), MemoryOf(NearName("adamw.m")),
                  MemoryOf(NearName("adamw.v"))})) {
      memory.push_back(near);
    }
    return memory;
  }
  void CopyAside(const StateSlice& state, float* to);

  const v1::JobSpec spec_;
  const plan::Precision precision_;
  const v1::RankPlan plan_;
  const Communicators& communicators_;
  progress::Whereabouts nowhere_{nullptr};
  progress::Whereabouts& where_;
  data::SampleSource& source_;
  Arena arena_;
  std::unique_ptr<device::Stream> compute_;
  std::unique_ptr<device::Stream> communication_;
  std::unique_ptr<device::Stream> gradient_sums_;
  std::unique_ptr<device::Event> bucket_ready_;
  std::unique_ptr<device::Event> updated_;
  std::array<std::unique_ptr<device::Event>, 2> summed_;
  std::vector<std::unique_ptr<device::Event>> gathered_;
  const plan::Program program_;  // of a training step
  int repeated_steps_;           // 0 also if they could not be recorded
  std::unique_ptr<device::WorkGraph> graph_;
  int64_t steps_ = 0;  // steps of this process
  std::unique_ptr<device::Stream> tensor_sums_;
  std::unique_ptr<device::Event> product_done_;
  plan::StageShape shape_;
  plan::StageTensors tensors_;
  plan::RankShards shards_;
  StageModel model_;
  RankBatch batch_;
  GradientLanes lanes_;
  PipelineLinks links_;
  StreamLinks streams_;
  const StateStore store_;
  StepGuard guard_;
  StepJudge judge_;
  const plan::StageTensors compared_;
  ReplicaCheck replicas_;
  StepTrace trace_;
  PackedExchange packed_;
  GradientRounds rounds_;
  WeightGather gather_;
  ProgramExecutor executor_;
  StagedCopy staged_;
  std::unique_ptr<Teacher> teacher_;
  std::optional<StoredTeacher> stored_teacher_;  // likewise, where it left its logits
  HeldOutEvaluation evaluation_;
  QuantizedBase base_;
  std::vector<double> references_;
  const StateParts parts_;
  std::vector<StateSlice> to_save_;
  std::vector<StateSlice> to_load_;
  const bool keeps_copies_;
  bool holds_what_it_loaded_ = true;
  std::vector<size_t> saved_in_needed_;  // index in to_load_ of each of to_save_; for copies only
  std::vector<v1::TensorSlice> saved_slices_;
  std::vector<v1::TensorSlice> needed_slices_;
  std::vector<v1::TensorSlice> initial_slices_;
  kernels::Values rounded_parameters_;  // what the model reads, where no gather makes it
  double signal_ = 0;
  bool flips_before_check_ = false;
  std::unique_ptr<WeightUpdate> update_;
  float* snapshot_;
  std::function<absl::Status()> before_update_;
  std::unique_ptr<PagesAhead> state_pages_;
  // From the first step on: loading before that needs the machine's memory bandwidth. Null: none.
  std::unique_ptr<PagesAhead> snapshot_pages_;
};

absl::Status Engine::Initialize() {
  for (const StateRange& range : store_.ranges()) {
    const plan::StageTensor& entry = tensors_.tensors[range.tensor];
    const std::vector<float> values = InitialValues(entry.tensor, plan_, spec_.training().seed());
    TERCIO_CHECK_EQ(static_cast<int64_t>(values.size()), entry.elements);
    // Where only some ranks update a tensor, all have its weights: those that others own, too.
    const bool divided = range.frozen ? shards_.frozen_apart : shards_.divides_master;
    const int64_t begin = divided ? range.part.begin : 0;
    const int64_t end = divided ? range.part.end : entry.elements;
    const kernels::Values place = range.weights + (begin - range.part.begin);
    staged_.FromHost(place, values.data() + begin, end - begin);
    WeightsChanged(place, range.frozen, entry.parameter_offset + begin, end - begin);
  }
  return base_.Initialize(spec_.training().seed());
}

// Rounds a part of the master weights into the model's copy.
void Engine::WeightsChanged(kernels::ConstValues from, bool frozen, int64_t model_offset,
                            int64_t count) {
  model_.products().WeightsChanged();
  if (frozen || rounded_parameters_ == nullptr) return;
  compute_->ops().Copy(rounded_parameters_ + model_offset, from, count);
}

// Returns how many of the program's steps it has launched.
int Engine::LaunchRepeatedSteps(int64_t step) {
  if (repeated_steps_ == 0 || trace_.on() || !model_.products().RepeatsItself()) return 0;
  ++steps_;
  if (graph_ == nullptr) {
    if (!RecordsNow(steps_, compute_->ops().ReadyToRecord(), &repeated_steps_)) return 0;
    graph_ = compute_->RecordGraph([&] {
      for (int i = 0; i < repeated_steps_; ++i) {
        executor_.Run(program_[static_cast<size_t>(i)], step);
      }
    });
    if (graph_ == nullptr) return repeated_steps_ = 0;
  }
  where_.BeginAction(progress::Phase::kOther, "forward and backward");
  const device::Range range(*compute_, "forward and backward", step);
  compute_->Launch(*graph_);
  return repeated_steps_;
}

void Engine::FinishReduction() {
  where_.BeginAction(progress::Phase::kOptimizer, "gradient sum");
  rounds_.Finish();
  // This rank's part of the exchange vector, and the sum over all ranks.
  const ExchangeVector& exchange = batch_.exchange();
  compute_->SetZero(exchange.SumsEnd(), (exchange.count() - exchange.sum_count()) *
                                            static_cast<int64_t>(sizeof(double)));
  compute_->CopyFromHost(exchange.Signal(), &signal_, sizeof(signal_));
  batch_.ContributeSums();
  rounds_.MeasureSquares(exchange);
  communicators_.world().AllReduceSum(*compute_, exchange.begin(), exchange.count());
}

absl::Status Engine::MeasureReferences(int64_t after_step) {
  if (!plan::HasReference(spec_.training())) return absl::OkStatus();
  CompleteWeights();
  model_.products().BeginPass();
  TERCIO_ASSIGN_OR_RETURN(references_,
                          ReferencesOf(spec_, source_, after_step, batch_, evaluation_));
  batch_.SetReferences(&references_);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Engine::Step(int64_t step, double signal) {
  if (snapshot_pages_ == nullptr) {
    snapshot_pages_ = std::make_unique<PagesAhead>(std::vector{MemoryOf("snapshot")});
  }
  const double start = StepTrace::Now();
  const double waited = where_.engine_wait_seconds();
  where_.BeginStep(step);
  const device::Range range(*compute_, "step", step);
  where_.phases().Start();
  where_.BeginAction(progress::Phase::kData, "samples");
  const auto read = [&](int64_t sequence, data::Sample* out) {
    source_.TrainingSample(step, sequence, out);
  };
  if (plan::HasDivergence(spec_.training())) {
    CompleteWeights();
    model_.products().BeginPass();
    TERCIO_RETURN_IF_ERROR(evaluation_.MeasureDivergence(read, spec_.training().global_batch()));
  }
  batch_.Read(read);
  BeginWeights();
  TERCIO_RETURN_IF_ERROR(batch_.CountPredictions());
  if (teacher_ != nullptr) teacher_->Run(batch_);
  batch_.ClearSums();
  signal_ = signal;
  model_.SetLossScale(guard_.loss_scale());
  model_.products().BeginStep();
  const auto launched = static_cast<size_t>(LaunchRepeatedSteps(step));
  for (const plan::ProgramStep& each : absl::MakeSpan(program_).subspan(launched)) {
    if (each.kind == plan::ProgramStep::Kind::kJudge) break;
    if (each.kind == plan::ProgramStep::Kind::kFinish) {
      executor_.Measure("finish reduction", 0, 0, [&] { FinishReduction(); });
    } else {
      executor_.Run(each, step);
    }
  }
  model_.products().EndStep(communicators_.tensor(), communicators_.data());
  // Waits here for all work that a device was given and does later.
  where_.phases().Enter(progress::Phase::kOther);
  TERCIO_RETURN_IF_ERROR(batch_.Learn(batch_.exchange().count()));
  where_.phases().Enter(progress::Phase::kOptimizer);
  model_.products().RecordStep();

  StepResult result;
  // The number is that of before the verdict, which counts this step.
  const int64_t taken_step = guard_.TakenStep(step);
  TERCIO_ASSIGN_OR_RETURN(const StepVerdict verdict,
                          judge_.Judge(step, batch_.exchange(), &result));
  if (verdict.taken && before_update_) TERCIO_RETURN_IF_ERROR(before_update_());
  where_.BeginAction(progress::Phase::kOptimizer, "optimizer");
  if (verdict.taken) {
    absl::Status updated;
    executor_.Measure("optimizer", 0, 0, [&] { updated = UpdateWeights(taken_step, result); });
    TERCIO_RETURN_IF_ERROR(updated);
  }
  where_.phases().Enter(progress::Phase::kOther);
  result.communication_seconds = where_.engine_wait_seconds() - waited;
  const double seconds = StepTrace::Now() - start;
  where_.EndStep(step, seconds, seconds - result.communication_seconds);
  return result;
}

absl::Status Engine::UpdateWeights(int64_t taken_step, const StepResult& result) {
  model_.products().WeightsChanged();
  const double limit = spec_.training().clip_grad_norm();
  // The 1e-6 is that of PyTorch's clip_grad_norm_, so that runs with the same limit clip alike.
  const double clip = limit > 0 ? std::min(1.0, limit / (result.grad_norm + 1e-6)) : 1.0;
  const double unscale = result.loss_scale > 0 ? 1.0 / result.loss_scale : 1.0;
  const UpdateNumbers numbers = {taken_step, result.learning_rate, clip * unscale};
  gather_.BeginPublishing();
  for (const plan::ProgramStep& each : program_) {
    if (each.kind == plan::ProgramStep::Kind::kFetch) {
      update_->Fetch(each.unit);
    } else if (each.kind == plan::ProgramStep::Kind::kUpdate) {
      TERCIO_RETURN_IF_ERROR(update_->Update(each.unit, numbers, compute_->ops()));
    } else if (each.kind == plan::ProgramStep::Kind::kPublish) {
      gather_.Publish(each.unit);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplicaVerdict> Engine::CheckReplicas() {
  if (!replicas_.HasReplicas()) return ReplicaVerdict{};
  where_.BeginAction("replica check");
  CompleteWeights();
  TERCIO_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, WeightDigests());
  std::vector<uint64_t> of_shard;
  if (replicas_.ComparesShards()) {
    TERCIO_ASSIGN_OR_RETURN(
        of_shard, replicas_.DigestsOf(store_, arena_.Get<uint64_t>("replica_digests"), *compute_));
  }
  return replicas_.Compare(*compute_, digests, of_shard);
}

absl::StatusOr<std::vector<uint64_t>> Engine::WeightDigests() {
  uint64_t* const parts = arena_.Get<uint64_t>("replica_digests");
  // Moments and master weights of a shard are on one data rank, so that there is nothing to compare
  // them with.
  if (shards_.divided()) {
    if (std::exchange(flips_before_check_, false)) FlipWeightBit();
    return replicas_.DigestsOf(arena_.ValuesOf(WeightsName(), precision_), parts, *compute_);
  }
  return replicas_.DigestsOf(store_, parts, *compute_);
}

void Engine::CopyAside(const StateSlice& state, float* to) {
  if (state.part != nullptr) {
    const std::vector<float> values = state.part->Values();
    std::copy(values.begin(), values.end(), to);
    return;
  }
  staged_.ToHost(to, state.values, state.elements);
}

absl::StatusOr<StateSnapshot> Engine::Snapshot() {
  where_.BeginAction("snapshot");
  // A rank whose run ends here has sent its weights to the others by then.
  gather_.Await();
  TERCIO_RETURN_IF_ERROR(update_->Verify());
  std::vector<absl::Span<const float>> parts;
  int64_t at = 0;
  // A rank resumes from a copy alone, so copies hold all that it needs, not only what it saves.
  for (const StateSlice& state : keeps_copies_ ? to_load_ : to_save_) {
    if (plan::SavesInPlace(spec_) && state.part == nullptr) {
      parts.emplace_back(state.values.floats(), static_cast<size_t>(state.elements));
      continue;
    }
    CopyAside(state, snapshot_ + at);
    parts.emplace_back(snapshot_ + at, static_cast<size_t>(state.elements));
    at += state.elements;
  }
  TERCIO_CHECK_LE(at * static_cast<int64_t>(sizeof(float)), arena_.Bytes("snapshot"));
  TERCIO_RETURN_IF_ERROR(compute_->Synchronize());
  StateSnapshot snapshot;
  if (!keeps_copies_) {
    snapshot.saved = std::move(parts);
    return snapshot;
  }
  for (const size_t index : saved_in_needed_) snapshot.saved.push_back(parts[index]);
  snapshot.needed = std::move(parts);
  return snapshot;
}

absl::Status Engine::Load(int64_t slice_index, int64_t first, absl::Span<const float> values) {
  where_.BeginAction("loading", static_cast<int>(slice_index));
  if (const auto index = static_cast<size_t>(slice_index); index >= to_load_.size()) {
    return base_.Load(index - to_load_.size(), first, values);
  }
  const StateSlice& state = to_load_.at(static_cast<size_t>(slice_index));
  const auto count = static_cast<int64_t>(values.size());
  const bool whole = first == 0 && count == state.elements;
  const bool inside = first >= 0 && count <= state.elements && first <= state.elements - count;
  const bool takes_pieces = state.part == nullptr || state.part->TakesPieces();
  if (!whole && (!inside || !takes_pieces)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", state.slice.tensor(), ": got ", count,
                                                   " values from ", first, ", but it has ",
                                                   state.elements));
  }
  if (state.part != nullptr) return state.part->RestorePiece(first, values);
  const kernels::Values place = state.values + first;
  const auto* const from = reinterpret_cast<const std::byte*>(values.data());
  if (from != place.data()) staged_.FromHost(place, values.data(), count);
  holds_what_it_loaded_ = holds_what_it_loaded_ && AreNumbersOf(place.format(), values);
  update_->Forget();
  if (state.is_weight()) {
    WeightsChanged(place, state.frozen, state.model_offset + first, count);
    gather_.OnUpdate();
  }
  return compute_->Synchronize();
}

std::shared_ptr<float> Engine::LoadPlace(int64_t slice_index) {
  if (static_cast<size_t>(slice_index) >= to_load_.size()) return nullptr;
  const StateSlice& state = to_load_.at(static_cast<size_t>(slice_index));
  // What is rounded on its way has no place that could be read into.
  if (state.part != nullptr || state.values.format() != kernels::Format::kFloat32) return nullptr;
  return arena_.OnHost(state.values.floats());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingEngine>> TrainingEngine::Create(
    const v1::JobSpec& spec, const v1::RankPlan& plan, device::Device& device,
    const Communicators& communicators, data::SampleSource& source, EngineOptions options) {
  // Only GPUs in bf16 have FP8's products: another job must fail before it takes memory.
  TERCIO_RETURN_IF_ERROR(plan::CheckFp8(spec));
  TERCIO_RETURN_IF_ERROR(plan::CheckBaseFormat(spec));
  TERCIO_ASSIGN_OR_RETURN(
      Arena arena, Arena::Allocate(plan.stage().memory(), device, options.scratch_directory));
  if (options.fill_pattern) TERCIO_RETURN_IF_ERROR(arena.FillWithPattern(device));
  const device::Workspace workspace = {arena.Get<std::byte>("workspace.device"),
                                       arena.Bytes("workspace.device")};
  TERCIO_ASSIGN_OR_RETURN(auto compute,
                          device.CreateStream(device::Device::StreamKind::kCompute, workspace));
  TERCIO_RETURN_IF_ERROR(CheckPromises(spec, compute->ops().promises()));
  TERCIO_ASSIGN_OR_RETURN(auto communication,
                          device.CreateStream(device::Device::StreamKind::kCommunication));
  std::unique_ptr<device::Stream> gradient_sums;
  if (communicators.has_sums()) {
    TERCIO_ASSIGN_OR_RETURN(gradient_sums,
                            device.CreateStream(device::Device::StreamKind::kCommunication));
  }
  TERCIO_ASSIGN_OR_RETURN(auto bucket_ready, device.CreateEvent());
  TERCIO_ASSIGN_OR_RETURN(auto updated, device.CreateEvent());
  std::array<std::unique_ptr<device::Event>, 2> summed;
  for (auto& event : summed) {
    TERCIO_ASSIGN_OR_RETURN(event, device.CreateEvent());
  }
  std::vector<std::unique_ptr<device::Event>> gathered(WeightGather::EventsOf(plan::ShardsOfRank(
      spec, plan, plan::TensorsOfStage(spec, plan.layout(), plan.placement().pipeline_index()))));
  for (auto& event : gathered) {
    TERCIO_ASSIGN_OR_RETURN(event, device.CreateEvent());
  }
  TERCIO_ASSIGN_OR_RETURN(auto tensor_sums,
                          device.CreateStream(device::Device::StreamKind::kCommunication));
  TERCIO_ASSIGN_OR_RETURN(auto product_done, device.CreateEvent());
  const plan::ProgramShape program_shape =
      plan::ShapeOfProgram(spec, plan.layout(), plan.placement().pipeline_index());
  plan::Program program = plan::TrainingProgram(program_shape, ActionsOf(plan));
  TERCIO_RETURN_IF_ERROR(plan::CheckProgram(program_shape, program));
  auto engine = std::make_unique<Engine>(
      spec, plan, communicators, source,
      Engine::Machine{std::move(arena), std::move(compute), std::move(communication),
                      std::move(gradient_sums), std::move(bucket_ready), std::move(updated),
                      std::move(summed), std::move(gathered), std::move(tensor_sums),
                      std::move(product_done), std::move(program)},
      options);
  if (options.initialise_weights) TERCIO_RETURN_IF_ERROR(engine->Initialize());
  return std::unique_ptr<TrainingEngine>(std::move(engine));
}

}  // namespace tercio::engine
