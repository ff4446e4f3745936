#include "cli/commands/private_run.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/weight_source.h"
#include "cli/commands/kept_figures.h"
#include "cli/commands/local_cluster.h"
#include "cli/output.h"
#include "cli/text.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/gpus/gpus.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "config/job_file.h"
#include "data/prepared_data.h"
#include "google/protobuf/util/message_differencer.h"
#include "plan/distillation.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"
#include "plan/precision.h"
#include "proto/tercio/v1/figures.pb.h"
#include "worker/inference/stored_logits.h"
#include "worker/inference/teacher_check.h"

namespace tercio::cli {
namespace {

// An agent attaches within a fraction of a second. Without it the job would wait, too; its plan has
// assumed figures then.
constexpr absl::Duration kNodePatience = absl::Seconds(10);
constexpr absl::Duration kNodeLook = absl::Milliseconds(20);

// During its lifetime the first SIGINT or SIGTERM saves and stops the job, the second stops it
// immediately, and a process of the pair that dies is restarted.
class JobKeeper {
 public:
  JobKeeper(PrivatePair* pair, Client& client, std::string job)
      // A thread waits for signals, since handlers could not call the coordinator.
      : pair_(pair), client_(client), job_(std::move(job)) {
    thread_ = std::thread([this] { Watch(); });
  }
  ~JobKeeper() {
    // The thread looks every tenth of a second.
    done_ = true;
    thread_.join();
  }
  // The pair keeps dying: a process that is down now will not come back.
  bool given_up() const { return given_up_; }
  int signal() const { return signal_; }

 private:
  enum class LastCheckpoint { kNone, kSave };

  void Watch() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    const timespec pause{0, 100'000'000};
    while (!done_) {
      // Signals are taken one at a time; the first that comes while a call is under way waits.
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal <= 0) {
        Supervise();
        continue;
      }
      const bool again = signal_ != 0;
      signal_ = signal;
      std::fprintf(stderr, "\n%s\n",
                   again
                       ? "stopping immediately"
                       : "saving a checkpoint and stopping (interrupt again to stop immediately)");
      Cancel(again ? LastCheckpoint::kNone : LastCheckpoint::kSave, "interrupted");
    }
  }

  void Supervise() {
    if (pair_ == nullptr || given_up_) return;
    const absl::Status status = pair_->Supervise();
    if (status.ok()) return;
    given_up_ = true;
    // The reason goes with the request, so that the state of the job says why it ended.
    Cancel(LastCheckpoint::kNone, std::string(status.message()));
  }

  void Cancel(LastCheckpoint checkpoint, const std::string& reason) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCancelPatience);
    v1::CancelRequest request;
    request.set_job(job_);
    request.set_save_checkpoint(checkpoint == LastCheckpoint::kSave);
    request.set_reason(reason);
    v1::CancelResponse response;
    // The answer does not matter: a second signal, or the end of the job, follows in any case.
    client_.stub().Cancel(&context, request, &response);
  }

  // A coordinator that does not answer must not keep the next signal waiting.
  static constexpr std::chrono::seconds kCancelPatience{10};

  PrivatePair* const pair_;  // may be null
  Client& client_;
  std::string job_;
  std::atomic<int> signal_{0};
  std::atomic<bool> done_{false};
  std::atomic<bool> given_up_{false};
  std::thread thread_;
};

// Finds every error that can be found before a job exists: exit code 2. Returns the number of test
// samples.
absl::StatusOr<int64_t> CheckBeforeStart(const v1::JobSpec& spec, const std::string& state_dir) {
  TERCIO_RETURN_IF_ERROR(CheckMemoryHere(spec));
  TERCIO_ASSIGN_OR_RETURN(const PreparedJob prepared, PrepareHere(spec, state_dir));
  // Checks once more, now that the vocabulary is known.
  TERCIO_RETURN_IF_ERROR(CheckMemoryHere(prepared.spec));
  return prepared.test_samples;
}

// The node of a private pair, once it is there; absent: it has never been there, or not yet.
absl::StatusOr<std::optional<v1::Node>> FindPrivateNode(Client& client) {
  grpc::ClientContext context;
  v1::NodesResponse response;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Nodes(&context, {}, &response), client));
  for (const v1::Node& node : response.nodes()) {
    if (node.name() == PrivatePair::kNode) return node;
  }
  return std::nullopt;
}

// Has the coordinator predict with these figures; without products, with assumed ones, whatever it
// was given in an earlier run. A new agent takes a moment to be known.
absl::Status GiveFigures(const v1::MachineFigures& figures, Client& client) {
  const bool any = !figures.products().empty();
  const absl::Time end = SteadyNow() + kNodePatience;
  TERCIO_ASSIGN_OR_RETURN(std::optional<v1::Node> node, FindPrivateNode(client));
  while (any && !node.has_value() && SteadyNow() < end) {
    absl::SleepFor(kNodeLook);
    TERCIO_ASSIGN_OR_RETURN(node, FindPrivateNode(client));
  }
  if (!node.has_value() || (!any && !node->has_figures())) return absl::OkStatus();
  v1::MachineFigures known = node->figures();
  known.clear_recorded();
  if (any && google::protobuf::util::MessageDifferencer::Equals(known, figures)) {
    return absl::OkStatus();
  }
  grpc::ClientContext context;
  v1::RecordFiguresRequest request;
  request.set_node(node->name());
  if (any) *request.mutable_figures() = figures;
  v1::RecordFiguresResponse response;
  return CallStatus(client.stub().RecordFigures(&context, request, &response), client);
}

void ChangeStopSignals(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(how, &set, nullptr);
}

}  // namespace

