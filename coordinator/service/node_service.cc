#include "coordinator/service/node_service.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "plan/old_words.h"

namespace tercio::coordinator {
namespace {

// Waits for keys are given up by deadlines of seconds, so their ends may be this late.
constexpr auto kSweepInterval = std::chrono::milliseconds(100);
constexpr absl::Duration kAnswerMargin = absl::Milliseconds(300);
// Names are those of DNS, whose limit this is.
constexpr size_t kLongestName = 253;
constexpr int kMostDevices = 4096;  // as of --slots
// Attempts become numbers of later ones (BeginAttempt), which must not overflow.
constexpr int kMostAttempts = 1'000'000;
constexpr char kAttach[] = "NodeService/Attach";

// An agent's facts about itself are used in arithmetic and stored: each of them must be bounded.
absl::Status CheckHello(const v1::AgentHello& hello) {
  const bool plain = std::none_of(hello.node().begin(), hello.node().end(),
                                  [](char c) { return absl::ascii_iscntrl(c); });
  if (!plain || hello.node().size() > kLongestName) {
    return absl::InvalidArgumentError(absl::StrCat("a node's name must have at most ", kLongestName,
                                                   " characters, all printable"));
  }
  if (hello.devices() < 0 || hello.devices() > kMostDevices ||
      hello.device_facts_size() > kMostDevices) {
    return absl::InvalidArgumentError(absl::StrCat("node ", hello.node(), " offers ",
                                                   hello.devices(), " devices; expected at most ",
                                                   kMostDevices));
  }
  for (const v1::RunId& run : hello.running()) {
    if (run.attempt() >= 0 && run.attempt() < kMostAttempts) continue;
    return absl::InvalidArgumentError(absl::StrCat("node ", hello.node(), " runs attempt ",
                                                   run.attempt(), " of a job: no such attempt"));
  }
  return absl::OkStatus();
}

// Deletes itself.
class RefusedAgent : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  // gRPC wants a reactor even for a call that is refused.
  explicit RefusedAgent(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

v1::RevokedCertificates NewlyRevoked(const Gate::Revoked* told, const Gate::Revoked& now) {
  v1::RevokedCertificates news;
  news.set_more(told != nullptr);
  for (const std::string& serial : now.agents) {
    if (told == nullptr || !told->agents.contains(serial)) news.add_serials(serial);
  }
  return news;
}

// Deletes itself when the stream is over. The coordinator may still hold a Send then: it goes to
// the outbox, which outlives the stream.
class NodeServiceImpl::AgentStream
    : public grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  AgentStream(Gate& gate, Caller caller, Coordinator& coordinator, double heartbeat_interval)
      : gate_(gate),
        caller_(std::move(caller)),
        coordinator_(coordinator),
        heartbeat_interval_(heartbeat_interval),
        outbox_(new Outbox) {
    outbox_->stream = this;
    // The first read begins in the constructor: gRPC holds it back until the reactor is returned.
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      FinishOnce(grpc::Status::OK);
      return;
    }
    // Until the hello is accepted nothing else is listened to.
    if (node_.empty()) {
      if (!incoming_.has_hello() || incoming_.hello().node().empty()) {
        FinishOnce(
            grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be hello"));
        return;
      }
      // The certificate says which node this is: an agent must not report for another.
      if (!caller_.MaySpeakFor(incoming_.hello().node())) {
        FinishOnce(ToGrpc(gate_.Refuse(caller_, kAttach, incoming_.hello().node(), NotItsNode())));
        return;
      }
      const absl::Status status = Accept();
      gate_.Record(caller_, kAttach, incoming_.hello().node(), status);
      if (!status.ok()) {
        FinishOnce(ToGrpc(status));
        return;
      }
    } else if (const absl::Status heard = Receive(); !heard.ok()) {
      // Nothing more is read from this stream: later messages must not overtake the rejected one.
      FinishOnce(ToGrpc(heard));
      return;
    }
    TellRevoked();
    // The next read begins only when this message is handled, so that an
    // agent is never read faster than the coordinator takes its messages.
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(outbox_->mutex);
    // The message was being written until now: gRPC reads it in place.
    outbox_->messages.pop_front();
    if (ok && !outbox_->messages.empty()) StartWrite(&outbox_->messages.front());
  }

  void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }

  void OnDone() override {
    {
      MutexLock lock(outbox_->mutex);
      outbox_->stream = nullptr;
    }
    // A stream that was replaced detaches with its own number, which changes nothing.
    if (!node_.empty()) coordinator_.Detach(node_, token_);
    delete this;
  }

 private:
  struct Outbox {
    Mutex mutex;
    AgentStream* stream TERCIO_GUARDED_BY(mutex) = nullptr;  // null once the stream is over
    // The first is being written.
    std::deque<v1::CoordinatorMessage> messages TERCIO_GUARDED_BY(mutex);
  };

  static void Send(const std::shared_ptr<Outbox>& outbox, v1::CoordinatorMessage message) {
    // The lock is held through StartWrite, so that the stream cannot be deleted in between.
    MutexLock lock(outbox->mutex);
    if (outbox->stream == nullptr) return;
    // An acknowledgement holds for all before it.
    if (outbox->messages.size() > 1 && message.has_acknowledge() &&
        outbox->messages.back().has_acknowledge()) {
      outbox->messages.back() = std::move(message);
      return;
    }
    // One write at a time is all that gRPC allows; OnWriteDone begins the next.
    outbox->messages.push_back(std::move(message));
    if (outbox->messages.size() == 1) outbox->stream->StartWrite(&outbox->messages.front());
  }

  // Any thread. The reactor lives until OnDone, which takes the same lock before it is deleted.
  static void Close(const std::shared_ptr<Outbox>& outbox) {
    MutexLock lock(outbox->mutex);
    AgentStream* stream = std::exchange(outbox->stream, nullptr);
    // Finish may be called once, and the agent's end and the lease may come together.
    if (stream == nullptr || stream->finished_.exchange(true)) return;
    stream->Finish(
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "no heartbeat was received in time"));
  }

  absl::Status Receive() {
    v1::AgentMessage said = std::exchange(incoming_, {});
    if (!said.has_news()) return coordinator_.Receive(node_, std::move(said));
    for (v1::AgentMessage& message : *said.mutable_news()->mutable_messages()) {
      TERCIO_RETURN_IF_ERROR(coordinator_.Receive(node_, std::move(message)));
    }
    return absl::OkStatus();
  }

  // Sent with the answer to any message of the agent, which is at least a heartbeat now and then.
  void TellRevoked() {
    // Nothing is sent where nothing has changed, which is nearly always.
    std::shared_ptr<const Gate::Revoked> revoked = gate_.revoked();
    const uint64_t told = told_ == nullptr ? 0 : told_->version;
    if (revoked->version == told) return;
    v1::CoordinatorMessage message;
    *message.mutable_revoked_certificates() = NewlyRevoked(told_.get(), *revoked);
    told_ = std::move(revoked);
    Send(outbox_, std::move(message));
  }

  absl::Status NotItsNode() const {
    return absl::PermissionDeniedError(absl::StrCat(
        "the certificate is for node ", caller_.name, ", but the agent is named ",
        incoming_.hello().node(), "; start it with --name ", caller_.name, ", or enrol it again"));
  }

  absl::Status Accept() {
    // An agent of the version before names its kind of device with a word.
    TERCIO_RETURN_IF_ERROR(plan::UpgradeWords(incoming_.mutable_hello()));
    const v1::AgentHello& hello = incoming_.hello();
    TERCIO_RETURN_IF_ERROR(
        CheckVersions("node " + hello.node(), hello.version(), "the coordinator"));
    TERCIO_RETURN_IF_ERROR(CheckHello(hello));
    TERCIO_RETURN_IF_ERROR(coordinator_.CheckHello(hello));
    v1::CoordinatorMessage answer;
    answer.mutable_hello_accepted()->set_heartbeat_interval_seconds(heartbeat_interval_);
    answer.mutable_hello_accepted()->set_takes_news(true);
    // This answer goes before the orders, which begin to arrive with Attach.
    Send(outbox_, std::move(answer));
    TERCIO_ASSIGN_OR_RETURN(
        token_, coordinator_.Attach(hello, {[outbox = outbox_](v1::CoordinatorMessage message) {
                                              Send(outbox, std::move(message));
                                            },
                                            [outbox = outbox_] { Close(outbox); }}));
    node_ = hello.node();
    return absl::OkStatus();
  }

