#include "coordinator/service/drills.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::coordinator {
namespace {

// It covers a restart with its back-off and the loading of a large model.
constexpr double kTimeout = 600;
constexpr double kPollSeconds = 0.2;

// Events that can be the detection of a fault. An event that only follows from the fault does not
// count: a killed rank also ends the save in which it took part, and what noticed the kill is not
// that save's failure.
constexpr std::string_view kBrokenAttempt[] = {"rank_exited", "attempt_broken", "node_lost",
                                               "hang",        "straggler",      "replicas_differ"};
// A corrupted checkpoint is found when an attempt starts from it, hence the kill, which is noticed
// first; what the drill measures is whether the damage is found.
constexpr std::string_view kDamagedCheckpoint[] = {"checkpoint_damaged"};
constexpr std::string_view kFailedSave[] = {"checkpoint_failed"};

// How a fault is injected, and how a job reacts.
struct Kind {
  std::string_view name;
  double seconds;      // its length where the request gives none
  bool breaks;         // the attempt ends
  const char* inject;  // the node's order; null: none
  std::span<const std::string_view> detections = kBrokenAttempt;
};
constexpr Kind kKinds[] = {
    {"kill-trainer", 0, true, "kill-trainer"},
    {"freeze-trainer", 0, true, "freeze-trainer"},
    {"kill-agent", 0, false, "kill-agent"},
    {"flip-bit", 0, true, "flip-bit"},
    {"slow-rank", 30, false, "slow-rank"},
    {"partition-node", 5, false, "partition-node"},
    {"corrupt-checkpoint", 0, true, "kill-trainer", kDamagedCheckpoint},
    {"full-disk", 10, false, nullptr, kFailedSave},
};

const Kind* FindKind(std::string_view fault) {
  for (const Kind& kind : kKinds) {
    if (kind.name == fault) return &kind;
  }
  return nullptr;
}

bool Detects(const Kind& kind, std::string_view event) {
  return std::ranges::find(kind.detections, event) != kind.detections.end();
}

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + time.nanos() / 1e9;
}

// One byte in the middle of the largest file.
absl::Status CorruptNewest(Coordinator& coordinator, const std::string& job) {
  TERCIO_ASSIGN_OR_RETURN(const std::vector<checkpoint::Committed> all,
                          coordinator.CheckpointsOf(job).List(job));
  if (all.empty()) return absl::FailedPreconditionError("the job has no checkpoint");
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(all.back().path)) {
    if (!entry.is_regular_file()) continue;
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) {
      largest = entry.path();
    }
  }
  // The file is opened for reading as well, since opening it for writing alone would empty it.
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  // The middle of the largest file lies inside a tensor, where only digests notice a change.
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(largest) / 2);
  file.seekg(middle);
  const int byte = file.get();
  file.seekp(middle);
  // One bit is the smallest damage: a check that finds it finds any.
  file.put(static_cast<char>(byte ^ 1));
  file.flush();
  if (!file.good()) return absl::InternalError(absl::StrCat("cannot change ", largest.string()));
  return absl::OkStatus();
}

class Drill {
 public:
  Drill(Coordinator& coordinator, const v1::DrillRequest& request)
      : coordinator_(coordinator), request_(request) {}

  absl::Status Begin() {
    const Kind* found = FindKind(request_.fault());
    if (found == nullptr) {
      std::vector<std::string> names;
      for (const Kind& kind : kKinds) names.emplace_back(kind.name);
      return absl::InvalidArgumentError(absl::StrCat("unknown fault ", request_.fault(),
                                                     "; available: ", absl::StrJoin(names, ", ")));
    }
    kind_ = *found;
    seconds_ = request_.seconds() > 0 ? request_.seconds() : kind_.seconds;
    // The job is looked at before the harm, so that the recovery can be compared with it.
    TERCIO_ASSIGN_OR_RETURN(const Coordinator::JobView view, coordinator_.View(request_.job()));
    before_ = view.record;
    // Events that are older than the drill detect nothing.
    TERCIO_ASSIGN_OR_RETURN(const auto events, coordinator_.store().Events(before_.id(), 0));
    if (!events.empty()) after_ = events.back().sequence();
    v1::InjectFault fault;
    fault.set_drill_id(RandomHex(4));
    fault.set_fault(kind_.inject == nullptr ? std::string(kind_.name) : kind_.inject);
    fault.set_rank(request_.rank());
    fault.set_seconds(seconds_);
    TERCIO_RETURN_IF_ERROR(coordinator_.MayDrill());
    // Before any harm is done.
    TERCIO_RETURN_IF_ERROR(CheckDrill(before_, *view.placement, fault.rank()));
    TERCIO_RETURN_IF_ERROR(CheckFlip());
    if (Corrupts() && Checkpoints() < 2) {
      return absl::FailedPreconditionError(
          "corrupt-checkpoint needs a job with two checkpoints, so that one is left");
    }
    TERCIO_RETURN_IF_ERROR(
        // The core notes the drill as an event, whose time is the beginning of all measurements.
        coordinator_.Ask(DrillRequested{before_.id(), fault, kind_.inject != nullptr}));
    if (request_.fault() == "full-disk") {
      coordinator_.CheckpointsOf(before_.id()).PretendFull(SteadyNow() + absl::Seconds(seconds_));
    }
    response_.set_fault(request_.fault());
    response_.set_rank(request_.rank());
    response_.set_node(view.placement->NodeOf(request_.rank()));
    return absl::OkStatus();
  }

