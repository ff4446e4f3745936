#include "tests/simulation/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plan/data_position.h"
#include "plan/rank_layout.h"

namespace tercio::simulation {
namespace {

constexpr double kPatience = 6000;  // after the last fault
constexpr double kSettles = 30;     // after the last job
constexpr int kJobs = 3;
constexpr int64_t kSteps = 14;

}  // namespace

World::World(uint64_t seed, Broken broken) : broken_(broken), random_(seed), start_(now_) {
  settings_.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                           const coordinator::RankShare& share) -> absl::StatusOr<v1::Plan> {
    const absl::StatusOr<v1::Layout> layout = plan::LayoutOfJob(spec);
    if (!layout.ok()) return layout.status();
    return plan::BuildPlan(spec, *layout, slots, share.threads);
  };
  settings_.smaller_layout = [](const v1::JobSpec& spec, int least, int most,
                                const coordinator::RankShare&,
                                int* ranks) -> absl::StatusOr<v1::ParallelismSpec> {
    for (*ranks = most; *ranks >= least; --*ranks) {
      if (*ranks % 2 != 0) continue;
      v1::ParallelismSpec parallelism = spec.parallelism();
      parallelism.set_data(*ranks / std::max(1, spec.parallelism().tensor()));
      return parallelism;
    }
    return absl::NotFoundError("none");
  };
  settings_.checkpoint_patience = 60;
  settings_.scrub_interval = 40;
  for (const char* name : {"a", "b", "c"}) nodes_[name];
}

std::string World::Run() {
  for (auto& [name, node] : nodes_) StartAgent(name);
  for (int i = 1; i <= kJobs; ++i) {
    At(Uniform(0, 30), [this, i] { Submit(i); });
  }
  Repeat(0.5, [this] { Post(coordinator::Tick{}); });
  Repeat(0.1, [this] {
    for (auto& [name, node] : nodes_) {
      const bool stops = std::any_of(node.state.runs.begin(), node.state.runs.end(),
                                     [](const auto& run) { return run.second.stopping; });
      if (node.up && stops) StepAgent(name, {0, agent::TimePassed{}});
    }
  });
  Repeat(1, [this] {
    for (auto& [name, node] : nodes_) Heartbeat(name);
    Fault();
  });
  double quiet = 0;  // all jobs have ended since then
  while (wrong_.empty() && now_ < start_ + kFaultsLast + kPatience) {
    if (!AllEnded()) quiet = now_;
    if (now_ - quiet > kSettles) break;
    const Timed event = events_.top();
    events_.pop();
    now_ = event.time;
    event.action();
  }
  if (wrong_.empty()) CheckEnd();
  return wrong_;
}

// A client tries again until it has its answer; the store knows its request.
void World::Submit(int number) {
  const std::string id = "job-" + std::to_string(number);
  if (coordinator_up_ && !waits_for_disk_ && !state_.jobs.contains(id)) {
    Post(coordinator::Submitted{id, Spec(number)});
  }
  if (disk_.jobs.size() < kJobs) At(1, [this, number] { Submit(number); });
}

double World::Uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

void World::At(double delay, std::function<void()> action) {
  events_.push({now_ + delay, next_order_++, std::move(action)});
}

void World::Repeat(double interval, std::function<void()> action) {
  At(interval, [this, interval, action] {
    action();
    Repeat(interval, action);
  });
}

void World::Wrong(const std::string& what) {
  if (wrong_.empty()) wrong_ = absl::StrCat("at ", now_ - start_, " s: ", what);
}

bool World::Faulty() const { return now_ < start_ + kFaultsLast; }

bool World::AllEnded() const {
  if (Faulty() || state_.jobs.size() < kJobs) return false;
  return std::all_of(state_.jobs.begin(), state_.jobs.end(), [](const auto& job) {
    return coordinator::IsTerminal(job.second.record.phase());
  });
}

v1::JobSpec World::Spec(int number) {
  v1::JobSpec spec;
  spec.set_name("job " + std::to_string(number));
  v1::ModelSpec* model = spec.mutable_model();
  model->set_layers(2);
  model->set_hidden(16);
  model->set_heads(2);
  model->set_ffn_hidden(16);
  model->set_context(4);
  v1::TrainingSpec* training = spec.mutable_training();
  training->set_global_batch(4);
  // The steps of the second job follow from its data.
  training->set_steps(number == 2 ? 0 : kSteps);
  training->set_epochs(number == 2 ? kSteps * training->global_batch() / kSamples : 0);
  training->mutable_evaluate()->set_every_steps(number == 2 ? 0 : 3);
  training->mutable_evaluate()->set_every_epochs(number == 2 ? 2 : 0);
  training->mutable_evaluate()->set_keep_best(number == 2 ? v1::QUALITY_METRIC_LOSS
                                                          : v1::QUALITY_METRIC_ACCURACY);
  spec.mutable_data()->set_test_path("/test.jsonl");
  spec.mutable_parallelism()->set_tensor(number == 3 ? 2 : 1);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_data(2);
  spec.mutable_resources()->set_ranks(number == 3 ? 4 : 2);
  spec.mutable_checkpoint()->set_keep_last(2);
  if (number == 3) spec.mutable_checkpoint()->set_path("/shared");
  spec.mutable_checkpoint()->set_peer_copies(number == 2 ? 0 : number == 1 ? 1 : 2);
  spec.mutable_fault_tolerance()->set_max_restarts(1000);
  spec.mutable_fault_tolerance()->set_on_spike(number == 3 ? v1::ON_SPIKE_OFF
                                                           : v1::ON_SPIKE_ROLLBACK);
  if (number == 3) {
    spec.mutable_fault_tolerance()->set_elastic_min_ranks(2);
    spec.mutable_fault_tolerance()->set_elastic_wait_seconds(10);
  }
  return spec;
}

