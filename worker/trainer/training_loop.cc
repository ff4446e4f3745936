#include "worker/trainer/training_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/security/channel.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "plan/data_position.h"
#include "plan/epochs.h"
#include "plan/gpu_figures.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/numerics.h"
#include "plan/precision.h"
#include "plan/preference.h"
#include "plan/quality.h"
#include "plan/rank_layout.h"
#include "plan/save_timeout.h"
#include "plan/snapshots.h"
#include "plan/state_shards.h"
#include "worker/engine/training_engine.h"
#include "worker/progress/whereabouts.h"
#include "worker/trainer/backend.h"
#include "worker/trainer/best_step.h"
#include "worker/trainer/checkpoint_source.h"
#include "worker/trainer/initial_weights.h"
#include "worker/trainer/memory_meter.h"
#include "worker/trainer/rank_figures.h"
#include "worker/trainer/rank_trace.h"
#include "worker/trainer/samples_of_rank.h"
#include "worker/trainer/snapshot_client.h"
#include "worker/trainer/state_attestation.h"
#include "worker/trainer/state_loader.h"
#include "worker/trainer/step_record.h"
#include "worker/trainer/tensorboard.h"

namespace tercio::trainer {
namespace {

// A coordinator may be away for this long without the loss of a checkpoint.
constexpr absl::Duration kSavePatience = absl::Minutes(5);
// A save that is due waits for one that began no longer ago than this: then the model is small and
// saves are close together.
constexpr absl::Duration kShortSave = absl::Seconds(10);
// The longest wait for another rank: a last resort without a watchdog, since the coordinator finds
// a hang earlier (coordinator/core/watchdog.h) and can describe it better.
constexpr absl::Duration kCollectiveTimeout = absl::Minutes(30);
// The most steps that a checkpoint records (some 70 bytes each).
constexpr size_t kMostUnsavedSteps = 20'000;
// Ranks other than 0 report steps at most this often, all ranks their memory.
constexpr absl::Duration kReportInterval = absl::Milliseconds(500);

class TrainingLoop {
 public:
  TrainingLoop(AgentLink& link, const CheckpointIdentity& identity, progress::ProgressPage* page,
               v1::TrainerFailure* failure)
      : link_(link),
        assignment_(link.assignment()),
        identity_(identity),
        page_(page),
        failure_(*failure),
        whereabouts_(page),
        figures_(identity.rank, whereabouts_.phases()),
        best_(training().evaluate().keep_best(), assignment_.best()),
        attestation_(assignment_),
        backend_(CreateBackend(assignment_)) {}

  // A thread that hangs in the kernel reads from the engine's memory.
  bool MustStay() const { return checkpoints_ != nullptr && checkpoints_->WriteHangs(); }

  absl::StatusOr<TrainingOutcome> Run() {
    const absl::StatusOr<TrainingOutcome> outcome = RunAll();
    // A device that has failed is no longer queried.
    if (outcome.ok()) MeasureAllMemory();
    ReportLastFigures();
    // The others must not wait for a rank that has given up.
    if (!outcome.ok()) communicators_.Abort();
    return outcome;
  }

 private:
  const v1::TrainingSpec& training() const { return assignment_.spec().training(); }
  bool IsRankZero() const { return identity_.rank == 0; }

  absl::StatusOr<TrainingOutcome> RunAll();
  absl::Status CreateEngine();
  absl::Status Connect();
  absl::Status ChooseProducts();
  absl::Duration CollectiveTimeout() const;
  absl::StatusOr<TrainingOutcome> TrainSteps();
  absl::Status LoadState();
  // The directory of this job's checkpoints, if they have one of their own.
  std::string JobsDirectory() const {
    return absl::StrCat(assignment_.spec().checkpoint().path(), "/", identity_.run.job_id());
  }
  absl::StatusOr<std::shared_ptr<StateSource>> OpenCheckpoint(int64_t step,
                                                              const std::string& digest) const;
  absl::Status LoadFrom(const std::shared_ptr<StateSource>& source,
                        LoadPath path = LoadPath::kDirect);
  LoadedBytes LoadedToPage() const;
  struct StepEnd {
    v1::StepRecord record;
    AgentLink::Request request = AgentLink::Request::kNone;
    bool best = false;  // its checkpoint is to be kept as the best
  };
  // Runs a step and reports it.
  absl::StatusOr<StepEnd> TrainStep(int64_t step);
  absl::Status CheckReplicas(int64_t step, bool saves);
  enum class SavePatience { kShort, kUntilTheLastEnds };
  absl::StatusOr<bool> MaySave(int64_t step, SavePatience patience);
  absl::StatusOr<int> RanksThatStillSave();
  absl::StatusOr<double> SumOverRanks(double mine);
  absl::Status Save(int64_t step);
  absl::StatusOr<bool> IsBest(const v1::StepRecord& record);
  absl::Status SettleBest();
  // The step of the weights in the engine, and why it is not the best one.
  struct TestWeights {
    int64_t step = 0;
    std::string problem;
  };
  absl::StatusOr<TestWeights> LoadTestWeights();
  absl::StatusOr<std::string> LoadBest();
  absl::Status EvaluateTest();
  void ReportSave(int64_t step, const SaveOutcome& outcome, int64_t bytes, double seconds);
  void Beat() const {
    if (page_ != nullptr) page_->Beat();
  }
  absl::Status AwaitAllRanks();
  std::function<void()> GiveCopies(int64_t step, const engine::StateSnapshot& snapshot);
  absl::Status WaitForUpload();
  // UNAVAILABLE, with what follows from it, where a write of the last save hangs.
  absl::Status EndLastSave(const std::string& consequence);
  bool EvaluatesAfter(int64_t step) const;
  int64_t TokensPerStep() const {
    return training().global_batch() * plan::TokensOfSequence(assignment_.spec().model());
  }
  // `validation` may be null.
  void Report(v1::StepRecord record, double communication_seconds,
              const v1::Evaluation* validation);
  // Model-FLOPs utilisation of the job (Chowdhery et al. 2022, appendix B); 0 if the peak of this
  // rank's device is unknown.
  double Utilisation(double tokens_per_second, plan::AttentionCount count) const;
  // Measures memory after `steps` steps of this process.
  void MeasureMemory(int64_t steps);
  void MeasureAllMemory();
  void NoteMemory();
  void ReportMemory();
  void ReportLastFigures();
  void ReportTrace(int64_t step);
  double Signal();
  void EnterPhase(v1::TrainerPhase phase);

