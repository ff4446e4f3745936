#include "tests/bench/scale/simulated_cluster.h"

#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"

namespace tercio::bench {
namespace {

constexpr size_t kIdBytes = 128;  // size of a ncclUniqueId
constexpr auto kIdPatience = std::chrono::minutes(5);
constexpr int kVocabulary = 256;
constexpr double kHeartbeatSeconds = 5;
constexpr int kBeatSlices = 250;  // slices of an interval: agents do not speak all at once
constexpr double kStepSeconds = 1;

std::string IdOf(const std::string& group) {
  std::string id = group;
  id.resize(kIdBytes, '.');
  return id;
}

}  // namespace

// A call for unique ids. Lives until it is answered.
struct SimulatedCluster::Call {
  grpc::ClientContext context;
  v1::RendezvousPutRequest put;
  v1::RendezvousPutResponse put_done;
  v1::RendezvousGetRequest get;
  v1::RendezvousGetResponse got;
};

class SimulatedCluster::Agent
    : public grpc::ClientBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  Agent(SimulatedCluster& cluster, v1::NodeService::Stub& stub, int number)
      : cluster_(cluster), stub_(stub), name_(absl::StrCat("node-", 100'000 + number)) {}

  void Attach() {
    cluster_.Opened();
    stub_.async()->Attach(&context_, this);
    v1::AgentMessage message;
    v1::AgentHello& hello = *message.mutable_hello();
    hello.set_node(name_);
    hello.set_version(kVersion);
    hello.set_data_address("10.0.0.1");
    hello.set_metrics_address("10.0.0.1:9465");
    hello.set_device_kind(v1::DEVICE_KIND_CPU);
    hello.set_devices(cluster_.options_.devices);
    hello.set_cores(96);
    hello.set_memory_bytes(int64_t{2} << 40);
    hello.set_spool_id(absl::StrCat("spool-", name_));
    Say(std::move(message));
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  // With the timing of every rank, as a real agent's.
  void Beat(double seconds) {
    v1::AgentMessage message;
    v1::AgentHeartbeat& heartbeat = *message.mutable_heartbeat();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!ranks_.empty()) {
        *heartbeat.add_running() = run_;
        v1::RunHealth& health = *heartbeat.add_health();
        *health.mutable_run() = run_;
        health.set_stalled_seconds(0.01);
        for (const int rank : ranks_) {
          v1::RankTiming& timing = *health.add_timings();
          timing.set_rank(rank);
          timing.set_step(step_ + 1);
          timing.set_step_seconds(kStepSeconds);
          // A few per cent apart, never twice the same.
          timing.set_compute_seconds(0.7 +
                                     0.02 * ((rank * 37 + static_cast<int>(seconds)) % 10) / 10);
        }
      }
    }
    Say(std::move(message));
  }

  void Step() {
    v1::AgentMessage message;
    v1::StepReport& report = *message.mutable_step_report();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ranks_.empty()) return;
      *report.mutable_run() = run_;
      report.mutable_record()->set_attempt(run_.attempt());
      report.mutable_record()->set_step(++step_);
    }
    report.mutable_record()->set_loss(3.5);
    report.mutable_record()->set_step_seconds(kStepSeconds);
    report.set_tokens_per_second(1e6);
    SayNews(std::move(message));
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++cluster_.traffic_.messages_from;
    cluster_.traffic_.bytes_from += static_cast<int64_t>(incoming_.ByteSizeLong());
    Receive(incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ok) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    if (status.error_code() != grpc::StatusCode::CANCELLED) ++cluster_.traffic_.faults;
    cluster_.Closed();
  }

 private:
  void Say(v1::AgentMessage message) {
    std::lock_guard<std::mutex> lock(mutex_);
    Write(std::move(message));
  }

  // What an agent numbers and keeps until it is acknowledged.
  void SayNews(v1::AgentMessage message) {
    std::lock_guard<std::mutex> lock(mutex_);
    message.set_sequence(++sequence_);
    Write(std::move(message));
  }

  void Write(v1::AgentMessage message) {
    outbox_.push_back(std::move(message));
    if (!writing_) WriteNext();
  }

  // News that has come while the message before was on its way goes together, as an agent's does.
  void WriteNext() {
    writing_ = !outbox_.empty();
    if (!writing_) return;
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    if (outgoing_.sequence() > 0 && !outbox_.empty() && outbox_.front().sequence() > 0) {
      v1::AgentMessage news;
      *news.mutable_news()->add_messages() = std::move(outgoing_);
      while (!outbox_.empty() && outbox_.front().sequence() > 0) {
        *news.mutable_news()->add_messages() = std::move(outbox_.front());
        outbox_.pop_front();
      }
      outgoing_ = std::move(news);
    }
    ++cluster_.traffic_.messages_to;
    cluster_.traffic_.bytes_to += static_cast<int64_t>(outgoing_.ByteSizeLong());
    StartWrite(&outgoing_);
  }

  void Receive(const v1::CoordinatorMessage& message) {
    if (message.has_hello_accepted()) {
      ++cluster_.traffic_.registered;
    } else if (message.has_prepare_data()) {
      v1::AgentMessage answer;
      *answer.mutable_data_prepared()->mutable_run() = message.prepare_data().run();
      answer.mutable_data_prepared()->set_vocab_size(kVocabulary);
      answer.mutable_data_prepared()->set_train_tokens(1'000'000'000);
      answer.mutable_data_prepared()->set_digest("the same everywhere");
      SayNews(std::move(answer));
    } else if (message.has_start_run()) {
      ++cluster_.traffic_.starts;
      cluster_.traffic_.start_bytes += static_cast<int64_t>(message.ByteSizeLong());
      Start(message.start_run());
    }
  }

  void Start(const v1::StartRun& start) {
    std::vector<int> ranks;
    auto put = std::make_shared<Call>();
    auto get = std::make_shared<Call>();
    std::set<std::string> names;
    for (const v1::RankPlan& plan : start.ranks()) {
      const int rank = plan.placement().rank();
      ranks.push_back(rank);
      if (!start.stages().contains(plan.placement().pipeline_index())) ++cluster_.traffic_.faults;
      for (const v1::ProcessGroup& group : plan.groups()) {
        names.insert(group.name());
        if (group.first() != rank) continue;
        v1::RendezvousEntry* entry = put->put.add_entries();
        entry->set_key(group.name());
        entry->set_value(IdOf(group.name()));
      }
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      run_ = start.run();
      ranks_ = ranks;
      step_ = start.resume_step();
    }
    SayPhase(v1::TRAINER_PHASE_STARTED);
    SayPhase(v1::TRAINER_PHASE_CONNECTING);
    for (Call* call : {put.get(), get.get()}) {
      call->context.set_deadline(std::chrono::system_clock::now() + kIdPatience);
    }
    *put->put.mutable_run() = start.run();
    put->put.set_token(start.token());
    *get->get.mutable_run() = start.run();
    get->get.set_token(start.token());
    get->get.mutable_keys()->Assign(names.begin(), names.end());
    if (put->put.entries_size() > 0) Put(put);
    Get(get);
  }

  void Put(const std::shared_ptr<Call>& call) {
    cluster_.Opened();
    ++cluster_.traffic_.id_calls;
    cluster_.traffic_.id_bytes += static_cast<int64_t>(call->put.ByteSizeLong());
    stub_.async()->RendezvousPut(&call->context, &call->put, &call->put_done,
                                 [this, call](const grpc::Status& status) {
                                   if (!status.ok()) ++cluster_.traffic_.faults;
                                   cluster_.Closed();
                                 });
  }

  void Get(const std::shared_ptr<Call>& call) {
    cluster_.Opened();
    ++cluster_.traffic_.id_calls;
    stub_.async()->RendezvousGet(&call->context, &call->get, &call->got,
                                 [this, call](const grpc::Status& status) {
                                   Connected(*call, status);
                                   cluster_.Closed();
                                 });
  }

  void Connected(const Call& call, const grpc::Status& status) {
    cluster_.traffic_.id_bytes +=
        static_cast<int64_t>(call.get.ByteSizeLong() + call.got.ByteSizeLong());
    cluster_.traffic_.ids_received += call.got.values_size();
    bool good = status.ok() && call.got.values_size() == call.get.keys_size();
    for (int i = 0; good && i < call.get.keys_size(); ++i) {
      good = call.got.values(i) == IdOf(call.get.keys(i));
    }
    if (!good) {
      ++cluster_.traffic_.faults;
      return;
    }
    SayPhase(v1::TRAINER_PHASE_LOADING);
    cluster_.traffic_.ranks_running += SayPhase(v1::TRAINER_PHASE_RUNNING);
  }

  // Reports the phase of every rank, in a message of its own. Returns how many.
  int64_t SayPhase(v1::TrainerPhase phase) {
    std::vector<int> ranks;
    v1::AgentMessage message;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ranks = ranks_;
      *message.mutable_rank_phase()->mutable_run() = run_;
    }
    message.mutable_rank_phase()->set_phase(phase);
    for (const int rank : ranks) {
      message.mutable_rank_phase()->set_rank(rank);
      SayNews(message);
    }
    return static_cast<int64_t>(ranks.size());
  }

  SimulatedCluster& cluster_;
  v1::NodeService::Stub& stub_;
  const std::string name_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  std::mutex mutex_;  // what follows
  std::deque<v1::AgentMessage> outbox_;
  v1::AgentMessage outgoing_;
  bool writing_ = false;
  uint64_t sequence_ = 0;
  v1::RunId run_;
  std::vector<int> ranks_;
  int64_t step_ = 0;
};