  // True when the job has recovered.
  absl::StatusOr<bool> Look() {
    // Before the events, which then hold what has led to it.
    TERCIO_ASSIGN_OR_RETURN(const Coordinator::JobView now, coordinator_.View(before_.id()));
    TERCIO_RETURN_IF_ERROR(CorruptInTime(now.record));
    TERCIO_ASSIGN_OR_RETURN(const auto events, coordinator_.store().Events(before_.id(), after_));
    for (const v1::JobEvent& event : events) {
      after_ = event.sequence();
      const double time = SecondsOf(event.time());
      if (event.kind() == "drill") start_ = time;
      if (event.kind() == "drill_failed") return absl::FailedPreconditionError(event.message());
      if (start_ > 0 && response_.detected_by().empty() && Detects(kind_, event.kind())) {
        response_.set_detected_seconds(time - start_);
        response_.set_detected_by(absl::StrCat(event.kind(), ": ", event.message()));
      }
    }
    if (IsTerminal(now.record.phase())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the job has ended before it could recover: ", now.record.error()));
    }
    if (!Recovered(now)) return false;
    response_.set_recovered_seconds(now.record.progress_at() - start_);
    // An attempt that has outlived the fault has lost no step.
    const bool other = now.record.attempt() > before_.attempt();
    response_.set_steps_lost(other ? std::max<int64_t>(0, highest_ - now.record.resume_step()) : 0);
    return true;
  }

  const v1::DrillResponse& response() const { return response_; }

 private:
  // A flipped bit that no check can find would stay in the job's weights.
  absl::Status CheckFlip() const {
    if (request_.fault() != "flip-bit") return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(const Coordinator::JobView now, coordinator_.View(before_.id()));
    const bool replicas = now.plan != nullptr && now.plan->layout().data() > 1;
    if (replicas && before_.spec().fault_tolerance().check_replicas_every() > 0) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        "flip-bit needs a job with data-parallel replicas that are compared "
        "(fault_tolerance.check_replicas_every)");
  }

  size_t Checkpoints() const {
    const auto all = coordinator_.CheckpointsOf(before_.id()).List(before_.id());
    return all.ok() ? all->size() : 0;
  }
  bool Corrupts() const { return request_.fault() == "corrupt-checkpoint"; }

  // Between two attempts: nothing newer is committed then, and the search for the newest has not
  // begun.
  absl::Status CorruptInTime(const v1::JobRecord& record) {
    if (!Corrupts() || corrupted_) return absl::OkStatus();
    if (record.phase() == v1::JOB_PHASE_BACKING_OFF) {
      corrupted_ = true;
      return CorruptNewest(coordinator_, record.id());
    }
    if (record.attempt() == before_.attempt()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the next attempt began before its checkpoint could be corrupted");
  }

  bool Recovered(const Coordinator::JobView& now) {
    const v1::JobRecord& record = now.record;
    const bool same = record.attempt() == before_.attempt();
    if (same) highest_ = std::max(highest_, record.step());
    // A phase alone proves nothing: a step does.
    if (record.phase() != v1::JOB_PHASE_RUNNING || !record.progress().stepped()) return false;
    if (!same) return true;
    // The attempt has outlived the fault: it must be over, and a step done after it.
    if (kind_.breaks || start_ == 0) return false;
    const double over = start_ + seconds_;
    if (now.now < over) return false;
    if (!over_) {
      over_ = true;
      step_at_end_ = record.step();
    }
    return record.step() > step_at_end_;
  }

  Coordinator& coordinator_;
  const v1::DrillRequest& request_;
  Kind kind_ = kKinds[0];
  double seconds_ = 0;
  v1::JobRecord before_;
  int64_t after_ = 0;    // sequence of the last event seen
  double start_ = 0;     // time of the drill's event
  int64_t highest_ = 0;  // step of the attempt that was harmed
  bool over_ = false;
  bool corrupted_ = false;
  int64_t step_at_end_ = 0;
  v1::DrillResponse response_;
};

}  // namespace

bool DrillDetectedBy(std::string_view fault, std::string_view event) {
  const Kind* kind = FindKind(fault);
  return kind != nullptr && Detects(*kind, event);
}

absl::StatusOr<v1::DrillResponse> RunDrill(Coordinator& coordinator,
                                           const v1::DrillRequest& request,
                                           const std::function<bool()>& cancelled) {
  Drill drill(coordinator, request);
  TERCIO_RETURN_IF_ERROR(drill.Begin());
  const double timeout = request.timeout_seconds() > 0 ? request.timeout_seconds() : kTimeout;
  const absl::Time deadline = SteadyNow() + absl::Seconds(timeout);
  while (!cancelled()) {
    const uint64_t version = coordinator.version();
    TERCIO_ASSIGN_OR_RETURN(const bool recovered, drill.Look());
    if (recovered) return drill.response();
    if (SteadyNow() > deadline) {
      const std::string& seen = drill.response().detected_by();
      return absl::DeadlineExceededError(
          absl::StrCat("the job has not recovered within ", timeout, " s; ",
                       seen.empty() ? "nothing was detected" : absl::StrCat("detected: ", seen)));
    }
    coordinator.WaitForChange(version, kPollSeconds);
  }
  return absl::CancelledError("cancelled; the job continues");
}

}  // namespace tercio::coordinator
