#include "coordinator/service/job_service.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/model_description.h"
#include "checkpoint/reader.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/service/checkpoint_search.h"
#include "coordinator/service/drills.h"
#include "coordinator/service/views.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/planner/cost/measured.h"
#include "plan/preference.h"

namespace tercio::coordinator {
namespace {

// Streams that follow a job last as long as it does; the hub counts
// them apart, so that idle watchers do not keep short queries out.
template <typename Request>
StreamHub::Kind KindOf(const Request& request) {
  return request.follow() ? StreamHub::Kind::kFollows : StreamHub::Kind::kEnds;
}

// A line without a level matches only where no level is asked for.
Store::LineFilter LineFilterOf(const v1::LogsRequest& asked) {
  std::set<int> ranks(asked.ranks().begin(), asked.ranks().end());
  if (asked.has_rank()) ranks.insert(asked.rank());
  // Whole nanoseconds compare exactly; a double has lost the last digits of a present time.
  const auto nanos = [](const google::protobuf::Timestamp& time) {
    return time.seconds() * 1'000'000'000 + time.nanos();
  };
  const int64_t since = asked.has_since() ? nanos(asked.since()) : 0;
  const std::optional<LogLevel> least = LogLevelNamed(asked.level());
  const std::optional<int> attempt =
      asked.has_attempt() ? std::optional<int>(asked.attempt()) : std::nullopt;
  // The filter is copied into a stream that outlives the request, so it captures by value.
  return [=](const v1::LogLine& line) {
    if (!ranks.empty() && !ranks.contains(line.rank())) return false;
    if (attempt.has_value() && line.attempt() != *attempt) return false;
    if (since > 0 && nanos(line.time()) < since) return false;
    const std::optional<LogLevel> level = LogLevelNamed(line.level());
    return !least.has_value() || (level.has_value() && *level >= *least);
  };
}

void SetTime(double seconds, google::protobuf::Timestamp* time) {
  // The records count in doubles; the wire has the seconds and the rest apart.
  time->set_seconds(static_cast<int64_t>(seconds));
  time->set_nanos(static_cast<int32_t>((seconds - std::floor(seconds)) * 1e9));
}

// This is the default of checkpoint.timeout as well (service/checkpoint_host.cc), so
// that the caller waits no shorter than the save may take.
constexpr absl::Duration kDefaultSaveTimeout = absl::Minutes(10);
// A change of the state ends a wait early; this interval
// only notices deadlines and callers that have gone.
constexpr double kLookSeconds = 0.5;

std::string BaseFormatText(const v1::ModelSpec& model) {
  return plan::TextOf(plan::BaseFormatOf(model) == kernels::BaseFormat::kNone
                          ? v1::BASE_FORMAT_NONE
                          : model.base_format());
}

// A job that resumes as another model, or with other random numbers, is another job: that must be
// intended.
absl::Status CheckChanges(const v1::JobRecord& job, const v1::JobSpec& spec,
                          const v1::ResumeRequest& request) {
  // Without a checkpoint, or from the beginning, nothing is loaded that could contradict.
  const bool from_beginning = request.has_from_step() && request.from_step() == 0;
  if (request.accept_change() || from_beginning || job.checkpoint_step() == 0) {
    return absl::OkStatus();
  }
  v1::ModelSpec ours = spec.model();
  // The data decides it where the job file does not.
  if (ours.vocab_size() == 0) ours.set_vocab_size(job.spec().model().vocab_size());
  std::vector<std::string> changes;
  for (const checkpoint::ModelDifference& difference :
       checkpoint::DifferencesOf(ours, job.spec().model())) {
    changes.push_back(absl::StrCat("model.", difference.key, ": ", difference.ours, ", previously ",
                                   difference.theirs));
  }
  // Codes of one format are not those of another.
  if (plan::BaseFormatOf(ours) != plan::BaseFormatOf(job.spec().model())) {
    changes.push_back(absl::StrCat("model.base_format: ", BaseFormatText(ours), ", previously ",
                                   BaseFormatText(job.spec().model())));
  }
  if (spec.training().seed() != job.spec().training().seed()) {
    changes.push_back(absl::StrCat("training.seed: ", spec.training().seed(), ", previously ",
                                   job.spec().training().seed()));
  }
  // A reference is computed again from the weights that the job began with.
  if (plan::HasReference(spec.training())) {
    if (spec.model().from() != job.spec().model().from()) {
      changes.push_back(absl::StrCat("model.from, the reference: ", spec.model().from(),
                                     ", previously ", job.spec().model().from()));
    }
    if (spec.training().objective() != job.spec().training().objective()) {
      changes.push_back(
          absl::StrCat("training.objective: ", plan::TextOf(spec.training().objective()),
                       ", previously ", plan::TextOf(job.spec().training().objective())));
    }
  }
  if (changes.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the job's checkpoints were made with different values: ", absl::StrJoin(changes, "; "),
      ". To accept the change use --accept-change; to start over use --from-step 0"));
}

v1::CheckpointInfo InfoOf(const v1::JobRecord& job, const checkpoint::Committed& committed) {
  v1::CheckpointInfo info;
  info.set_job_id(job.id());
  info.set_step(committed.step);
  info.set_path(committed.path);
  info.set_bytes(committed.bytes);
  info.set_attempt(committed.attempt);
  // The disk says what is there; the record adds what is known of it.
  for (const v1::CheckpointRecord& known : job.checkpoints()) {
    if (known.step() != committed.step) continue;
    if (known.committed_at() > 0) SetTime(known.committed_at(), info.mutable_committed_at());
    if (known.verified_at() > 0) SetTime(known.verified_at(), info.mutable_verified_at());
    info.set_problem(known.problem());
    info.set_best(job.best().step() == known.step() && Counts(job, known));
  }
  return info;
}

std::vector<checkpoint::Committed> InOrderOfSteps(std::vector<checkpoint::Committed> all) {
  // A directory lists its entries in any order; people compare the answers.
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return all;
}

}  // namespace