  AgentLink& link_;
  const v1::TrainerAssignment& assignment_;
  const CheckpointIdentity& identity_;
  progress::ProgressPage* const page_;  // may be null
  v1::TrainerFailure& failure_;
  progress::Whereabouts whereabouts_;
  FiguresKeeper figures_;
  BestStep best_;
  StateAttestation attestation_;
  std::atomic<bool> candidate_committed_ = false;  // as this rank was told
  int64_t train_samples_ = 0;                      // samples of an epoch
  std::string tokenizer_json_;
  std::vector<std::shared_ptr<const FileLock>> data_uses_;
  std::unique_ptr<data::SampleSource> source_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<MemoryMeter> memory_;
  engine::Communicators communicators_;
  std::unique_ptr<device::Stream> stream_;       // beside the engine's
  std::unique_ptr<device::DeviceMemory> count_;  // one double; null until it is needed
  std::unique_ptr<engine::TrainingEngine> engine_;
  std::unique_ptr<SnapshotClient> copies_;  // used by the thread of `checkpoints_`
  std::shared_ptr<grpc::Channel> channel_;  // to the coordinator
  std::unique_ptr<CheckpointClient> checkpoints_;
  absl::Time last_report_ = absl::InfinitePast();
  absl::Time last_save_ = SteadyNow();
  double save_seconds_ = 0;  // not yet reported
  // Rank 0's steps that are not in any committed checkpoint yet.
  std::deque<v1::StepRecord> unsaved_steps_;
  int64_t saved_step_ = 0;                          // step of the last upload
  std::unique_ptr<TensorBoardWriter> tensorboard_;  // rank 0 only, if the job requests it
  absl::Time last_memory_report_ = absl::InfinitePast();
  absl::Time last_measurement_ = absl::InfinitePast();  // last measurement of memory
  bool told_of_memory_ = false;                         // memory above its bound was reported
  int64_t resident_bytes_ = 0;                          // at the last measurement
};

absl::Status TrainingLoop::CreateEngine() {
  engine::EngineOptions options;
  options.whereabouts = &whereabouts_;
  options.scratch_directory = assignment_.scratch_directory();
  // A checkpoint would overwrite all of them, but those of a reference come first.
  options.initialise_weights = assignment_.resume_step() == 0 || plan::HasReference(training());
  if (plan::SavesInPlace(assignment_.spec())) {
    options.before_update = [this] { return EndLastSave("the weights cannot be updated"); };
  }
  auto engine = engine::TrainingEngine::Create(assignment_.spec(), assignment_.plan(), *device_,
                                               communicators_, *source_, options);
  // Scratch space that is not there will not be there the next time.
  failure_.set_permanent(absl::IsFailedPrecondition(engine.status()));
  TERCIO_ASSIGN_OR_RETURN(engine_, std::move(engine));
  return absl::OkStatus();
}

absl::StatusOr<TrainingOutcome> TrainingLoop::RunAll() {
  failure_.set_permanent(true);
  TERCIO_ASSIGN_OR_RETURN(
      data::PreparedData prepared,
      data::PrepareData(assignment_.spec().data(), assignment_.spec().model(),
                        assignment_.data_cache_dir(), data::ContentCheck::kDone));
  // The source takes the rest, so these are kept first.
  tokenizer_json_ = prepared.tokenizer_json;
  data_uses_ = prepared.uses;
  train_samples_ = prepared.train_sample_count;
  TERCIO_ASSIGN_OR_RETURN(source_, MakeSamplesOfRank(std::move(prepared), assignment_));
  // Data that cannot be read stays so. What fails from here on may succeed in the next attempt.
  failure_.set_permanent(false);
  EnterPhase(v1::TRAINER_PHASE_CONNECTING);
  const v1::DeviceKind wanted = assignment_.spec().resources().device();
  if (wanted != backend_->kind()) {
    failure_.set_permanent(true);
    return absl::FailedPreconditionError(
        absl::StrCat("the job asks for resources.device ", plan::TextOf(wanted),
                     ", but this trainer is built for ", plan::TextOf(backend_->kind())));
  }
  TERCIO_ASSIGN_OR_RETURN(device_, backend_->OpenDevice());
  memory_ = std::make_unique<MemoryMeter>(*device_);
  TERCIO_RETURN_IF_ERROR(Connect());
  // Timing needs memory of the device, which the engine's arena takes below.
  TERCIO_RETURN_IF_ERROR(ChooseProducts());
  TERCIO_ASSIGN_OR_RETURN(stream_, device_->CreateStream(device::Device::StreamKind::kCompute));
  const std::string precision = plan::TextOf(training().precision());
  const std::string products = device_->DescribeProducts(plan::FormatOf(training()));
  if (!products.empty()) LogInfo(absl::StrCat(precision, " products: ", products));
  TERCIO_RETURN_IF_ERROR(CreateEngine());
  TERCIO_ASSIGN_OR_RETURN(channel_,
                          OpenChannel(assignment_.checkpoint_address(), TlsFromEnvironment()));
  OwnParts own_parts;
  if (!assignment_.spec().checkpoint().path().empty()) own_parts.directory = JobsDirectory();
  checkpoints_ = std::make_unique<CheckpointClient>(channel_, identity_, std::move(own_parts));
  copies_ = std::make_unique<SnapshotClient>(
      identity_, std::vector<std::string>(assignment_.snapshot_holders().begin(),
                                          assignment_.snapshot_holders().end()));
  TERCIO_RETURN_IF_ERROR(LoadState());
  MeasureMemory(0);
  ReportMemory();
  if (IsRankZero()) tensorboard_ = TensorBoardWriter::Start(assignment_, identity_.run);
  EnterPhase(v1::TRAINER_PHASE_RUNNING);
  const absl::StatusOr<TrainingOutcome> outcome = TrainSteps();
  const absl::Status saved = WaitForUpload();
  // A loss that is not finite recurs at the same step: the job itself is at fault.
  failure_.set_permanent(absl::IsFailedPrecondition(outcome.status()));
  if (!outcome.ok()) return outcome;
  if (!saved.ok()) {
    // Training again would not help.
    failure_.set_permanent(absl::IsResourceExhausted(saved));
    return absl::Status(saved.code(), absl::StrCat("the last checkpoint could not be saved: ",
                                                   std::string(saved.message())));
  }
  // The checkpoint of the last step is committed: an attempt that ends here resumes behind it.
  if (*outcome == TrainingOutcome::kFinished) TERCIO_RETURN_IF_ERROR(EvaluateTest());
  return outcome;
}

absl::StatusOr<std::shared_ptr<StateSource>> TrainingLoop::OpenCheckpoint(
    int64_t step, const std::string& digest) const {
  if (assignment_.spec().checkpoint().path().empty()) {
    return CheckpointAtCoordinator(channel_, identity_, step);
  }
  return CheckpointInDirectory(absl::StrFormat("%s/step-%08d", JobsDirectory(), step), digest);
}

absl::Status TrainingLoop::LoadState() {
  const int64_t step = assignment_.resume_step();
  if (engine_->teacher() != nullptr) EnterPhase(v1::TRAINER_PHASE_LOADING);
  TERCIO_RETURN_IF_ERROR(LoadTeacherWeights(training().distillation(),
                                            {communicators_.data(), *device_, *stream_},
                                            LoadedToPage(), engine_->teacher()));
  const v1::ModelSpec& model = assignment_.spec().model();
  // A checkpoint has other weights than a reference, and is loaded after it.
  if (!model.from().empty() && (step == 0 || plan::HasReference(training()))) {
    EnterPhase(v1::TRAINER_PHASE_LOADING);
    TERCIO_ASSIGN_OR_RETURN(auto weights, OpenInitialWeights(model));
    TERCIO_RETURN_IF_ERROR(LoadFrom(weights));
  }
  TERCIO_RETURN_IF_ERROR(engine_->MeasureReferences(step));
  if (step == 0) return absl::OkStatus();
  EnterPhase(v1::TRAINER_PHASE_LOADING);
  if (!assignment_.snapshot_source().empty()) {
    return copies_->Load(assignment_.snapshot_source(), assignment_.resume_attempt(), step,
                         LoadedToPage(), *engine_);
  }
  const std::string numerics =
      plan::DescribeOtherNumerics(assignment_.resume_numerics(), plan::kNumerics);
  if (!numerics.empty()) LogWarning(numerics);
  TERCIO_ASSIGN_OR_RETURN(const auto checkpoint,
                          OpenCheckpoint(step, assignment_.resume_manifest_digest()));
  TERCIO_RETURN_IF_ERROR(LoadFrom(checkpoint));
  return attestation_.CheckLoaded(*engine_);
}

absl::Status TrainingLoop::LoadFrom(const std::shared_ptr<StateSource>& source, LoadPath path) {
  const absl::Time begin = SteadyNow();
  TERCIO_RETURN_IF_ERROR(
      tercio::trainer::LoadState(source,
                                 {communicators_.data(), *device_, *stream_,
                                  plan::ShardRanks(assignment_.plan().layout()) > 1},
                                 LoadedToPage(), *engine_, path));
  LogInfo(absl::StrFormat("the state is loaded: this rank read %d bytes in %.3f s",
                          source->bytes_read(), absl::ToDoubleSeconds(SteadyNow() - begin)));
  return absl::OkStatus();
}

LoadedBytes TrainingLoop::LoadedToPage() const {
  return [page = page_](int64_t bytes, int64_t total) {
    if (page != nullptr) page->SetLoaded(bytes, total);
  };
}

void TrainingLoop::EnterPhase(v1::TrainerPhase phase) {
  if (page_ != nullptr) page_->SetPhase(phase);
  link_.SendPhase(phase);
}

absl::Status TrainingLoop::Connect() {
  TERCIO_ASSIGN_OR_RETURN(
      communicators_,
      engine::Communicators::Create(assignment_.plan(), [this](const v1::ProcessGroup& group) {
        return backend_->JoinGroup(
            group, {group.name(), CollectiveTimeout(), plan::RanksOf(group), &whereabouts_}, link_);
      }));
  backend_->LogMemory("when its groups are made");
  figures_.ReadCommunication([this] { return communicators_.SentBytes(); });
  figures_.ReadExchanges(whereabouts_.exchanges());
  figures_.ReadFallbacks([this] { return backend_->Fallbacks(); });
  return absl::OkStatus();
}

absl::Status TrainingLoop::ChooseProducts() {
  TERCIO_ASSIGN_OR_RETURN(v1::ProductTable chosen, backend_->ChooseProducts(link_));
  if (chosen.algorithms_size() == 0) return absl::OkStatus();
  v1::TrainerMessage message;
  // The coordinator adds them to the plan, so that a later attempt computes with the same ones.
  v1::ProductsChosen* news = message.mutable_products_chosen();
  news->set_stage(assignment_.plan().placement().pipeline_index());
  *news->mutable_products() = std::move(chosen);
  link_.Send(std::move(message));
  return absl::OkStatus();
}

absl::Duration TrainingLoop::CollectiveTimeout() const {
  const double seconds = assignment_.spec().fault_tolerance().hang_timeout_seconds();
  // The watchdog gets the first word, since it can say more than a call that timed out.
  return seconds > 0 ? absl::Seconds(2 * seconds + 60) : kCollectiveTimeout;
}

// The request that rank 0 sends to all ranks with the sums of this step: they must save after the
// same one.
double TrainingLoop::Signal() {
  if (!IsRankZero()) return 0;
  AgentLink::Request request = link_.TakeRequest();
  const double interval = assignment_.spec().checkpoint().every_seconds();
  if (request == AgentLink::Request::kNone && interval > 0 &&
      SteadyNow() - last_save_ >= absl::Seconds(interval)) {
    request = AgentLink::Request::kSave;
  }
  return static_cast<double>(request);
}

bool TrainingLoop::EvaluatesAfter(int64_t step) const {
  return source_->held_out_samples(data::HeldOut::kValidation) > 0 &&
         plan::EvaluatesAfter(training(), train_samples_, step);
}

absl::StatusOr<TrainingLoop::StepEnd> TrainingLoop::TrainStep(int64_t step) {
  engine_->SetTracing(step == training().trace_step());
  if (link_.TakeFlipBit()) engine_->FlipBit();
  const absl::Time start = SteadyNow();
  TERCIO_ASSIGN_OR_RETURN(const engine::StepResult result, engine_->Step(step, Signal()));
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  if (IsRankZero() && (result.skipped || !result.spike.empty())) {
    LogWarning(absl::StrCat(result.skipped ? "skipped " : "spike at ", result.reason));
  }
  StepEnd end;
  end.record = StepRecordOf(
      {.step = step, .attempt = identity_.run.attempt(), .tokens = step * TokensPerStep()}, result,
      seconds);
  end.request = static_cast<AgentLink::Request>(static_cast<int>(result.signal));
  std::optional<v1::Evaluation> validation;
  if (EvaluatesAfter(step) && !result.rolls_back) {
    const progress::PhaseClock::Span span(whereabouts_.phases(), progress::Phase::kEvaluation);
    TERCIO_ASSIGN_OR_RETURN(validation, engine_->Evaluate(data::HeldOut::kValidation));
    validation->set_step(step);
    plan::AddValidation(*validation, training().evaluate().metrics(), &end.record);
  }
  if (attestation_.IsRecorded(step) && !result.rolls_back) {
    TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, attestation_.After(step, *engine_));
    end.record.set_state_digest(digest);
  }
  Report(end.record, result.communication_seconds, validation.has_value() ? &*validation : nullptr);
  if (step == training().trace_step()) ReportTrace(step);
  if (!result.rolls_back) {
    TERCIO_ASSIGN_OR_RETURN(end.best, IsBest(end.record));
    return end;
  }
  // The coordinator then resumes from a checkpoint of an earlier step.
  failure_.set_roll_back_from(step);
  return absl::AbortedError(
      absl::StrCat(result.reason, "; the run goes back to the previous checkpoint"));
}

absl::StatusOr<TrainingOutcome> TrainingLoop::TrainSteps() {
  const int64_t every = assignment_.spec().checkpoint().every_steps();
  figures_.Start();
  for (int64_t step = assignment_.resume_step() + 1; step <= training().steps(); ++step) {
    TERCIO_ASSIGN_OR_RETURN(const StepEnd end, TrainStep(step));
    const bool finished = step == training().steps();
    const bool stops = end.request == AgentLink::Request::kSaveAndStop && !finished;
    bool saves =
        end.best || end.request != AgentLink::Request::kNone || (every > 0 && step % every == 0);
    if (saves && !finished && !stops) {
      const auto patience = end.best ? SavePatience::kUntilTheLastEnds : SavePatience::kShort;
      TERCIO_ASSIGN_OR_RETURN(saves, MaySave(step, patience));
    }
    saves = saves || finished;
    TERCIO_RETURN_IF_ERROR(CheckReplicas(step, saves));
    if (saves) {
      if (end.best) best_.SaveBegins(end.record);
      TERCIO_RETURN_IF_ERROR(Save(step));
    }
    if (stops) return TrainingOutcome::kStoppedAfterSave;
  }
  return TrainingOutcome::kFinished;
}

// Whether the evaluated step is better than the best one so far, all ranks alike. Training does not
// wait for the save of a candidate that is better still: if that fails, the next better step is
// kept.
absl::StatusOr<bool> TrainingLoop::IsBest(const v1::StepRecord& record) {
  if (!best_.Beats(record)) return false;
  if (!best_.has_candidate()) return true;
  if (saved_step_ == best_.candidate() && !best_.BeatsCandidate(record)) {
    TERCIO_ASSIGN_OR_RETURN(const int busy, RanksThatStillSave());
    if (busy > 0) return false;
  }
  TERCIO_RETURN_IF_ERROR(SettleBest());
  return best_.Beats(record);
}

// Learns, all ranks alike, whether the candidate's checkpoint is committed.
absl::Status TrainingLoop::SettleBest() {
  if (!best_.has_candidate()) return absl::OkStatus();
  if (saved_step_ == best_.candidate()) {
    checkpoints_->StopRetrying();
    WaitForUpload().IgnoreError();  // a failure was reported when it ended
  }
  TERCIO_ASSIGN_OR_RETURN(const double told, SumOverRanks(candidate_committed_ ? 1 : 0));
  best_.Settle(told > 0);
  return absl::OkStatus();
}

// Loads the best checkpoint. The problem that keeps all ranks from it is returned as a text: then
// the weights are those of the last step, as before.
absl::StatusOr<std::string> TrainingLoop::LoadBest() {
  const auto failed = [this](const absl::Status& mine) -> absl::StatusOr<std::string> {
    if (!mine.ok()) {
      LogWarning(absl::StrCat("the best checkpoint, of step ", best_.step(),
                              ", cannot be loaded: ", std::string(mine.message())));
    }
    TERCIO_ASSIGN_OR_RETURN(const double ranks, SumOverRanks(mine.ok() ? 0 : 1));
    if (ranks == 0) return std::string();
    return absl::StrCat("the best checkpoint, of step ", best_.step(), ", cannot be loaded: ",
                        mine.ok() ? absl::StrCat("see the logs of ", ranks, " other ranks")
                                  : std::string(mine.message()));
  };
  // Loading is collective: either all ranks begin it, or none.
  absl::StatusOr<std::shared_ptr<StateSource>> best = OpenCheckpoint(best_.step(), "");
  TERCIO_ASSIGN_OR_RETURN(std::string problem, failed(best.status()));
  if (!problem.empty()) return problem;
  TERCIO_ASSIGN_OR_RETURN(problem, failed(LoadFrom(*best, LoadPath::kThroughBuffers)));
  if (problem.empty()) return problem;
  // Some weights may be the best step's by now.
  TERCIO_ASSIGN_OR_RETURN(const auto last, OpenCheckpoint(training().steps(), ""));
  TERCIO_RETURN_IF_ERROR(LoadFrom(last));
  return problem;
}

absl::StatusOr<TrainingLoop::TestWeights> TrainingLoop::LoadTestWeights() {
  TERCIO_RETURN_IF_ERROR(SettleBest());
  TestWeights weights;
  weights.step = training().steps();
  if (best_.step() == 0 || best_.step() == weights.step) return weights;
  TERCIO_ASSIGN_OR_RETURN(weights.problem, LoadBest());
  if (weights.problem.empty()) weights.step = best_.step();
  return weights;
}

// Once, after the last step.
absl::Status TrainingLoop::EvaluateTest() {
  if (source_->held_out_samples(data::HeldOut::kTest) == 0) return absl::OkStatus();
  const progress::PhaseClock::Span span(whereabouts_.phases(), progress::Phase::kEvaluation);
  TERCIO_ASSIGN_OR_RETURN(const TestWeights weights, LoadTestWeights());
  TERCIO_ASSIGN_OR_RETURN(v1::Evaluation evaluation, engine_->Evaluate(data::HeldOut::kTest));
  evaluation.set_step(weights.step);
  evaluation.set_problem(weights.problem);
  if (!IsRankZero()) return absl::OkStatus();
  if (tensorboard_ != nullptr) tensorboard_->AddTest(evaluation);
  v1::TrainerMessage message;
  *message.mutable_test() = std::move(evaluation);
  link_.Send(std::move(message));
  return absl::OkStatus();
}

// No checkpoint is taken from replicas that differ: the next attempt starts from a good one.
absl::Status TrainingLoop::CheckReplicas(int64_t step, bool saves) {
  const int64_t every = assignment_.spec().fault_tolerance().check_replicas_every();
  if (every <= 0 || (!saves && step % every != 0)) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const engine::ReplicaVerdict verdict, engine_->CheckReplicas());
  if (verdict.equal) return absl::OkStatus();
  failure_.set_corrupt_rank_plus_one(verdict.odd_rank < 0 ? -1 : verdict.odd_rank + 1);
  return absl::DataLossError(absl::StrCat("after step ", step, ": ", verdict.text));
}