SimulatedCluster::SimulatedCluster(ClusterOptions options) : options_(std::move(options)) {
  const int connections = options_.connections > 0 ? options_.connections : options_.agents;
  for (int i = 0; i < connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each has a socket of its own
    arguments.SetMaxReceiveMessageSize(-1);
    stubs_.push_back(v1::NodeService::NewStub(grpc::CreateCustomChannel(
        options_.coordinator, grpc::InsecureChannelCredentials(), arguments)));
  }
  for (int i = 0; i < options_.agents; ++i) {
    agents_.push_back(
        std::make_unique<Agent>(*this, *stubs_[static_cast<size_t>(i % connections)], i));
  }
}

SimulatedCluster::~SimulatedCluster() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  lock.unlock();
  if (life_.joinable()) life_.join();
  for (const auto& agent : agents_) agent->Cancel();
  lock.lock();
  changed_.wait(lock, [this] { return open_ == 0; });
}

void SimulatedCluster::Opened() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++open_;
}

void SimulatedCluster::Closed() {
  std::lock_guard<std::mutex> lock(mutex_);
  --open_;
  changed_.notify_all();
}

void SimulatedCluster::Attach() {
  for (const auto& agent : agents_) agent->Attach();
  life_ = std::thread([this] { Live(); });
}

// Heartbeats, spread over the interval.
void SimulatedCluster::Live() {
  const auto start = std::chrono::steady_clock::now();
  const auto slice = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(kHeartbeatSeconds / kBeatSlices));
  double next_step = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (int64_t round = 0; !stopping_; ++round) {
    if (changed_.wait_until(lock, start + (round + 1) * slice, [this] { return stopping_; }))
      return;
    lock.unlock();
    const double now = static_cast<double>(round) * kHeartbeatSeconds / kBeatSlices;
    for (size_t i = static_cast<size_t>(round % kBeatSlices); i < agents_.size();
         i += kBeatSlices) {
      agents_[i]->Beat(now);
    }
    if (stepping_ && now >= next_step) {
      agents_.front()->Step();
      next_step = now + kStepSeconds;
    }
    lock.lock();
  }
}

}  // namespace tercio::bench
