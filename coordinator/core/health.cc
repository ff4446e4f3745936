// Runs that make no progress, and ranks that make the others wait.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/stepper.h"

namespace tercio::coordinator {
namespace {

// Nodes answer within this time, or are taken not to answer.
constexpr double kInspectSeconds = 5;

// Records how far the node's ranks are with loading; whether bytes have arrived since its last
// report.
bool HeardLoading(const std::string& node, const v1::RunHealth& health, RunHealthState* state) {
  const auto known = state->loading.find(node);
  if (health.load_total_bytes() <= 0) {
    if (known != state->loading.end()) known->second.ended = true;
    return false;
  }
  // While ranks load, bytes that arrive since the last report are the only sign of progress.
  const int64_t before = known == state->loading.end() ? 0 : known->second.bytes;
  state->loading[node] = {health.loaded_bytes(), health.load_total_bytes(), false};
  return health.loaded_bytes() > before;
}

// "; its ranks are loading their state, 3.100 of 84.000 GB"; empty: they are not.
std::string DescribeLoading(const RunHealthState& state) {
  const auto loading = state.LoadingOfAll();
  if (!loading.has_value()) return "";
  return absl::StrFormat("; its ranks are loading their state, %.3f of %.3f GB",
                         static_cast<double>(loading->bytes) / 1e9,
                         static_cast<double>(loading->total_bytes) / 1e9);
}

}  // namespace

RunHealthState& Stepper::HealthOf(JobState& job) {
  if (job.health == nullptr) {
    job.health = std::make_shared<RunHealthState>();
    // The watchdog starts without steps, so that a new attempt has the longer patience of a start.
    job.health->watchdog = RunWatchdog(job.record.spec().fault_tolerance().hang_timeout_seconds());
    // Stages are known from the plan; without one nobody can be compared.
    if (job.plan != nullptr) job.health->stragglers.emplace(*job.plan);
  }
  return *job.health;
}

void Stepper::OnHeartbeat(const std::string& node, const v1::AgentHeartbeat& heartbeat) {
  DeviceFaults faults;
  std::set<int> lost;
  for (const v1::DeviceFault& fault : heartbeat.device_faults()) {
    faults[fault.device()] = fault.fault();
    if (fault.ends_runs()) lost.insert(fault.device());
  }
  // Faults of devices come before the ranks' figures:
  // they may end the very run that these are about.
  OnDeviceFaults(node, faults, lost);
  for (const v1::RunHealth& health : heartbeat.health()) {
    // A node that the attempt is not placed on has no say in it.
    if (IsOthers(health.run(), node)) continue;
    WithRun(health.run(), [&](JobState& job) {
      if (job.record.phase() != v1::JOB_PHASE_STARTING &&
          job.record.phase() != v1::JOB_PHASE_RUNNING) {
        return;
      }
      RunHealthState& state = HealthOf(job);
      const bool loads_more = HeardLoading(node, health, &state);
      // Ranks that load bytes make progress, though they report none.
      state.watchdog.OnHeartbeat(node, now_, loads_more ? 0 : health.stalled_seconds());
      for (const v1::RankFigures& figures : health.figures()) {
        if (figures.rank() < 0 || figures.rank() >= job.placement->ranks()) continue;
        state.figures[figures.rank()] = figures;
        ++state.figures_heard;
      }
      if (!state.stragglers.has_value()) return;
      std::vector<v1::RankTiming> timings;
      for (const v1::RankTiming& timing : health.timings()) {
        if (timing.rank() >= 0 && timing.rank() < job.placement->ranks()) {
          timings.push_back(timing);
        }
      }
      for (const StragglerChange& change : state.stragglers->Add(timings))
        OnStragglerChange(job, change);
    });
  }
}

std::optional<RunHealthState::Loading> RunHealthState::LoadingOfAll() const {
  Loading all{0, 0, /*ended=*/true};
  for (const auto& [node, part] : loading) {
    all.bytes += part.bytes;
    all.total_bytes += part.total_bytes;
    all.ended = all.ended && part.ended;
  }
  return all.ended ? std::nullopt : std::make_optional(all);
}

// Once for an attempt: the agents count them.
void Stepper::OnLinesLost(JobState& job, const std::string& node) {
  RunHealthState& state = HealthOf(job);
  if (state.noted_lost_lines) return;
  state.noted_lost_lines = true;
  Note(job, "log_lines_lost",
       "lines of its ranks' logs were dropped: too many, or the disk cannot be written; training "
       "continues (tercio_log_lines_lost_total of the agents counts them)",
       node);
}

void Stepper::OnStragglerChange(JobState& job, const StragglerChange& change) {
  const std::string& node = job.placement->NodeOf(change.rank);
  Note(job, change.slow ? EventKind("straggler") : EventKind("straggler_recovered"), change.text,
       node, change.rank);
  if (!change.slow ||
      job.record.spec().fault_tolerance().stragglers() != v1::STRAGGLER_POLICY_EXCLUDE ||
      job.record.phase() != v1::JOB_PHASE_RUNNING) {
    return;
  }
  // The node is avoided even where the job cannot move now: the next attempt heeds it.
  job.avoided.nodes.insert(node);
  // Devices that the job holds on other nodes become free by the move and count as room.
  int own = job.placement->ranks();
  for (const std::string& avoided : job.avoided.nodes) own -= job.placement->RanksOn(avoided);
  if (RoomBeside(job.record.spec(), job.avoided).free + own < job.placement->ranks()) {
    Note(job, "straggler_kept", absl::StrCat("no devices are free to replace those of ", node),
         node, change.rank);
    return;
  }
  Move(job, absl::StrCat("rank ", change.rank, " on node ", node, " is too slow"));
}

void Stepper::WatchForHangs() {
  for (JobState* const active : state_.jobs.Active()) {
    JobState& job = *active;
    const v1::JobPhase phase = job.record.phase();
    if (phase != v1::JOB_PHASE_STARTING && phase != v1::JOB_PHASE_RUNNING) continue;
    RunHealthState& state = HealthOf(job);
    const bool stalled = state.watchdog.ShouldInspect(now_);
    if (state.asked_at > 0) {
      // A step may simply have been slow; the ranks that answered have shown it.
      if (!stalled) {
        state.asked_at = 0;
        Note(job, "progress", "ranks make progress again");
      } else if (state.answered.size() == job.placement->nodes().size() ||
                 now_ - state.asked_at > kInspectSeconds) {
        // The diagnosis waits for all answers, but not for a node that cannot answer.
        Hang(job);
      }
      continue;
    }
    if (!stalled) continue;
    // Answers to an earlier question describe ranks that have moved since.
    state.asked_at = now_;
    state.answered.clear();
    state.positions.clear();
    state.stacks.Clear();
    Note(job, "no_progress",
         absl::StrCat("no rank has made progress for ",
                      static_cast<int64_t>(state.watchdog.StalledSeconds(now_)), " s",
                      DescribeLoading(state), "; asking all ranks for their positions"));
    for (const auto& [name, node] : job.placement->nodes()) {
      v1::CoordinatorMessage message;
      *message.mutable_inspect_run()->mutable_run() = RunOf(job.record);
      effects_.messages.push_back({name, std::move(message)});
    }
  }
}

void Stepper::OnRunInspected(JobState& job, const std::string& node,
                             const v1::RunInspected& answer) {
  if (job.health == nullptr || job.health->asked_at == 0) return;
  job.health->answered.insert(node);
  for (const v1::RankPosition& position : answer.ranks()) {
    // The numbers come from the network: one beyond the placement would name no node.
    if (position.rank() < 0 || position.rank() >= job.placement->ranks()) continue;
    const auto [kept, first] = job.health->positions.try_emplace(position.rank());
    // Stacks are kept once per kind and apart from the positions, since they may have megabytes.
    if (first) job.health->stacks.Add(position.rank(), position.stack());
    kept->second = position;
    kept->second.clear_stack();
  }
}

// The report comes first, then the attempt ends: aborting it destroys the evidence.
void Stepper::Hang(JobState& job) {
  Diagnosis diagnosis = Diagnose(*job.plan, job.health->positions);
  for (auto& [rank, text] : job.health->stacks.Report(diagnosis.culprits)) {
    v1::LogLine line;
    line.mutable_time()->set_seconds(static_cast<int64_t>(now_));
    line.set_attempt(job.record.attempt());
    line.set_rank(rank);
    line.set_node(job.placement->NodeOf(rank));
    line.set_line(std::move(text));
    effects_.logs.emplace_back(job.record.id(), std::move(line));
  }
  diagnosis.text += DescribeLoading(*job.health);
  const int culprit = diagnosis.culprits.empty() ? -1 : diagnosis.culprits.front();
  // The first culprit stands for all in the event; the text names them.
  const std::string node = culprit < 0 ? "" : job.placement->NodeOf(culprit);
  Note(job, "hang", diagnosis.text, node, culprit);
  Fault(job, {FaultCause::kHang, absl::StrCat("hang: ", diagnosis.text), false, node,
              /*certain=*/false, culprit});
}

}  // namespace tercio::coordinator