grpc::Status JobServiceImpl::Submit(grpc::ServerContext*, const v1::SubmitRequest* request,
                                    v1::SubmitResponse* response) {
  return SubmitFor("", *request, response);
}

grpc::Status JobServiceImpl::SubmitFor(const std::string& owner, const v1::SubmitRequest& request,
                                       v1::SubmitResponse* response) {
  v1::JobSpec spec = request.spec();
  // Admission may change the specification: it settles what `auto` means.
  if (absl::Status status = admit_(&spec); !status.ok()) return ToGrpc(status);
  const absl::StatusOr<std::string> id = coordinator_.Submit(spec, request.request_id(), owner);
  if (!id.ok()) return ToGrpc(id.status());
  response->set_job_id(*id);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Get(grpc::ServerContext*, const v1::GetRequest* request,
                                 v1::JobStatus* response) {
  // Figures of ranks are large, and are copied only where they are asked for.
  const auto job = coordinator_.View(request->job(), request->ranks());
  if (!job.ok()) return ToGrpc(job.status());
  *response = StatusOf(*job);
  return ToGrpc(AddDetails(*job, job->plan.get(), request->ranks(), response));
}

grpc::Status JobServiceImpl::List(grpc::ServerContext*, const v1::ListRequest*,
                                  v1::ListResponse* response) {
  // Lists are polled with thousands of jobs: plans and rank tables are left out.
  for (const Coordinator::JobView& job : coordinator_.Views()) {
    *response->add_jobs() = BriefStatusOf(job);
  }
  return grpc::Status::OK;
}

// Adds what the store holds beside the record.
absl::Status JobServiceImpl::AddDetails(const Coordinator::JobView& job, const v1::Plan* plan,
                                        bool ranks, v1::JobStatus* status) {
  const v1::JobRecord& record = job.record;
  Store& store = coordinator_.store();
  // The ranks of the attempt that broke are shown even where a later one is running.
  if (record.fault_rank_plus_one() > 0) {
    TERCIO_ASSIGN_OR_RETURN(const auto exits, store.Exits(record.id(), record.fault_attempt()));
    AddLastLines(record, exits, plan, status);
  }
  if (!ranks || plan == nullptr) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const auto exits, store.Exits(record.id(), record.attempt()));
  AddRanks(job, *plan, exits, status);
  return absl::OkStatus();
}