// Waiting for the coordinator is not a hang: an upload ends within the time of a save.
absl::Status TrainingLoop::WaitForUpload() {
  const progress::PhaseClock::Span span(whereabouts_.phases(), progress::Phase::kCheckpoint);
  whereabouts_.BeginAction("checkpoint upload");
  return checkpoints_->WaitForUpload([this] { Beat(); });
}

// Training does not stop for a store that is slow or hangs: while the previous save is in progress,
// one that is due is skipped, by all ranks together. The save of the best step waits for the
// previous one to end, and is skipped only where that hangs. The last saves of a run do not come
// here: they wait.
absl::StatusOr<bool> TrainingLoop::MaySave(int64_t step, SavePatience patience) {
  const progress::PhaseClock::Span span(whereabouts_.phases(), progress::Phase::kCheckpoint);
  whereabouts_.BeginAction("checkpoint upload");
  // If the coordinator is away, the previous checkpoint is lost, not this one.
  checkpoints_->StopRetrying();
  if (patience == SavePatience::kUntilTheLastEnds) {
    checkpoints_->WaitForUpload([this] { Beat(); }).IgnoreError();  // reported when it ended
  } else {
    checkpoints_->EndsBefore(kShortSave, [this] { Beat(); });
  }
  TERCIO_ASSIGN_OR_RETURN(const int busy, RanksThatStillSave());
  if (busy == 0) return true;
  last_save_ = SteadyNow();
  // One report is enough, as all ranks skip the save together.
  if (!IsRankZero()) return false;
  ReportSave(step,
             {absl::UnavailableError(absl::StrCat(
                  "the save of step ", saved_step_, " is still in progress on ", busy, " of ",
                  assignment_.world_size(),
                  " ranks; save less often if the store is slow (checkpoint.every_steps)")),
              v1::SAVE_PROBLEM_SKIPPED},
             0, 0);
  return false;
}