absl::Status ChooseDevice(v1::JobSpec* spec) {
  // A job for CPUs must not wait for a driver that hangs.
  if (spec->resources().device() == v1::DEVICE_KIND_CPU) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
  config::ResolveDevice(spec,
                        gpus.list.empty() ? config::AutoDevice::kCpu : config::AutoDevice::kCuda);
  if (spec->resources().device() == v1::DEVICE_KIND_CPU || !gpus.list.empty())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "resources.device is cuda, but there is no NVIDIA driver with a GPU on this machine; use "
      "device: cpu, or submit the job to a cluster that has GPUs");
}

absl::Status CheckMemoryHere(const v1::JobSpec& spec) {
  TERCIO_ASSIGN_OR_RETURN(const ClusterHere here, FindClusterHere(spec, plan::RanksOfJob(spec)));
  return plan::AdmitJob(spec, here.cluster.memory_bytes, here.cluster.shares_gpus);
}

absl::StatusOr<PreparedJob> PrepareHere(const v1::JobSpec& spec, const std::string& state_dir) {
  const std::string cache = state_dir + "/agent/data-cache";
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(cache)));
  absl::StatusOr<data::PreparedData> prepared = data::PrepareData(spec.data(), spec.model(), cache);
  absl::Status status = prepared.status();
  if (status.ok()) {
    PrintNotices(prepared->notices);
    status = inference::CheckStoredLogits(spec, &*prepared);
    if (status.ok() && plan::HasTeacher(spec.training())) {
      status = inference::CheckTeacher(spec.training().distillation(), prepared->tokenizer_json,
                                       prepared->vocab_size);
    }
    if (status.ok() && !spec.model().from().empty()) {
      const auto notes = checkpoint::CheckInitialWeights(spec.model(), prepared->vocab_size);
      status = notes.status();
      if (notes.ok()) PrintNotices(*notes);
    }
  }
  // A missing file is a mistake in the job, not a resource that was asked for by name.
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status)) {
    return absl::InvalidArgumentError(std::string(status.message()));
  }
  TERCIO_RETURN_IF_ERROR(status);
  PreparedJob known{spec, prepared->test_sample_count};
  known.spec.mutable_model()->set_vocab_size(plan::VocabularyOf(spec, prepared->vocab_size));
  return known;
}

absl::StatusOr<PrivateEnd> FollowToEnd(PrivatePair* pair, Client& client, const std::string& job,
                                       FollowOptions follow) {
  const JobKeeper keeper(pair, client, job);
  if (pair != nullptr) follow.hope = [&keeper] { return !keeper.given_up(); };
  // The keeper lives as long as the job is followed, so that no signal is lost in between.
  PrivateEnd end;
  TERCIO_ASSIGN_OR_RETURN(end.status, FollowJob(client, job, follow));
  end.signal = keeper.signal();
  return end;
}

absl::StatusOr<std::string> SendResume(Client& client, const v1::ResumeRequest& request) {
  grpc::ClientContext context;
  v1::JobStatus status;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Resume(&context, request, &status), client));
  return status.id();
}

absl::StatusOr<PrivateCluster> StartPrivateCluster(const v1::JobSpec& spec,
                                                   const std::string& state_dir,
                                                   Announce announce) {
  Gpus gpus;
  if (plan::OnGpu(spec)) {
    TERCIO_ASSIGN_OR_RETURN(gpus, FindGpus());
  }
  const KeptFigures kept = FiguresHere(spec, gpus);
  PrivateCluster cluster;
  TERCIO_ASSIGN_OR_RETURN(cluster.pair,
                          PrivatePair::Start(state_dir, plan::RanksOfJob(spec),
                                             plan::TextOf(spec.resources().device())));
  TERCIO_ASSIGN_OR_RETURN(cluster.client, Client::ConnectTo(cluster.pair->coordinator(), {}));
  if (announce == Announce::kYes && !kept.notice.empty()) PrintNotices({kept.notice});
  TERCIO_RETURN_IF_ERROR(GiveFigures(kept.figures, *cluster.client));
  return cluster;
}

MayEnd::MayEnd(const std::string& words) : words_(words) { ChangeStopSignals(SIG_UNBLOCK); }

// Before the words are gone.
MayEnd::~MayEnd() { ChangeStopSignals(SIG_BLOCK); }

absl::StatusOr<int> RunPrivately(
    const v1::JobSpec& spec, const std::string& state_dir, Announce announce, EndRanks ranks,
    absl::FunctionRef<absl::StatusOr<int>(Client& client, const PrivateEnd& end)> at_end) {
  // An unwritable directory is a conflict (7), not a fault of the job.
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(state_dir)));
  int64_t test_samples = 0;
  {
    // Large texts take a while; there is no job yet that would have to be stopped in order.
    const LastWords words("interrupted before a job was started\n");
    TERCIO_ASSIGN_OR_RETURN(test_samples, CheckBeforeStart(spec, state_dir));
  }
  BlockStopSignals();  // for JobKeeper; before lasting threads are started
  TERCIO_ASSIGN_OR_RETURN(const PrivateCluster cluster,
                          StartPrivateCluster(spec, state_dir, announce));
  TERCIO_ASSIGN_OR_RETURN(const std::string id, cluster.client->Submit(spec));
  if (announce == Announce::kYes) {
    std::fprintf(stderr, "job %s in %s\n", id.c_str(), state_dir.c_str());
  }
  FollowOptions follow;
  follow.ranks = ranks == EndRanks::kYes;
  TERCIO_ASSIGN_OR_RETURN(PrivateEnd end,
                          FollowToEnd(cluster.pair.get(), *cluster.client, id, follow));
  end.test_samples = test_samples;
  return at_end(*cluster.client, end);
}

}  // namespace tercio::cli