// Only the newest state: a client that is slow misses those between. Plans are large: sent again
// only when they change, and in the last message. Figures of ranks, also large, are sent now and
// then.
class JobServiceImpl::Watcher {
 public:
  Watcher(JobServiceImpl& service, const v1::WatchRequest& request)
      : service_(service), request_(request) {}

  // Called by the hub's thread: what it reads is one consistent view, taken under one lock.
  absl::StatusOr<Page<v1::JobStatus>> Read() {
    TERCIO_ASSIGN_OR_RETURN(Coordinator::JobView job,
                            service_.coordinator_.View(request_.job(), request_.ranks()));
    Page<v1::JobStatus> page;
    page.ended = IsTerminal(job.record.phase());
    const absl::Time now = SteadyNow();
    const bool details = page.ended || now - detailed_ >= kDetailInterval;
    // Everything that is shown and is no part of the record counts as a change as well.
    std::string bytes =
        absl::StrCat(job.queue_position, " ", job.loading.has_value() ? job.loading->bytes : -1,
                     " ", job.record.SerializeAsString());
    const bool other_figures = details && request_.ranks() && job.figures_heard != figures_heard_;
    if (bytes == last_ && !other_figures) return page;
    last_ = std::move(bytes);
    const std::shared_ptr<const v1::Plan> plan = job.plan;
    // Equal pointers mean the same plan, since a plan is never changed once it is published.
    if (plan == told_ && !page.ended) {
      job.plan = nullptr;
    } else {
      told_ = plan;
    }
    v1::JobStatus status = StatusOf(job);
    // Exits are in the store: asking for them at each of many changes per second would be slow.
    if (details) {
      detailed_ = now;
      figures_heard_ = job.figures_heard;
      TERCIO_RETURN_IF_ERROR(service_.AddDetails(job, plan.get(), request_.ranks(), &status));
    }
    page.messages.push_back(std::move(status));
    return page;
  }

 private:
  static constexpr absl::Duration kDetailInterval = absl::Seconds(1);

  JobServiceImpl& service_;
  const v1::WatchRequest request_;
  std::string last_;
  std::shared_ptr<const v1::Plan> told_;
  absl::Time detailed_ = absl::InfinitePast();
  uint64_t figures_heard_ = 0;
};

grpc::ServerWriteReactor<v1::JobStatus>* JobServiceImpl::Watch(grpc::CallbackServerContext* context,
                                                               const v1::WatchRequest* request) {
  // The hub calls `Read` after this function has returned, so the stream owns the watcher.
  auto watcher = std::make_shared<Watcher>(*this, *request);
  return streams_.Open<v1::JobStatus>(context, StreamHub::Kind::kFollows,
                                      [watcher] { return watcher->Read(); });
}

grpc::Status JobServiceImpl::Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                                    v1::CancelResponse*) {
  // The name is resolved once, so that the event names the
  // same job whatever is submitted meanwhile.
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  return ToGrpc(
      coordinator_.Ask(CancelRequested{job->id(), request->save_checkpoint(), request->reason()}));
}

grpc::Status JobServiceImpl::Resume(grpc::ServerContext*, const v1::ResumeRequest* request,
                                    v1::JobStatus* response) {
  const absl::StatusOr<v1::JobRecord> job =
      request->job().empty() ? coordinator_.NewestUnfinished() : coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  v1::JobSpec spec = request->has_spec() ? request->spec() : job->spec();
  // The specification may be of another day: the rules of this version apply to it.
  if (absl::Status status = admit_(&spec); !status.ok()) return ToGrpc(status);
  if (absl::Status status = CheckChanges(*job, spec, *request); !status.ok()) return ToGrpc(status);
  ResumeRequested resume{job->id(), spec, request->accept_data_change(), {}};
  if (request->has_from_step()) resume.from_step = request->from_step();
  const absl::Status status = coordinator_.Ask(std::move(resume));
  if (!status.ok()) return ToGrpc(status);
  // The job may have been deleted since.
  const absl::StatusOr<Coordinator::JobView> view = coordinator_.View(job->id());
  if (!view.ok()) return ToGrpc(view.status());
  *response = StatusOf(*view);
  return grpc::Status::OK;
}