absl::StatusOr<int> TrainingLoop::RanksThatStillSave() {
  TERCIO_ASSIGN_OR_RETURN(
      const double busy,
      SumOverRanks(checkpoints_->EndsBefore(absl::ZeroDuration(), [] {}) ? 0 : 1));
  return static_cast<int>(busy);
}

absl::StatusOr<double> TrainingLoop::SumOverRanks(double mine) {
  if (communicators_.world().size() == 1) return mine;
  if (count_ == nullptr) {
    TERCIO_ASSIGN_OR_RETURN(count_, device_->Allocate(sizeof(double)));
  }
  auto* sum = reinterpret_cast<double*>(count_->data());
  stream_->CopyFromHost(sum, &mine, sizeof(mine));
  communicators_.world().AllReduceSum(*stream_, sum, 1);
  stream_->CopyToHost(&mine, sum, sizeof(mine));
  TERCIO_RETURN_IF_ERROR(stream_->Synchronize());
  return mine;
}

// An agent drops the copy before the last when a newer one begins to arrive: no rank may begin one
// while another rank still sends its part of the last, or no snapshot would be complete for that
// time.
absl::Status TrainingLoop::AwaitAllRanks() {
  if (!plan::KeepsCopies(assignment_.spec())) return absl::OkStatus();
  communicators_.world().Barrier(*stream_);
  return stream_->Synchronize();
}

