#include "coordinator/access/gate.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/grpc_status.h"
#include "common/security/certificate.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/support/server_interceptor.h"

namespace tercio::coordinator {
namespace {

// A certificate has a few kilobytes, so that this stays at some ten megabytes.
constexpr size_t kMostKnown = 4096;
constexpr char kNoRole[] =
    " has no role: a certificate names its role in a URI tercio:role/ROLE; the coordinator's "
    "--default-role applies to certificates without one";

std::string PemOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return "";
  const auto found = auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty() ? "" : std::string(found.front().data(), found.front().size());
}

// The kind of refusal behind a status of Gate::Judge.
Refusal RefusalOf(const absl::Status& status) {
  // Judge gives each of these codes for one reason only.
  if (absl::IsUnauthenticated(status)) return Refusal::kRevoked;
  return absl::IsResourceExhausted(status) ? Refusal::kTooOften : Refusal::kRole;
}

// The caller whose calls are counted together, as messages name it.
std::string LimitedKey(const Caller& caller, std::string_view call) {
  // Without TLS there are no names; the address is what is left.
  if (caller.name.empty()) return caller.address;
  if (call != "NodeService/Attach") return caller.name;
  return absl::StrCat(caller.name, " at ", caller.address);
}

AuditEntry EntryOf(const Caller& caller, std::string_view call, const std::string& subject) {
  AuditEntry entry;
  entry.who = caller.name;
  entry.role = std::string(NameOf(caller.role));
  entry.serial = caller.serial;
  entry.address = caller.address;
  entry.call = std::string(call);
  entry.subject = subject;
  return entry;
}

}  // namespace

std::string HostOfPeer(const std::string& peer) {
  // Sockets of Unix have no port to remove.
  if (!absl::StartsWith(peer, "ipv4:") && !absl::StartsWith(peer, "ipv6:")) return peer;
  std::string host = peer.substr(5, peer.rfind(':') - 5);
  // gRPC escapes the brackets of IPv6 addresses in a URI.
  host = absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  return host;
}

// One open stream of a caller with a certificate: ended when that is revoked.
class Gate::StreamWatch : public grpc::experimental::Interceptor {
 public:
  StreamWatch(Gate& gate, std::string serial, grpc::ServerContextBase* context) : gate_(gate) {
    // The lock is recursive since cancelling may end a stream, and
    // destroy its watch, in the same thread (SetRevoked).
    RecursiveMutexLock lock(gate_.streams_mutex_);
    gate_.streams_[this] = {std::move(serial), context};
  }
  ~StreamWatch() override {
    RecursiveMutexLock lock(gate_.streams_mutex_);
    gate_.streams_.erase(this);
  }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    methods->Proceed();
  }

 private:
  Gate& gate_;
};

class Gate::StreamWatchFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit StreamWatchFactory(Gate& gate) : gate_(gate) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    // A short call is judged when it comes; only what lasts has to be watched.
    if (info->type() == grpc::experimental::ServerRpcInfo::Type::UNARY) return nullptr;
    std::string serial = gate_.WhoCalls(*info->server_context()).serial;
    // Without a certificate there is nothing to revoke.
    if (serial.empty()) return nullptr;
    return new StreamWatch(gate_, std::move(serial), info->server_context());
  }

 private:
  Gate& gate_;
};

Gate::Gate(Options options, AuditLog* audit)
    : options_(options), audit_(audit), changes_(options.changes), refusals_(options.refusals) {}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Gate::MakeStreamWatches() {
  return std::make_unique<StreamWatchFactory>(*this);
}

// Parsing a certificate takes longer than most calls, and callers return.
Gate::Known Gate::Read(const std::string& pem) {
  MutexLock lock(mutex_);
  const auto found = known_.find(pem);
  if (found != known_.end()) return found->second;
  Known known;  // what cannot be read has no role
  // A certificate without a role is treated by the rule of
  // --default-role; an unreadable one is refused.
  if (const auto facts = ReadCertificate(pem); facts.ok()) {
    known = {facts->name, facts->role.empty() ? options_.default_role : RoleNamed(facts->role),
             facts->serial};
  }
  // All are forgotten at once, which is rare and simple; those who return are read again.
  if (known_.size() >= kMostKnown) known_.clear();
  return known_[pem] = known;
}

Caller Gate::WhoCalls(const grpc::ServerContextBase& context) {
  Caller caller;
  caller.address = HostOfPeer(context.peer());
  // Without TLS the server listens on this machine only, whose users are all trusted.
  if (!options_.tls) {
    caller.role = Role::kAdmin;
    return caller;
  }
  const Known known = Read(PemOf(context));
  caller.name = known.name;
  caller.serial = known.serial;
  caller.role = known.role;
  return caller;
}