grpc::ServerWriteReactor<v1::StepRecord>* JobServiceImpl::History(
    grpc::CallbackServerContext* context, const v1::HistoryRequest* request) {
  Store::StepCursor start;
  start.step = request->after_step();
  auto read = [this, asked = *request,
               after = start]() mutable -> absl::StatusOr<Page<v1::StepRecord>> {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord job, coordinator_.Find(asked.job()));
    TERCIO_ASSIGN_OR_RETURN(auto steps, coordinator_.store().Steps(
                                            job.id(), after,
                                            [&](const v1::StepRecord& step) {
                                              return asked.all_attempts() || StepCounts(job, step);
                                            },
                                            // The hub holds one page of a stream at a
                                            // time, which bounds its memory.
                                            kMostPageMessages));
    Page<v1::StepRecord> page;
    page.more = steps.size() == kMostPageMessages;
    // A job that has ended writes no more steps, so following it ends with the last of them.
    page.ended = !page.more && (!asked.follow() || IsTerminal(job.phase()));
    // A step that was sent is not sent again when another attempt repeats it.
    after.attempt = page.more ? steps.back().attempt() : Store::StepCursor().attempt;
    if (!steps.empty()) after.step = steps.back().step();
    page.messages.assign(steps.begin(), steps.end());
    return page;
  };
  return streams_.Open<v1::StepRecord>(context, KindOf(*request), std::move(read));
}

grpc::ServerWriteReactor<v1::JobEvent>* JobServiceImpl::Events(grpc::CallbackServerContext* context,
                                                               const v1::EventsRequest* request) {
  auto read = [this, asked = *request,
               after = int64_t{0}]() mutable -> absl::StatusOr<Page<v1::JobEvent>> {
    std::string id;
    // Without a job these are the events of the whole cluster, which never end.
    bool ended = !asked.follow();
    if (!asked.job().empty()) {
      TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord job, coordinator_.Find(asked.job()));
      id = job.id();
      ended = ended || IsTerminal(job.phase());
    }
    TERCIO_ASSIGN_OR_RETURN(const auto events,
                            coordinator_.store().Events(id, after, kMostPageMessages));
    Page<v1::JobEvent> page;
    page.more = events.size() == kMostPageMessages;
    page.ended = !page.more && ended;
    if (!events.empty()) after = events.back().sequence();
    page.messages.assign(events.begin(), events.end());
    return page;
  };
  return streams_.Open<v1::JobEvent>(context, KindOf(*request), std::move(read));
}

grpc::ServerWriteReactor<v1::LogLine>* JobServiceImpl::Logs(grpc::CallbackServerContext* context,
                                                            const v1::LogsRequest* request) {
  // A negative cursor means that the first page has not been read: `tail` counts once.
  auto read = [this, wanted = LineFilterOf(*request), asked = *request,
               after = int64_t{-1}]() mutable -> absl::StatusOr<Page<v1::LogLine>> {
    if (!asked.level().empty() && !LogLevelNamed(asked.level()).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("unknown log level ", asked.level()));
    }
    TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord job, coordinator_.Find(asked.job()));
    if (after < 0) {
      after = asked.after();
      if (asked.tail() > 0) {
        TERCIO_ASSIGN_OR_RETURN(
            const int64_t tail,
            coordinator_.store().LogTail(job.id(), wanted, static_cast<size_t>(asked.tail())));
        // `after` and `tail` may both be given: the later beginning wins.
        after = std::max(after, tail);
      }
    }
    TERCIO_ASSIGN_OR_RETURN(const auto lines,
                            coordinator_.store().Logs(job.id(), &after, wanted, kMostPageMessages));
    Page<v1::LogLine> page;
    page.more = lines.size() == kMostPageMessages;
    page.ended = !page.more && (!asked.follow() || IsTerminal(job.phase()));
    page.messages.assign(lines.begin(), lines.end());
    return page;
  };
  return streams_.Open<v1::LogLine>(context, KindOf(*request), std::move(read));
}

grpc::ServerWriteReactor<v1::RankTrace>* JobServiceImpl::Trace(grpc::CallbackServerContext* context,
                                                               const v1::TraceRequest* request) {
  // A trace is one page: it holds the newest attempt only.
  auto read = [this, id = request->job()]() -> absl::StatusOr<Page<v1::RankTrace>> {
    TERCIO_ASSIGN_OR_RETURN(const v1::JobRecord job, coordinator_.Find(id));
    TERCIO_ASSIGN_OR_RETURN(const auto traces, coordinator_.store().Traces(job.id()));
    Page<v1::RankTrace> page;
    page.messages.assign(traces.begin(), traces.end());
    page.ended = true;
    return page;
  };
  return streams_.Open<v1::RankTrace>(context, StreamHub::Kind::kEnds, std::move(read));
}