// The uploading thread first sends copies to the memory of agents, which need no coordinator.
std::function<void()> TrainingLoop::GiveCopies(int64_t step,
                                               const engine::StateSnapshot& snapshot) {
  if (snapshot.needed.empty()) return {};
  // The steps are copied, since training adds others while they are sent.
  return [this, step, values = snapshot.needed,
          steps = std::vector<v1::StepRecord>(unsaved_steps_.begin(), unsaved_steps_.end())] {
    for (const absl::Status& error : copies_->Put(step, engine_->NeededSlices(), values, steps)) {
      LogWarning(absl::StrCat("no copy of the snapshot of step ", step, " in the memory of ",
                              std::string(error.message())));
    }
  };
}

// The snapshot is in use until then. If the coordinator is away, the previous checkpoint is lost.
absl::Status TrainingLoop::EndLastSave(const std::string& consequence) {
  checkpoints_->StopRetrying();
  if (WaitForUpload().ok()) {  // a failure was reported when it ended
    std::erase_if(unsaved_steps_,
                  [this](const v1::StepRecord& record) { return record.step() <= saved_step_; });
  }
  if (!checkpoints_->WriteHangs()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(consequence, ": the file system of ", JobsDirectory(),
                                             " hangs in the save of step ", saved_step_));
}

