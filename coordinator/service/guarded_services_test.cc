// Every call of every service that the coordinator serves is judged: none was forgotten.
#include "coordinator/service/guarded_services.h"

#include <atomic>
#include <chrono>
#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/security/channel.h"
#include "common/temp_dir.h"
#include "common/version.h"
#include "coordinator/access/authority.h"
#include "coordinator/access/enroll_service.h"
#include "coordinator/service/checkpoint_host.h"
#include "coordinator/service/node_service.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GuardedServicesTest : public ::testing::Test {
 protected:
  // To a caller with a certificate of this role.
  void Serve(const std::string& role, RateLimiter::Limit changes = {1000, 1000}) {
    auto store = Store::Open(directory_.path() + "/state.sqlite", OpenFor::kWriting);
    ASSERT_TRUE(store.ok()) << store.status();
    Settings settings;
    settings.allow_drills = false;
    auto made = Coordinator::Create(settings, *std::move(store), &checkpoints_, OpenFor::kWriting);
    ASSERT_TRUE(made.ok()) << made.status();
    coordinator_ = *std::move(made);
    streams_ = std::make_unique<StreamHub>(StreamLimits{16, absl::Seconds(5)},
                                           [this] { return coordinator_->version(); });
    Gate::Options options;
    options.tls = true;
    options.changes = changes;
    audit_ = std::make_unique<AuditLog>(directory_.path() + "/audit.log", AuditLog::Options());
    gate_ = std::make_unique<Gate>(options, audit_.get());
    jobs_ = std::make_unique<GuardedJobService>(
        *gate_, *coordinator_, *streams_, [this](v1::JobSpec*) { return admit_(); },
        directory_.path(), "");
    nodes_ = std::make_unique<NodeServiceImpl>(*gate_, *coordinator_, 5);
    host_ = HostOf(*coordinator_);
    uploads_ = std::make_unique<GuardedCheckpointService>(*gate_, *host_);
    access_ = std::make_unique<AccessServiceImpl>(*gate_, nullptr);
    const std::string access = directory_.path() + "/access";
    ASSERT_TRUE(Authority::Create(access, {"127.0.0.1"}, absl::Now()).ok());
    const auto identity =
        TlsIdentity::Load(Authority::CoordinatorFiles(access), TlsIdentity::KeyFile::kOwn);
    ASSERT_TRUE(identity.ok()) << identity.status();
    grpc::ServerBuilder builder;
    ConfigureServer(builder, most_threads_);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", MakeServerCredentials(*identity), &port);
    for (grpc::Service* service :
         {static_cast<grpc::Service*>(jobs_.get()), static_cast<grpc::Service*>(nodes_.get()),
          static_cast<grpc::Service*>(uploads_.get()),
          static_cast<grpc::Service*>(access_.get())}) {
      builder.RegisterService(service);
    }
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
    channel_ = As("somebody", role);
  }

  // Connections of somebody with a certificate of this name and role.
  std::shared_ptr<grpc::Channel> As(const std::string& name, const std::string& role) {
    const std::string access = directory_.path() + "/access";
    const std::string key = MakeKey();
    const auto issued = (*Authority::Open(access))
                            ->Issue(*MakeCertificateRequest(key, "", {}), {name, role, {}},
                                    absl::Now(), absl::Hours(1));
    EXPECT_TRUE(issued.ok()) << issued.status();
    const TlsFiles files = {absl::StrCat(directory_.path(), "/", name, ".pem"),
                            absl::StrCat(directory_.path(), "/", name, ".key"),
                            access + "/authority.pem"};
    EXPECT_TRUE(WriteFileDurably(files.certificate, issued->pem).ok());
    EXPECT_TRUE(WriteFileDurably(files.key, key, 0600).ok());
    return *OpenChannel(address_, files);
  }

  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  // How a call with an empty request ends.
  grpc::Status Call(const std::string& method) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    call->StartCall(nullptr);
    wait();
    const grpc::Slice empty("");
    call->WriteLast(grpc::ByteBuffer(&empty, 1), {}, nullptr);
    wait();
    // The status comes after the last message.
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (wait());
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return status;
  }

  std::set<std::string> Methods() {
    std::set<std::string> methods;
    for (const char* name :
         {v1::JobService::service_full_name(), v1::NodeService::service_full_name(),
          v1::CheckpointService::service_full_name(), v1::AccessService::service_full_name()}) {
      const auto* service =
          google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
      for (int i = 0; i < service->method_count(); ++i) {
        methods.insert("/" + std::string(name) + "/" + service->method(i)->name());
      }
    }
    return methods;
  }

  std::function<absl::Status()> admit_ = [] { return absl::OkStatus(); };
  int most_threads_ = 16;
  TempDir directory_;
  checkpoint::Store checkpoints_{directory_.path() + "/checkpoints"};
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<StreamHub> streams_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<GuardedJobService> jobs_;
  std::unique_ptr<NodeServiceImpl> nodes_;
  std::unique_ptr<CheckpointHost> host_;
  std::unique_ptr<GuardedCheckpointService> uploads_;
  std::unique_ptr<AccessServiceImpl> access_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(GuardedServicesTest, WithoutARoleNoCallIsServed) {
  Serve("coordinator");  // a role, but none of callers
  EXPECT_GE(Methods().size(), 23u);
  for (const std::string& method : Methods()) {
    const grpc::Status status = Call(method);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED)
        << method << ": " << status.error_message();
  }
}

