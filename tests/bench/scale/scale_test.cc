// What a start costs each rank must not depend on how many ranks there are. Counts only, never
// times.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "checkpoint/store.h"
#include "common/security/channel.h"
#include "common/temp_dir.h"
#include "coordinator/access/gate.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/job_service.h"
#include "coordinator/service/node_service.h"
#include "coordinator/service/stream_hub.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "plan/planner/planner.h"
#include "tests/bench/scale/simulated_cluster.h"

namespace tercio::bench {
namespace {

constexpr int kDevices = 8;
constexpr auto kLongest = std::chrono::minutes(2);

// tensor 8 x pipeline 2; the same micro-batches for every rank.
v1::JobSpec Spec(int ranks) {
  v1::JobSpec spec;
  spec.set_name("scale");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(4);
  model.set_hidden(64);
  model.set_heads(8);
  model.set_kv_heads(8);
  model.set_ffn_hidden(256);
  model.set_context(32);
  model.set_vocab_size(256);
  const int data = ranks / 16;
  spec.mutable_training()->set_steps(1000);
  spec.mutable_training()->set_global_batch(data * 4);
  spec.mutable_training()->set_micro_batch(1);
  spec.mutable_training()->set_precision(v1::PRECISION_FP32);
  spec.mutable_parallelism()->set_tensor(8);
  spec.mutable_parallelism()->set_pipeline(2);
  spec.mutable_parallelism()->set_data(data);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_checkpoint()->set_keep_last(2);
  return spec;
}

// A coordinator as the program puts it together, in this process.
class Server {
 public:
  Server() : checkpoints_(directory_.path() + "/checkpoints") {
    auto store = coordinator::Store::Open(directory_.path() + "/state.sqlite",
                                          coordinator::OpenFor::kWriting);
    EXPECT_TRUE(store.ok()) << store.status();
    auto made = coordinator::Coordinator::Create(Settings(), *std::move(store), &checkpoints_,
                                                 coordinator::OpenFor::kWriting);
    EXPECT_TRUE(made.ok()) << made.status();
    coordinator_ = *std::move(made);
    nodes_ = std::make_unique<coordinator::NodeServiceImpl>(gate_, *coordinator_,
                                                            /*heartbeat_interval=*/5);
    streams_ = std::make_unique<coordinator::StreamHub>(coordinator::StreamLimits(),
                                                        [this] { return coordinator_->version(); });
    jobs_ = std::make_unique<coordinator::JobServiceImpl>(
        *coordinator_, *streams_, [](v1::JobSpec*) { return absl::OkStatus(); }, directory_.path(),
        "");
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(nodes_.get());
    builder.RegisterService(jobs_.get());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Server() { server_->Shutdown(std::chrono::system_clock::now()); }

  coordinator::Coordinator& coordinator() { return *coordinator_; }
  const std::string& address() const { return address_; }

 private:
  static coordinator::Settings Settings() {
    coordinator::Settings settings;
    settings.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                            const coordinator::RankShare& share) {
      plan::Cluster cluster;
      cluster.threads_per_rank = share.threads;
      cluster.memory_bytes = share.memory_bytes;
      return plan::MakePlan(spec, slots, cluster);
    };
    return settings;
  }

  TempDir directory_;
  checkpoint::Store checkpoints_;
  coordinator::Gate gate_{coordinator::Gate::Options(), /*audit=*/nullptr};
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::unique_ptr<coordinator::NodeServiceImpl> nodes_;
  std::unique_ptr<coordinator::StreamHub> streams_;
  std::unique_ptr<coordinator::JobServiceImpl> jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Somebody who watches the job from its submission.
class Watcher {
 public:
  Watcher(const std::string& address, const std::string& job)
      : stub_(v1::JobService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        thread_([this, job] {
          v1::WatchRequest request;
          request.set_job(job);
          const auto reader = stub_->Watch(&context_, request);
          for (v1::JobStatus status; reader->Read(&status);) {
            ++messages;
            plans += status.plan().ranks_size() > 0 ? 1 : 0;
            runs = runs || status.state() == v1::JOB_STATE_RUNNING;
          }
        }) {}
  ~Watcher() {
    context_.TryCancel();
    thread_.join();
  }

  std::atomic<int> messages{0};
  std::atomic<int> plans{0};
  std::atomic<bool> runs{false};

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::JobService::Stub> stub_;
  std::thread thread_;
};

struct Shares {
  double start_bytes = 0;
  double id_bytes = 0;
  double id_calls = 0;
  int64_t starts = 0;
  int64_t ids = 0;
};

// What each rank's part of a start has cost.
void StartJob(int agents, Shares* shares) {
  Server server;
  const int ranks = agents * kDevices;
  const auto job = server.coordinator().Submit(Spec(ranks), "");
  ASSERT_TRUE(job.ok()) << job.status();
  ClusterOptions options;
  options.coordinator = server.address();
  options.agents = agents;
  options.devices = kDevices;
  SimulatedCluster cluster(options);
  Watcher watcher(server.address(), *job);
  cluster.Attach();
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (!watcher.runs && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto record = server.coordinator().Find(*job);
    ASSERT_TRUE(record.ok()) << record.status();
    ASSERT_NE(record->phase(), v1::JOB_PHASE_FAILED) << record->error();
  }
  ASSERT_TRUE(watcher.runs);
  EXPECT_GE(watcher.messages, 2);  // those between may be left out
  EXPECT_EQ(watcher.plans, 1) << "the plan is said again with every change";
  const Traffic& traffic = cluster.traffic();
  EXPECT_EQ(traffic.faults, 0);
  EXPECT_EQ(traffic.registered, agents);
  EXPECT_EQ(traffic.ranks_running, ranks);
  shares->start_bytes = static_cast<double>(traffic.start_bytes) / ranks;
  shares->id_bytes = static_cast<double>(traffic.id_bytes) / ranks;
  shares->id_calls = static_cast<double>(traffic.id_calls) / ranks;
  shares->starts = traffic.starts;
  shares->ids = traffic.ids_received;
}

TEST(Scale, AStartCostsEachRankTheSameHoweverManyThereAre) {
  constexpr int kFew = 8;
  constexpr int kMany = 64;
  Shares few;
  Shares many;
  ASSERT_NO_FATAL_FAILURE(StartJob(kFew, &few));
  ASSERT_NO_FATAL_FAILURE(StartJob(kMany, &many));
  EXPECT_EQ(few.starts, kFew);
  EXPECT_EQ(many.starts, kMany);
  // Numbers of ranks and groups have more digits, and some more names are longer: nothing else.
  EXPECT_LT(many.start_bytes, few.start_bytes * 1.05);
  EXPECT_LT(many.id_bytes, few.id_bytes * 1.05);
  EXPECT_LE(many.id_calls, few.id_calls);
  // A node holds a tensor group: the ids of world, that group, and of the data and the pipeline
  // group of each of its ranks. One call to leave ids and one to fetch them at most.
  EXPECT_EQ(many.ids, int64_t{kMany} * (2 + 2 * kDevices));
  EXPECT_LE(many.id_calls, 2.0 / kDevices);
}

}  // namespace
}  // namespace tercio::bench