// Training continues even if a save fails: the previous checkpoint is still there. Only the last
// one must succeed.
absl::Status TrainingLoop::Save(int64_t step) {
  const progress::PhaseClock::Span span(whereabouts_.phases(), progress::Phase::kCheckpoint);
  const absl::Time begin = SteadyNow();
  TERCIO_RETURN_IF_ERROR(
      EndLastSave(absl::StrCat("the checkpoint of step ", step, " cannot be saved")));
  saved_step_ = step;
  TERCIO_RETURN_IF_ERROR(AwaitAllRanks());
  TERCIO_ASSIGN_OR_RETURN(const engine::StateSnapshot snapshot, engine_->Snapshot());
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, attestation_.After(step, *engine_));
  CheckpointTexts texts{TrainingStateJson(assignment_, step, step * TokensPerStep(), digest),
                        IsRankZero() ? tokenizer_json_ : "",
                        {unsaved_steps_.begin(), unsaved_steps_.end()}};
  const bool candidate = best_.candidate() == step;
  if (candidate) candidate_committed_ = false;
  checkpoints_->StartUpload(
      step, engine_->SavedSlices(), snapshot.saved, std::move(texts),
      SaveLimits{kSavePatience, absl::Seconds(plan::SaveTimeoutSeconds(assignment_.spec()))},
      [this, step, candidate](const SaveOutcome& outcome, int64_t bytes, double seconds) {
        if (candidate && outcome.status.ok()) candidate_committed_ = true;
        ReportSave(step, outcome, bytes, seconds);
      },
      GiveCopies(step, snapshot));
  last_save_ = SteadyNow();
  // Only the time counts for which training stood still: the upload runs beside it.
  save_seconds_ += absl::ToDoubleSeconds(last_save_ - begin);
  return absl::OkStatus();
}