std::shared_ptr<const Gate::Revoked> Gate::revoked() const {
  MutexLock lock(mutex_);
  return revoked_;
}

absl::Status Gate::Judge(const Caller& caller, std::string_view call) {
  // A call that the table does not know is refused: a new one has to be entered on purpose.
  const Rule* rule = RuleOf(call);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat(std::string(call), " cannot be called by any role"));
  }
  // Revocation comes before the role, so that the caller is told the real reason.
  if (revoked()->serials.contains(caller.serial)) {
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of ", caller.name, ", ", caller.serial,
                     ", was revoked; ask an administrator for a new token"));
  }
  if (!Allows(rule->least, caller.role)) {
    return absl::PermissionDeniedError(
        absl::StrCat(std::string(call), " needs ", std::string(Needed(rule->least)), "; ",
                     caller.name.empty() ? "this caller" : caller.name,
                     caller.role == Role::kNone
                         ? kNoRole
                         : absl::StrCat(" has the role ", std::string(NameOf(caller.role)))));
  }
  // Reading is not limited, and on one's own machine nobody has to be slowed down.
  if (!rule->changes || !options_.tls) return absl::OkStatus();
  const std::string key = LimitedKey(caller, call);
  if (changes_.Take(key, options_.now())) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("too many changes by ", key, " in a short time; wait a second and retry"));
}

absl::Status Gate::Admit(const Caller& caller, std::string_view call) {
  const absl::Status status = Judge(caller, call);
  if (!status.ok()) AuditRefusal(caller, call, "", RefusalOf(status), status);
  return status;
}

void Gate::AuditRefusal(const Caller& caller, std::string_view call, const std::string& subject,
                        Refusal refusal, const absl::Status& status) {
  if (audit_ == nullptr) return;
  audit_->Count(refusal);
  // A caller that is refused a thousand times a second must not push the others out of the log.
  if (!refusals_.Take(absl::StrCat(caller.name, " ", caller.address), options_.now())) return;
  AuditEntry entry = EntryOf(caller, call, subject);
  entry.outcome = "refused";
  entry.reason = std::string(status.message());
  audit_->Write(entry);
}

absl::Status Gate::Refuse(const Caller& caller, std::string_view call, const std::string& subject,
                          absl::Status status) {
  AuditRefusal(caller, call, subject, Refusal::kNotTheirs, status);
  return status;
}

void Gate::Record(const Caller& caller, std::string_view call, const std::string& subject,
                  const absl::Status& status) {
  const Rule* rule = RuleOf(call);
  // Reading calls would fill the log with what changes nothing.
  if (audit_ == nullptr || rule == nullptr || !rule->changes) return;
  AuditEntry entry = EntryOf(caller, call, subject);
  entry.outcome = status.ok() ? "ok" : "failed";
  entry.reason = std::string(status.message());
  audit_->Write(entry);
}

void Gate::SetRevoked(Revoked revoked) {
  const auto fresh = std::make_shared<Revoked>(std::move(revoked));
  {
    MutexLock lock(mutex_);
    // Streams are searched only when there is news.
    if (fresh->serials == revoked_->serials) return;
    fresh->version = revoked_->version + 1;
    revoked_ = fresh;
  }
  // A watch takes the lock before it is destroyed: a stream whose watch exists exists itself.
  RecursiveMutexLock lock(streams_mutex_);
  // Cancelling may remove entries of the map, so the keys are collected first.
  std::vector<const StreamWatch*> ended;
  for (const auto& [watch, stream] : streams_) {
    if (fresh->serials.contains(stream.first)) ended.push_back(watch);
  }
  for (const StreamWatch* watch : ended) {
    // The stream may have ended since it was collected.
    if (const auto found = streams_.find(watch); found != streams_.end()) {
      found->second.second->TryCancel();
    }
  }
}

GuardedCall::GuardedCall(Gate& gate, const grpc::ServerContextBase& context, std::string_view call)
    : gate_(gate),
      call_(call),
      caller_(gate.WhoCalls(context)),
      status_(gate.Admit(caller_, call)) {}

grpc::Status GuardedCall::refusal() const { return ToGrpc(status_); }

grpc::Status GuardedCall::Refuse(const std::string& subject, absl::Status status) {
  return ToGrpc(gate_.Refuse(caller_, call_, subject, std::move(status)));
}

grpc::Status GuardedCall::Done(const std::string& subject, const grpc::Status& outcome) {
  gate_.Record(caller_, call_, subject, FromGrpc(outcome));
  return outcome;
}

}  // namespace tercio::coordinator