grpc::Status JobServiceImpl::Nodes(grpc::ServerContext*, const v1::NodesRequest*,
                                   v1::NodesResponse* response) {
  for (const Coordinator::NodeView& view : coordinator_.Nodes()) {
    const v1::AgentHello& hello = view.state.hello;
    v1::Node* node = response->add_nodes();
    node->set_name(hello.node());
    node->set_address(hello.data_address());
    node->set_state(view.name);
    node->set_reason(view.state.record.reason());
    node->set_version(hello.version());
    node->set_metrics_address(hello.metrics_address());
    node->set_device_kind(hello.device_kind());
    node->set_devices(hello.devices());
    node->set_free(view.free);
    // A protobuf map has no order; the answer is the same each time.
    const auto& faults = view.state.record.device_faults();
    for (const auto& [device, fault] : std::map<int, std::string>(faults.begin(), faults.end())) {
      v1::FaultyDevice* faulty = node->add_faulty_devices();
      faulty->set_device(device);
      faulty->set_fault(fault);
    }
    node->mutable_last_heartbeat()->set_seconds(static_cast<int64_t>(view.state.last_heard));
    if (view.state.record.has_figures()) *node->mutable_figures() = view.state.record.figures();
  }
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::ChangeNode(grpc::ServerContext*, const v1::ChangeNodeRequest* request,
                                        v1::ChangeNodeResponse*) {
  NodeChangeRequested change{request->node(), NodeChange::kDrain};
  switch (request->change()) {
    case v1::ChangeNodeRequest::CHANGE_DRAIN:
      break;
    case v1::ChangeNodeRequest::CHANGE_UNDRAIN:
      change.change = NodeChange::kUndrain;
      break;
    case v1::ChangeNodeRequest::CHANGE_RELEASE:
      change.change = NodeChange::kRelease;
      break;
    default:
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "unknown node change");
  }
  return ToGrpc(coordinator_.Ask(change));
}

grpc::Status JobServiceImpl::RecordFigures(grpc::ServerContext*,
                                           const v1::RecordFiguresRequest* request,
                                           v1::RecordFiguresResponse*) {
  if (!request->has_figures()) {
    return ToGrpc(coordinator_.Ask(FiguresRecorded{request->node(), std::nullopt}));
  }
  // The core only keeps them.
  if (absl::Status status = plan::cost::CheckFigures(request->figures()); !status.ok()) {
    return ToGrpc(status);
  }
  return ToGrpc(coordinator_.Ask(FiguresRecorded{request->node(), request->figures()}));
}

grpc::Status JobServiceImpl::Drill(grpc::ServerContext* context, const v1::DrillRequest* request,
                                   // This holds a thread of gRPC's until the job
                                   // has recovered or the caller has gone.
                                   v1::DrillResponse* response) {
  const absl::StatusOr<v1::DrillResponse> done =
      RunDrill(coordinator_, *request, [context] { return context->IsCancelled(); });
  if (!done.ok()) return ToGrpc(done.status());
  *response = *done;
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::Checkpoints(grpc::ServerContext*,
                                         const v1::CheckpointsRequest* request,
                                         v1::CheckpointsResponse* response) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  const auto there = coordinator_.CheckpointsOf(job->id()).List(job->id());
  // A job that has not saved has no directory. If it has saved, its volume is missing.
  if (absl::IsNotFound(there.status()) && job->checkpoints_size() == 0) return grpc::Status::OK;
  if (!there.ok()) return ToGrpc(there.status());
  for (const checkpoint::Committed& committed : InOrderOfSteps(*there)) {
    *response->add_checkpoints() = InfoOf(*job, committed);
  }
  return grpc::Status::OK;
}