// Called from any thread.
void TrainingLoop::ReportSave(int64_t step, const SaveOutcome& outcome, int64_t bytes,
                              double seconds) {
  v1::TrainerMessage message;
  v1::CheckpointProgress* progress = message.mutable_checkpoint();
  progress->set_step(step);
  progress->set_bytes(bytes);
  progress->set_seconds(seconds);
  progress->set_done(true);
  if (!outcome.status.ok()) {
    const std::string error(outcome.status.message());
    progress->set_error(error);
    progress->set_problem(outcome.problem);
    // The coordinator does not know of these failures, so the agent reports them.
    progress->set_unanswered(outcome.problem != v1::SAVE_PROBLEM_UNSPECIFIED);
    LogWarning(absl::StrCat("checkpoint of step ", step, " failed: ", error));
  }
  link_.Send(std::move(message));
}

double TrainingLoop::Utilisation(double tokens_per_second, plan::AttentionCount count) const {
  const std::optional<plan::GpuFigures> figures = plan::FiguresOf(device_->name());
  if (!figures.has_value()) return 0;
  return plan::FlopsPerToken(assignment_.spec().model(), count) * tokens_per_second /
         (plan::PeakFlops(*figures, training()) * assignment_.world_size());
}

void TrainingLoop::Report(v1::StepRecord record, double communication_seconds,
                          const v1::Evaluation* validation) {
  const absl::Time now = SteadyNow();
  const double seconds = record.step_seconds();
  figures_.StepEnded(record.step(), seconds);
  const int64_t steps = record.step() - assignment_.resume_step();
  // Libraries take most of their memory in the first step, so that one is always measured.
  if (steps == 1 || now - last_measurement_ >= kReportInterval) MeasureMemory(steps);
  if (steps == 1) backend_->LogMemory("after its first step");
  const bool last = record.step() == training().steps();
  // Reports of the other ranks only feed the page of their agent.
  if (!IsRankZero() && now - last_report_ < kReportInterval && !last) return;
  last_report_ = now;
  v1::TrainerMessage message;
  v1::TrainerStep* report = message.mutable_step();
  report->set_communication_seconds(communication_seconds);
  report->set_compute_seconds(std::max(0.0, seconds - communication_seconds));
  report->set_tokens_per_second(static_cast<double>(TokensPerStep()) / seconds);
  report->set_mfu(Utilisation(report->tokens_per_second(), plan::AttentionCount::kWhole));
  report->set_mfu_causal(
      Utilisation(report->tokens_per_second(), plan::AttentionCount::kCausalHalf));
  if (std::optional<v1::RankFigures> figures = figures_.NowAndThen(kReportInterval)) {
    resident_bytes_ = figures->resident_bytes();
    *report->mutable_figures() = *std::move(figures);
  }
  record.set_resident_bytes(resident_bytes_);
  record.set_used_bytes(memory_->used_bytes());
  if (IsRankZero()) {
    unsaved_steps_.push_back(record);
    if (unsaved_steps_.size() > kMostUnsavedSteps) unsaved_steps_.erase(unsaved_steps_.begin());
    *report->mutable_record() = std::move(record);
    if (validation != nullptr) *report->mutable_validation() = *validation;
    report->set_checkpoint_seconds(std::exchange(save_seconds_, 0));
    if (tensorboard_ != nullptr) tensorboard_->Add(*report);
  } else {
    *report->mutable_newest() = std::move(record);
  }
  link_.Send(message);
  ReportMemory();
}