void World::Fault() {
  ResumeFailedJobs();
  if (!Faulty()) {
    // What people and operators would mend.
    for (auto& [name, node] : nodes_) node.gpu_faults.clear();
    for (const char* name : {"a", "b", "c"}) {
      const auto node = state_.nodes.find(name);
      if (node == state_.nodes.end()) continue;
      if (node->second.record.drained()) {
        Post(coordinator::NodeChangeRequested{name, coordinator::NodeChange::kUndrain});
      }
      if (node->second.record.quarantined()) {
        Post(coordinator::NodeChangeRequested{name, coordinator::NodeChange::kRelease});
      }
    }
    return;
  }
  for (auto& [name, node] : nodes_) FaultOfNode(name, node);
  if (coordinator_up_ && Chance(0.01)) KillCoordinator();
  if (Chance(0.01)) full_until_ = now_ + Uniform(0, 20);
  FaultOfVolumes();
  FaultOfPeople();
}

void World::FaultOfNode(const std::string& name, Node& node) {
  if (Chance(0.03)) Disconnect(name);
  if (Chance(0.01)) node.blocked_to = now_ + Uniform(0, 30);
  if (Chance(0.01)) node.blocked_from = now_ + Uniform(0, 30);
  if (Chance(0.01)) KillAgent(name);
  if (Chance(0.005)) KillMachine(name, Chance(0.3));
  FaultOfGpus(name, node);
  std::vector<std::pair<agent::RunKey, int>> live;
  for (const auto& [key, trainer] : node.trainers) {
    if (trainer.alive) live.push_back(key);
  }
  if (live.empty()) return;
  const auto& [run, rank] = live[random_() % live.size()];
  if (Chance(0.02)) EndTrainer(name, run, rank, 0, 9);
  Trainer& trainer = node.trainers.at({run, rank});
  if (Chance(0.005) && trainer.alive) trainer.frozen = true;
  const auto training = trainings_.find(run);
  if (Chance(0.01) && training != trainings_.end()) training->second.corrupt_rank = rank;
}

void World::FaultOfPeople() {
  if (Chance(0.01)) Post(coordinator::CancelRequested{"job-2", Chance(0.5), "cancelled"});
  const auto job = state_.jobs.find("job-2");
  if (Chance(0.02) && job != state_.jobs.end()) {
    std::optional<int64_t> from_step;
    if (Chance(0.3)) from_step = ChooseStep("job-2", StepChoice::kAnyStep);
    Resume("job-2", from_step);
  }
  if (Chance(0.01)) {
    const char* names[] = {"a", "b", "c"};
    Post(coordinator::NodeChangeRequested{
        names[random_() % 3],
        Chance(0.4) ? coordinator::NodeChange::kDrain : coordinator::NodeChange::kUndrain});
  }
}

void World::CheckEnd() {
  if (state_.jobs.size() != kJobs) return Wrong("a job is missing");
  for (const auto& [id, job] : state_.jobs) {
    if (!coordinator::IsTerminal(job.record.phase())) {
      return Wrong(absl::StrCat(id, " is ", v1::JobPhase_Name(job.record.phase()), ": ",
                                job.record.error()));
    }
    if (job.record.error().starts_with("no checkpoint of the job can be read")) {
      return Wrong(absl::StrCat(id, " cannot be brought on: ", job.record.error()));
    }
    if (job.record.phase() != v1::JOB_PHASE_SUCCEEDED) continue;
    std::map<int64_t, double> counted;
    for (const auto& [key, loss] : history_[id]) {
      v1::StepRecord step;
      step.set_step(key.first);
      step.set_attempt(key.second);
      if (!coordinator::StepCounts(job.record, step)) continue;
      if (!counted.emplace(key.first, loss).second) {
        return Wrong(absl::StrCat(id, ": two attempts have done step ", key.first));
      }
    }
    uint64_t weights = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      const int64_t batch = plan::BatchOfStep(job.record.spec().training(), step);
      weights = NextWeights(weights, batch);
      const bool gone_back = coordinator::PresentSpec(job.record).fault_tolerance().on_spike() ==
                             v1::ON_SPIKE_ROLLBACK;
      if (gone_back && IsPoison(id, batch)) {
        return Wrong(absl::StrCat(id, " was trained on batch ", batch));
      }
      if (!counted.contains(step)) {
        std::string text = absl::StrCat(id, " has no step ", step, "; there are");
        for (const auto& [key, value] : history_[id]) {
          absl::StrAppend(&text, " ", key.first, "(attempt ", key.second, ")");
        }
        for (const auto& [attempt, resumed] : job.record.resume_steps()) {
          absl::StrAppend(&text, "; attempt ", attempt, " from ", resumed);
        }
        return Wrong(text);
      }
      if (counted[step] != LossOf(weights)) {
        return Wrong(absl::StrCat(id, " has another loss at step ", step));
      }
    }
    CheckTest(job.record, counted);
  }
  for (const auto& [name, node] : nodes_) {
    const int64_t bytes = node.memory == nullptr ? 0 : node.memory->bytes();
    if (bytes > 0) return Wrong(absl::StrCat(name, " keeps copies of jobs that have ended"));
  }
}

}  // namespace tercio::simulation
