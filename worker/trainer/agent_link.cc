#include "worker/trainer/agent_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/security/channel.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "plan/old_words.h"

namespace tercio::trainer {
namespace {

constexpr auto kFirstBackoff = std::chrono::milliseconds(50);
constexpr auto kLongestBackoff = std::chrono::milliseconds(1000);
constexpr auto kTickInterval = std::chrono::milliseconds(50);
constexpr absl::Duration kPutTimeout = absl::Seconds(30);
constexpr absl::Duration kLinkRetryInterval = absl::Milliseconds(100);

// Retries the call until it succeeds, `timeout` is over, or it fails for another reason than an
// absent peer.
template <typename Call>
absl::Status CallUntil(absl::Duration timeout, const Call& call) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoNanoseconds(deadline - SteadyNow()));
    // An agent that restarts is waited for inside of the call.
    context.set_wait_for_ready(true);
    const absl::Status status = FromGrpc(call(context));
    // A server that ends cancels the calls in progress.
    const bool away = absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!away || SteadyNow() + kLinkRetryInterval >= deadline) return status;
    absl::SleepFor(kLinkRetryInterval);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentLink>> AgentLink::Connect(const std::string& socket,
                                                              const v1::TrainerHello& hello,
                                                              const std::string& untold,
                                                              Abandon abandon) {
  std::unique_ptr<AgentLink> link(new AgentLink(hello, untold, std::move(abandon)));
  TERCIO_ASSIGN_OR_RETURN(const auto channel, OpenChannel("unix:" + socket, {}));
  link->stub_ = v1::TrainerService::NewStub(channel);
  // The first greeting is made in this thread: without an assignment there is nothing to run.
  const absl::Status greeted = link->Greet(Greeting::kFirst);
  if (!greeted.ok()) {
    return absl::Status(greeted.code(), absl::StrCat("the agent gave no assignment: ",
                                                     std::string(greeted.message())));
  }
  link->reader_ = std::thread([raw = link.get()] { raw->ReadLoop(); });
  link->writer_ = std::thread([raw = link.get()] { raw->WriteLoop(); });
  return link;
}

AgentLink::~AgentLink() {
  if (!reader_.joinable()) return;
  {
    MutexLock lock(mutex_);
    // From now on an agent that stays away ends the wait below, and no longer the process.
    closing_ = true;
    const auto grace = absl::ToChronoMilliseconds(absl::Seconds(assignment_.agent_grace_seconds()));
    changed_.WaitFor(mutex_, grace, [this]() TERCIO_REQUIRES(mutex_) {
      return outbox_.empty() || refused_ || IsLost();
    });
    stopping_ = true;
    // The reader waits for a command that may never come.
    connection_->context.TryCancel();
    changed_.NotifyAll();
  }
  reader_.join();
  writer_.join();
}

bool AgentLink::IsLost() const {
  return !attached_ && SteadyNow() - lost_ > absl::Seconds(assignment_.agent_grace_seconds());
}

// Tries to connect once. PERMISSION_DENIED if the agent does not know this rank,
// FAILED_PRECONDITION if its version is incompatible.
absl::Status AgentLink::Greet(Greeting greeting) {
  const bool again = greeting == Greeting::kAgain;
  const auto connection = std::make_shared<Connection>();
  {
    MutexLock lock(mutex_);
    // The destructor cancels the connection that it finds under this lock.
    if (stopping_) return absl::CancelledError("the link is being closed");
    connection_ = connection;
  }
  // A waiting call also drives the connecting; without one gRPC tries only every few seconds.
  connection->context.set_wait_for_ready(again);
  connection->context.AddMetadata(kVersionMetadata, kVersion);
  connection->stream = stub_->Attach(&connection->context);
  v1::TrainerMessage message;
  *message.mutable_hello() = hello_;
  message.mutable_hello()->set_again(again);
  v1::TrainerCommand command;
  bool open = connection->stream->Write(message) && connection->stream->Read(&command);
  // Other commands may overtake the assignment.
  while (open && !command.has_assignment()) open = connection->stream->Read(&command);
  if (!open) {
    connection->context.TryCancel();
    return FromGrpc(connection->stream->Finish());
  }
  // An agent that was not restarted yet passes on what an older coordinator told it.
  TERCIO_RETURN_IF_ERROR(plan::UpgradeWords(command.mutable_assignment()));
  MutexLock lock(mutex_);
  if (again) {
    // This may be another agent, whose predecessor was told the phase.
    outbox_.RepeatPhase();
  } else {
    // Only the first one is taken: others hold references to it.
    assignment_ = command.assignment();
  }
  sent_ = 0;
  attached_ = true;
  untold_.Close();  // everything is sent again; numbers tell duplicates apart
  changed_.NotifyAll();
  return absl::OkStatus();
}

void AgentLink::ReadLoop() {
  while (true) {
    const std::shared_ptr<Connection> connection = connection_;  // only this thread replaces it
    ReadCommands(*connection);
    {
      MutexLock lock(mutex_);
      attached_ = false;
      // The agent's grace begins with the loss, not with the first attempt to connect.
      lost_ = SteadyNow();
      BeginUntold();
    }
    connection->context.TryCancel();
    {
      // Finish must not run beside a write of the other thread.
      MutexLock lock(connection->writing);
      connection->finished = true;
      connection->stream->Finish();
    }
    if (!ConnectAgain()) return;
  }
}