void TrainingLoop::ReportTrace(int64_t step) {
  // Converts from the monotonic clock to wall time.
  const double monotonic =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  const double offset = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - monotonic;
  v1::TrainerMessage message;
  *message.mutable_trace() =
      TraceOfRank(identity_.run.attempt(), step, identity_.rank, engine_->TakeTrace(), offset);
  link_.Send(message);
}

void TrainingLoop::MeasureMemory(int64_t steps) {
  last_measurement_ = SteadyNow();
  memory_->Measure(*engine_, steps);
  NoteMemory();
}

// Includes the checkpoint after the last step.
void TrainingLoop::MeasureAllMemory() {
  memory_->MeasureAll(*engine_);
  NoteMemory();
}

// Exceeding the bound is no fault of the job, but should be logged before memory runs out.
void TrainingLoop::NoteMemory() {
  figures_.SetMemory(engine_->planned_bytes(), memory_->used_bytes(), memory_->peak_bytes());
  const int64_t most = plan::MostBytesOutside(assignment_.spec(), assignment_.plan().layout(),
                                              assignment_.plan().placement().pipeline_index());
  // It is said once: what has been taken is rarely given back.
  if (told_of_memory_ || memory_->outside_bytes() <= most) return;
  told_of_memory_ = true;
  LogWarning(absl::StrCat("memory outside the planned arena: ", memory_->outside_bytes(),
                          " bytes, more than the ", most, " that were expected",
                          assignment_.spec().resources().device() == v1::DEVICE_KIND_CUDA
                              ? "; other processes may use the GPU"
                              : ""));
}

void TrainingLoop::ReportMemory() {
  const absl::Time now = SteadyNow();
  if (now - last_memory_report_ < kReportInterval) return;
  last_memory_report_ = now;
  v1::TrainerMessage message;
  v1::TrainerMemory* memory = message.mutable_memory();
  memory->set_planned_bytes(engine_->planned_bytes());
  memory->set_used_bytes(memory_->used_bytes());
  memory->set_peak_bytes(memory_->peak_bytes());
  memory->set_resident_bytes(ResidentBytes());
  memory->set_log_lines_lost(LostLogLines());
  link_.Send(message);
}

// Includes the checkpoint after the last step.
void TrainingLoop::ReportLastFigures() {
  std::optional<v1::RankFigures> figures = figures_.Now();
  if (!figures.has_value()) return;
  v1::TrainerMessage message;
  *message.mutable_last_figures() = *std::move(figures);
  link_.Send(std::move(message));
}

}  // namespace

absl::StatusOr<TrainingOutcome> RunTraining(AgentLink& link, const CheckpointIdentity& identity,
                                            progress::ProgressPage* page,
                                            v1::TrainerFailure* failure) {
  auto loop = std::make_unique<TrainingLoop>(link, identity, page, failure);
  absl::StatusOr<TrainingOutcome> outcome = loop->Run();
  // The process ends soon, without waiting for that thread.
  if (loop->MustStay()) static_cast<void>(loop.release());
  return outcome;
}

}  // namespace tercio::trainer