  void FinishOnce(const grpc::Status& status) {
    if (finished_.exchange(true)) return;
    // Whoever sends after this finds no stream.
    {
      MutexLock lock(outbox_->mutex);
      outbox_->stream = nullptr;
    }
    Finish(status);
  }

  Gate& gate_;
  const Caller caller_;
  Coordinator& coordinator_;
  const double heartbeat_interval_;
  std::shared_ptr<Outbox> outbox_;
  v1::AgentMessage incoming_;
  std::string node_;
  int64_t token_ = 0;
  std::shared_ptr<const Gate::Revoked> told_;  // null: nothing yet
  std::atomic<bool> finished_{false};
};

grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>* NodeServiceImpl::Attach(
    grpc::CallbackServerContext* context) {
  const GuardedCall call(gate_, *context, kAttach);
  if (call.refused()) return new RefusedAgent(call.refusal());
  return new AgentStream(gate_, call.caller(), coordinator_, heartbeat_interval_);
}

NodeServiceImpl::NodeServiceImpl(Gate& gate, Coordinator& coordinator, double heartbeat_interval)
    : gate_(gate),
      coordinator_(coordinator),
      heartbeat_interval_(heartbeat_interval),
      sweeper_([this] {
        MutexLock lock(mutex_);
        const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
        while (!stopped_.WaitFor(mutex_, kSweepInterval, stops)) {
          // The thread is one for all waits, so that a wait costs no timer.
          rendezvous_.Expire(SteadyNow(), [this](const v1::RunId& run) {
            return coordinator_.IsPresentAttempt(run);
          });
        }
      }) {}

NodeServiceImpl::~NodeServiceImpl() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
  }
  sweeper_.join();
}

grpc::ServerUnaryReactor* NodeServiceImpl::RendezvousPut(grpc::CallbackServerContext* context,
                                                         const v1::RendezvousPutRequest* request,
                                                         v1::RendezvousPutResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const GuardedCall call(gate_, *context, "NodeService/RendezvousPut");
  if (call.refused()) {
    reactor->Finish(call.refusal());
    return reactor;
  }
  // The token proves that the caller is of this attempt; a
  // trainer of an older one must not mix its addresses in.
  if (!coordinator_.IsPresent(request->run(), request->token())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::ABORTED, "this attempt is over"));
    return reactor;
  }
  for (const v1::RendezvousEntry& entry : request->entries()) {
    rendezvous_.Put(request->run(), entry.key(), entry.value());
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

// A wait for keys. Deletes itself when it is over.
class NodeServiceImpl::PendingGet : public grpc::ServerUnaryReactor {
 public:
  PendingGet(Rendezvous& rendezvous, const v1::RendezvousGetRequest& request,
             v1::RendezvousGetResponse& response, absl::Time deadline)
      : rendezvous_(rendezvous), response_(response) {
    const std::vector<std::string> keys(request.keys().begin(), request.keys().end());
    waiter_ = rendezvous_.Get(request.run(), keys, deadline,
                              [this](absl::StatusOr<Rendezvous::Values> values) {
                                if (values.ok()) {
                                  for (std::string& value : *values) {
                                    response_.add_values(std::move(value));
                                  }
                                }
                                Finish(ToGrpc(values.status()));
                              });
  }
  void OnCancel() override { rendezvous_.Cancel(waiter_); }
  void OnDone() override { delete this; }

 private:
  Rendezvous& rendezvous_;
  v1::RendezvousGetResponse& response_;
  std::atomic<int64_t> waiter_{0};
};

grpc::ServerUnaryReactor* NodeServiceImpl::RendezvousGet(grpc::CallbackServerContext* context,
                                                         const v1::RendezvousGetRequest* request,
                                                         v1::RendezvousGetResponse* response) {
  const GuardedCall call(gate_, *context, "NodeService/RendezvousGet");
  if (call.refused()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(call.refusal());
    return reactor;
  }
  if (!coordinator_.IsPresent(request->run(), request->token())) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status(grpc::StatusCode::ABORTED, "this attempt is over"));
    return reactor;
  }
  // An answer that names what is missing must be on its way before the client gives up.
  const absl::Duration left = absl::FromChrono(context->deadline()) - absl::Now();
  const absl::Time deadline = SteadyNow() + left - kAnswerMargin;
  return new PendingGet(rendezvous_, *request, *response, deadline);
}

}  // namespace tercio::coordinator