TEST_F(GuardedServicesTest, AViewerReads) {
  Serve("viewer");
  EXPECT_TRUE(Call("/tercio.v1.JobService/List").ok());
  EXPECT_TRUE(Call("/tercio.v1.JobService/Nodes").ok());
  EXPECT_TRUE(Call("/tercio.v1.AccessService/WhoAmI").ok());
  for (const char* call :
       {"Submit", "Cancel", "Resume", "ChangeNode", "RecordFigures", "Drill", "PruneCheckpoints"}) {
    EXPECT_EQ(Call("/tercio.v1.JobService/" + std::string(call)).error_code(),
              grpc::StatusCode::PERMISSION_DENIED)
        << call;
  }
}

TEST_F(GuardedServicesTest, ChangesAreLimitedAndReadingIsNot) {
  Serve("admin", {2, 0});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Call("/tercio.v1.JobService/Cancel").error_code(), grpc::StatusCode::NOT_FOUND);
  }
  const grpc::Status status = Call("/tercio.v1.JobService/Cancel");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("too many changes"));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Call("/tercio.v1.JobService/List").ok());
  EXPECT_EQ(audit_->refused(static_cast<size_t>(Refusal::kTooOften)), 1);
}

// Another's is refused; what is not there is not: nobody was denied anything.
TEST_F(GuardedServicesTest, AJobIsItsOwners) {
  Serve("user");
  const auto cancel = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& job) {
    grpc::ClientContext context;
    v1::CancelRequest request;
    request.set_job(job);
    v1::CancelResponse response;
    return v1::JobService::NewStub(channel)->Cancel(&context, request, &response).error_code();
  };
  grpc::ClientContext context;
  v1::SubmitRequest request;
  request.mutable_spec()->set_name("shared");
  v1::SubmitResponse submitted;
  const grpc::Status status =
      v1::JobService::NewStub(channel_)->Submit(&context, request, &submitted);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto other = As("other", "user");
  EXPECT_EQ(cancel(other, "shared"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(cancel(other, submitted.job_id()), grpc::StatusCode::PERMISSION_DENIED);
  const auto not_theirs = static_cast<size_t>(Refusal::kNotTheirs);
  EXPECT_EQ(audit_->refused(not_theirs), 2);
  EXPECT_EQ(cancel(other, "no such job"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(cancel(other, ""), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(audit_->refused(not_theirs), 2);
  EXPECT_EQ(cancel(channel_, "shared"), grpc::StatusCode::OK);
}

TEST_F(GuardedServicesTest, AnAgentOffersWhatThereCanBe) {
  Serve("agent");
  const auto attach = [this](const auto& change) {
    grpc::ClientContext context;
    const auto stream = v1::NodeService::NewStub(channel_)->Attach(&context);
    v1::AgentMessage message;
    v1::AgentHello* hello = message.mutable_hello();
    hello->set_node("somebody");  // as its certificate says
    hello->set_version(kVersion);
    hello->set_devices(2);
    change(hello);
    stream->Write(message);
    v1::CoordinatorMessage answer;
    if (stream->Read(&answer)) {
      context.TryCancel();
      return grpc::StatusCode::OK;
    }
    return stream->Finish().error_code();
  };
  EXPECT_EQ(attach([](v1::AgentHello*) {}), grpc::StatusCode::OK);
  EXPECT_EQ(attach([](v1::AgentHello* hello) { hello->set_devices(1 << 30); }),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(attach([](v1::AgentHello* hello) { hello->add_running()->set_attempt(INT_MAX); }),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(attach([](v1::AgentHello* hello) { hello->set_node("somebody\n"); }),
            grpc::StatusCode::PERMISSION_DENIED);
}

// Each call that waits, for a disk say, holds a thread. Those are bounded, and agents need none.
TEST_F(GuardedServicesTest, CallsThatWaitHaveFewThreadsAndKeepNoAgentWaiting) {
  constexpr int kCalls = 60;
  most_threads_ = 4;
  absl::Notification released;
  std::atomic<int> inside = 0;
  std::atomic<int> most_inside = 0;
  admit_ = [&] {
    const int now = ++inside;
    for (int most = most_inside; now > most && !most_inside.compare_exchange_weak(most, now);) {
    }
    released.WaitForNotification();
    --inside;
    return absl::InvalidArgumentError("after a while");
  };
  Serve("admin");
  struct Waiting {
    grpc::ClientContext context;
    v1::SubmitResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::SubmitResponse>> reader;
  };
  grpc::CompletionQueue queue;
  const auto stub = v1::JobService::NewStub(channel_);
  std::vector<std::unique_ptr<Waiting>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<Waiting>());
    calls.back()->reader = stub->AsyncSubmit(&calls.back()->context, {}, &queue);
    calls.back()->reader->Finish(&calls.back()->response, &calls.back()->status,
                                 calls.back().get());
  }
  std::map<grpc::StatusCode, int> ended;
  const auto await = [&](int answers) {
    for (int i = 0; i < answers; ++i) {
      void* call = nullptr;
      bool ok = false;
      const auto patience = std::chrono::system_clock::now() + std::chrono::seconds(20);
      ASSERT_EQ(queue.AsyncNext(&call, &ok, patience), grpc::CompletionQueue::GOT_EVENT)
          << "calls wait without end";
      ++ended[static_cast<Waiting*>(call)->status.error_code()];
    }
  };
  await(kCalls - most_threads_);
  EXPECT_EQ(ended[grpc::StatusCode::RESOURCE_EXHAUSTED], kCalls - most_threads_);
  // Meanwhile an agent is served.
  {
    grpc::ClientContext context;
    const auto stream = v1::NodeService::NewStub(As("node", "agent"))->Attach(&context);
    v1::AgentMessage message;
    message.mutable_hello()->set_node("node");
    message.mutable_hello()->set_version(kVersion);
    stream->Write(message);
    v1::CoordinatorMessage answer;
    EXPECT_TRUE(stream->Read(&answer));
    context.TryCancel();
    stream->Finish();
  }
  released.Notify();
  await(most_threads_);
  EXPECT_EQ(ended[grpc::StatusCode::INVALID_ARGUMENT] + ended[grpc::StatusCode::RESOURCE_EXHAUSTED],
            kCalls);
  EXPECT_LE(most_inside, most_threads_);
  EXPECT_TRUE(Call("/tercio.v1.JobService/List").ok()) << "threads serve again";
}

// Fails closed: what it cannot read it does not take for a certificate without a role.
TEST(GateTest, ACallerWithoutAReadableCertificateHasNoRole) {
  Gate::Options options;
  options.tls = true;
  options.default_role = Role::kAdmin;
  Gate gate(options, nullptr);
  grpc::ServerContext context;
  EXPECT_EQ(gate.WhoCalls(context).role, Role::kNone);
}

TEST(NewlyRevokedTest, AnAgentIsToldWhatItDoesNotKnow) {
  Gate gate(Gate::Options(), nullptr);
  EXPECT_EQ(gate.revoked()->version, 0u);
  gate.SetRevoked({0, {"a1", "a2", "p1"}, {"a1", "a2"}});
  const auto first = gate.revoked();
  v1::RevokedCertificates news = NewlyRevoked(nullptr, *first);
  EXPECT_THAT(news.serials(), ElementsAre("a1", "a2"));
  EXPECT_FALSE(news.more()) << "instead of what another coordinator has said";
  gate.SetRevoked({0, {"a1", "a2", "p1"}, {"a2"}});
  EXPECT_EQ(gate.revoked(), first) << "nobody is told of what is only forgotten";
  gate.SetRevoked({0, {"a1", "a2", "a3", "p1", "p2"}, {"a2", "a3"}});
  EXPECT_GT(gate.revoked()->version, first->version);
  news = NewlyRevoked(first.get(), *gate.revoked());
  EXPECT_THAT(news.serials(), ElementsAre("a3"));
  EXPECT_TRUE(news.more());
}

TEST(HostOfPeerTest, LeavesOutThePort) {
  EXPECT_EQ(HostOfPeer("ipv4:10.1.2.3:4711"), "10.1.2.3");
  EXPECT_EQ(HostOfPeer("ipv6:%5B::1%5D:4711"), "::1");
  EXPECT_EQ(HostOfPeer("ipv6:[fe80::2]:4711"), "fe80::2");
  EXPECT_EQ(HostOfPeer("unix:/tmp/socket"), "unix:/tmp/socket");
}

}  // namespace
}  // namespace tercio::coordinator