// Reads as many of the newest ones as are to be kept: a removed one does not come back,
// and what was right when it was verified may be damaged since.
absl::Status JobServiceImpl::VerifyNewest(int count, v1::JobRecord* job) {
  checkpoint::Store& store = coordinator_.CheckpointsOf(job->id());
  TERCIO_RETURN_IF_ERROR(store.List(job->id()).status());
  int good = 0;
  for (int i = job->checkpoints_size() - 1; i >= 0 && good < count; --i) {
    v1::CheckpointRecord& known = *job->mutable_checkpoints(i);
    TERCIO_ASSIGN_OR_RETURN(const auto findings,
                            coordinator_.Verify(store.PathOf(job->id(), known.step())));
    const CheckpointVerified verdict = VerdictOf(job->id(), known.step(), findings);
    // A file system that is away is no reason to remove what may be the last good checkpoint.
    if (!verdict.problem.empty() && !verdict.damaged) {
      return absl::FailedPreconditionError(
          absl::StrCat("no checkpoint is removed while one cannot be read: ", verdict.problem));
    }
    known.set_problem(verdict.problem);
    // Any time but zero means that it is verified; the core sets the right one.
    if (verdict.problem.empty()) known.set_verified_at(1);
    good += verdict.problem.empty() ? 1 : 0;
    coordinator_.Post(verdict);
  }
  return absl::OkStatus();
}

grpc::Status JobServiceImpl::PruneCheckpoints(grpc::ServerContext*,
                                              const v1::PruneCheckpointsRequest* request,
                                              v1::PruneCheckpointsResponse* response) {
  absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  if (const absl::Status status = coordinator_.MayWrite(); !status.ok()) return ToGrpc(status);
  if (request->keep_last() < 0) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "keep_last must not be negative");
  }
  const v1::CheckpointSpec& wanted = job->spec().checkpoint();
  const int keep_last = request->keep_last() > 0 ? request->keep_last() : wanted.keep_last();
  checkpoint::Store& store = coordinator_.CheckpointsOf(job->id());
  // The verification comes before the choice, so that a damaged checkpoint replaces no good one.
  if (absl::Status verified = VerifyNewest(std::max(1, keep_last), &*job); !verified.ok()) {
    return ToGrpc(verified);
  }
  std::set<int64_t> removed;
  for (const v1::CheckpointRecord& old :
       SuperfluousCheckpoints(*job, keep_last, wanted.keep_every())) {
    removed.insert(old.step());
  }
  const auto there = store.List(job->id());
  if (!there.ok()) return ToGrpc(there.status());
  // The disk decides what is reported: a record without files was removed before.
  for (const checkpoint::Committed& committed : InOrderOfSteps(*there)) {
    if (!removed.contains(committed.step)) {
      *response->add_kept() = InfoOf(*job, committed);
      continue;
    }
    *response->add_removed() = InfoOf(*job, committed);
    // Everything above has happened, so that a dry run shows exactly what would follow.
    if (request->dry_run()) continue;
    if (const absl::Status status = store.Remove(job->id(), committed.step); !status.ok()) {
      return ToGrpc(status);
    }
    coordinator_.Post(CheckpointRemoved{job->id(), committed.step, committed.attempt});
  }
  return grpc::Status::OK;
}

// Whether retention removed it while it was read.
bool JobServiceImpl::WasRemoved(const std::string& job, int64_t step) const {
  const auto found = coordinator_.CheckpointsOf(job).Find(job, step);
  if (!absl::IsNotFound(found.status())) return false;
  const absl::StatusOr<v1::JobRecord> record = coordinator_.Find(job);
  if (!record.ok()) return true;
  const auto& known = record->checkpoints();
  const bool listed =
      std::any_of(known.begin(), known.end(),
                  [step](const v1::CheckpointRecord& one) { return one.step() == step; });
  return !listed || IsSuperfluous(*record, step);
}