void AgentLink::BeginUntold() {
  if (untold_path_.empty()) return;
  // This process may end before an agent is back: whoever comes then finds the messages here.
  untold_.Create(untold_path_);
  uint64_t last = 0;
  for (const v1::TrainerMessage* next = outbox_.After(0); next != nullptr;
       next = outbox_.After(last)) {
    untold_.Append(next->SerializeAsString());
    last = next->sequence();
  }
}

void AgentLink::ReadCommands(Connection& connection) {
  v1::TrainerCommand command;
  while (connection.stream->Read(&command)) {
    MutexLock lock(mutex_);
    if (command.has_save_now()) {
      // A request to stop must not be weakened by one to save.
      request_ = std::max(request_,
                          command.save_now().then_stop() ? Request::kSaveAndStop : Request::kSave);
    } else if (command.has_flip_bit()) {
      flip_bit_ = true;
    } else if (command.received() > 0) {
      outbox_.Received(command.received());
      changed_.NotifyAll();
    }
  }
}

// False when the link is being closed, or the agent refuses this rank.
bool AgentLink::ConnectAgain() {
  auto backoff = kFirstBackoff;
  for (bool first = true;; first = false) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return false;
      if (first) LogWarning("the agent is gone; waiting for it to return");
      const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
      if (changed_.WaitFor(mutex_, backoff, stops)) return false;
    }
    const absl::Status status = Greet(Greeting::kAgain);
    if (status.ok()) {
      LogInfo("the agent is back");
      return true;
    }
    if (absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status)) {
      MutexLock lock(mutex_);
      refused_ = true;
      changed_.NotifyAll();
      // Training is over, so there is nothing to abandon.
      if (closing_) return false;
      lock.Unlock();
      abandon_(
          absl::StrCat("the returned agent refuses this rank: ", std::string(status.message())));
      return false;
    }
    backoff = std::min(kLongestBackoff, backoff * 2);
  }
}

void AgentLink::WriteLoop() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    changed_.WaitFor(mutex_, kTickInterval, [this]() TERCIO_REQUIRES(mutex_) {
      return stopping_ || (attached_ && outbox_.After(sent_) != nullptr);
    });
    // Nothing else tells the destructor that the grace is over.
    if (IsLost() && closing_) changed_.NotifyAll();
    if (IsLost() && !closing_) {
      lock.Unlock();
      abandon_(absl::StrCat("its agent was away for more than ", assignment_.agent_grace_seconds(),
                            " s (agent_grace)"));
      return;
    }
    const v1::TrainerMessage* next = attached_ ? outbox_.After(sent_) : nullptr;
    if (next == nullptr) continue;
    // It is a copy: the outbox may lose the message while it is being written.
    const v1::TrainerMessage message = *next;
    const std::shared_ptr<Connection> connection = connection_;
    sent_ = message.sequence();
    lock.Unlock();
    {
      MutexLock writing(connection->writing);
      // A failed write means that the agent has gone, which the reader notices, too.
      if (!connection->finished) connection->stream->Write(message);
    }
    lock.Lock();
  }
}

AgentLink::Request AgentLink::TakeRequest() {
  MutexLock lock(mutex_);
  return std::exchange(request_, Request::kNone);
}

bool AgentLink::TakeFlipBit() {
  MutexLock lock(mutex_);
  return std::exchange(flip_bit_, false);
}

void AgentLink::Send(v1::TrainerMessage message) {
  MutexLock lock(mutex_);
  const v1::TrainerMessage& added = outbox_.Add(std::move(message));
  // Figures without a record are of no use to an agent that reads them later.
  if (untold_.is_open() && (!added.has_step() || added.step().has_record())) {
    untold_.Append(added.SerializeAsString());
  }
  changed_.NotifyAll();
}

void AgentLink::SendPhase(v1::TrainerPhase phase) {
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(phase);
  Send(std::move(message));
}

absl::Status AgentLink::Put(const std::string& key, const std::string& value) {
  v1::RendezvousPutRequest request;
  *request.mutable_run() = hello_.run();
  request.set_token(hello_.token());
  v1::RendezvousEntry* entry = request.add_entries();
  entry->set_key(key);
  entry->set_value(value);
  return CallUntil(kPutTimeout, [&](grpc::ClientContext& context) {
    v1::RendezvousPutResponse response;
    return stub_->Put(&context, request, &response);
  });
}

absl::StatusOr<std::vector<std::string>> AgentLink::Get(const std::vector<std::string>& keys,
                                                        absl::Duration timeout) {
  v1::RendezvousGetRequest request;
  *request.mutable_run() = hello_.run();
  request.set_token(hello_.token());
  for (const std::string& key : keys) request.add_keys(key);
  v1::RendezvousGetResponse response;
  TERCIO_RETURN_IF_ERROR(CallUntil(timeout, [&](grpc::ClientContext& context) {
    // An earlier try may have left values behind.
    response.Clear();
    return stub_->Get(&context, request, &response);
  }));
  if (response.values_size() != static_cast<int>(keys.size())) {
    return absl::InternalError("the rendezvous returned the wrong number of values");
  }
  return std::vector<std::string>(response.values().begin(), response.values().end());
}

}  // namespace tercio::trainer