grpc::Status JobServiceImpl::VerifyCheckpoint(grpc::ServerContext*,
                                              const v1::VerifyCheckpointRequest* request,
                                              v1::VerifyCheckpointResponse* response) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  const auto there = coordinator_.CheckpointsOf(job->id()).List(job->id());
  if (!there.ok()) return ToGrpc(there.status());
  for (const checkpoint::Committed& committed : InOrderOfSteps(*there)) {
    if (request->step() > 0 && committed.step != request->step()) continue;
    const auto findings = coordinator_.Verify(committed.path);
    if (!findings.ok()) return ToGrpc(findings.status());
    // Retention works beside this call; what it takes away is no damage.
    if (WasRemoved(job->id(), committed.step)) continue;
    for (const checkpoint::Finding& found : *findings) {
      v1::CheckpointFinding* finding = response->add_findings();
      finding->set_path(found.path);
      finding->set_ok(found.problem.empty());
      finding->set_problem(found.problem);
      finding->set_step(committed.step);
    }
    // A reader of a state directory must not change it, but may say what it has found.
    if (coordinator_.MayWrite().ok()) {
      coordinator_.Post(VerdictOf(job->id(), committed.step, *findings));
    }
  }
  if (response->findings_size() == 0) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "the job has no such checkpoint");
  }
  return grpc::Status::OK;
}

// Answers when a step after the one that was running is committed, or its save has failed.
grpc::Status JobServiceImpl::SaveCheckpoint(grpc::ServerContext* context,
                                            const v1::SaveCheckpointRequest* request,
                                            v1::CheckpointInfo* response) {
  const absl::StatusOr<v1::JobRecord> before = coordinator_.Find(request->job());
  if (!before.ok()) return ToGrpc(before.status());
  const double limit = request->timeout_seconds() > 0
                           ? request->timeout_seconds()
                           : before->spec().checkpoint().timeout_seconds();
  const absl::Time deadline =
      SteadyNow() + (limit > 0 ? absl::Seconds(limit) : kDefaultSaveTimeout);
  // The version is taken before asking, so that no change between the two goes unnoticed.
  uint64_t version = coordinator_.version();
  if (absl::Status asked = coordinator_.Ask(SaveRequested{before->id()}); !asked.ok()) {
    return ToGrpc(asked);
  }
  // The step that runs now is the first that the save can hold; a job at its end saves its last.
  const int64_t least = std::min(before->step() + 1, before->spec().training().steps());
  while (!context->IsCancelled()) {
    const absl::StatusOr<v1::JobRecord> now = coordinator_.Find(before->id());
    if (!now.ok()) return ToGrpc(now.status());
    if (now->checkpoint_attempt() == before->attempt() && now->checkpoint_step() >= least) {
      // The job may have been deleted since.
      const absl::StatusOr<Coordinator::JobView> view = coordinator_.View(before->id());
      if (!view.ok()) return ToGrpc(view.status());
      *response = *StatusOf(*view).mutable_checkpoint();
      return grpc::Status::OK;
    }
    // The attempt may have had failed saves before; only those of this step or later count.
    if (now->failed_save_step() >= least) return ToGrpc(absl::AbortedError(now->save_error()));
    if (now->attempt() != before->attempt() || IsTerminal(now->phase())) {
      return ToGrpc(absl::AbortedError(
          absl::StrCat("the attempt ended before it could save: ", now->error())));
    }
    if (SteadyNow() > deadline) {
      return ToGrpc(absl::DeadlineExceededError(
          absl::StrCat("step ", least, " is not committed yet; the save continues")));
    }
    version = coordinator_.WaitForChange(version, kLookSeconds);
  }
  return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has disconnected");
}

grpc::Status JobServiceImpl::Delete(grpc::ServerContext*, const v1::DeleteRequest* request,
                                    v1::DeleteResponse* response) {
  const absl::StatusOr<v1::JobRecord> job = coordinator_.Find(request->job());
  if (!job.ok()) return ToGrpc(job.status());
  response->set_job_id(job->id());
  if (request->checkpoints()) {
    // The sizes are taken before the record is gone.
    response->set_checkpoints(job->checkpoints_size());
    for (const v1::CheckpointRecord& known : job->checkpoints()) {
      response->set_checkpoint_bytes(response->checkpoint_bytes() + known.bytes());
    }
  }
  return ToGrpc(coordinator_.Ask(DeleteRequested{job->id(), request->checkpoints()}));
}

grpc::Status JobServiceImpl::Version(grpc::ServerContext*, const v1::VersionRequest*,
                                     v1::VersionResponse* response) {
  response->set_version(kVersion);
  response->set_commit(kCommit);
  response->set_state_dir(state_dir_);
  response->set_metrics_address(metrics_address_);
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
