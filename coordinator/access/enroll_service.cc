#include "coordinator/access/enroll_service.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/grpc_status.h"
#include "common/security/certificate.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/access/node_patterns.h"
#include "grpcpp/resource_quota.h"

namespace tercio::coordinator {
namespace {

// A machine has few names; a certificate is sent with every handshake.
constexpr size_t kMostNames = 16;
constexpr size_t kLongestName = 64;  // bytes of a common name (RFC 5280)
// A request is a few kilobytes. The port is open to strangers, so every limit is tight.
constexpr int kMostMessage = 64 << 10;
constexpr size_t kMostMemory = 32 << 20;
constexpr int kThreads = 16;
constexpr int kHandshakeMs = 5'000;
constexpr int kIdleMs = 10'000;
constexpr int kLongestConnectionMs = 30'000;
constexpr int kFarewellMs = 2'000;
// The time from an agent's certificate to its first stream.
constexpr absl::Duration kTimeToAttach = absl::Minutes(1);

// The names and addresses by which others may reach an agent.
absl::StatusOr<std::vector<std::string>> HostsOf(const std::string& request) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<std::string> hosts, NamesOfRequest(request));
  if (hosts.size() <= kMostNames) return hosts;
  return absl::InvalidArgumentError(
      absl::StrCat("a certificate can have at most ", kMostNames, " names and addresses"));
}

}  // namespace

absl::Status CheckName(const std::string& name) {
  // The name goes into certificates, patterns and logs,
  // none of which has to quote these characters.
  bool good = !name.empty() && name.size() <= kLongestName;
  for (const char c : name) {
    good = good && (absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '@');
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a name must have 1 to 64 characters: letters, digits and -._@");
}

absl::StatusOr<IssuedCertificate> Registrar::Issue(const std::string& request,
                                                   const Subject& subject,
                                                   const std::string& address,
                                                   CertificateRecord* record) {
  // Times of certificates are compared on other machines, hence the wall clock.
  const absl::Time now = absl::Now();
  TERCIO_ASSIGN_OR_RETURN(IssuedCertificate issued, authority_.Issue(request, subject, now, life_));
  *record = {issued.facts.serial,    subject.name, subject.role, now,
             issued.facts.not_after, address,      false};
  return issued;
}

// Agents of that name are gone if their certificates are from before this time.
absl::Time Registrar::Forsaken(const std::string& node, absl::Time now) const {
  // Nodes that never came are given the time between their enrolment and their first stream.
  const std::optional<bool> here = may_be_here_(node);
  if (!here.has_value()) return now - kTimeToAttach;
  return *here ? absl::InfinitePast() : absl::InfiniteFuture();
}

// *name is the name that the certificate will have, or would have had.
absl::Status Registrar::ChooseName(const TokenRecord& token, const std::string& wanted,
                                   std::string* name) {
  *name = token.name.empty() ? wanted : token.name;
  TERCIO_RETURN_IF_ERROR(CheckName(*name));
  // A wish that differs is most likely a mistake, which a
  // certificate in the other name would only show later.
  if (!wanted.empty() && wanted != *name) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token is for ", *name, ", not for ", wanted));
  }
  if (token.nodes.empty() || FitsNodePatterns(token.nodes, *name)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("token ", token.id, " is for nodes named ", token.nodes, ", not for ", *name,
                   "; create one for other names with `tercio-coordinator token --nodes`"));
}

absl::StatusOr<v1::Certificate> Registrar::Enrol(const v1::EnrollRequest& request,
                                                 const std::string& address, Enrolment* enrolment) {
  Subject* const subject = &enrolment->subject;
  // The token comes first: without one nothing of the request is worth parsing.
  TERCIO_ASSIGN_OR_RETURN(const TokenRecord token, store_.FindToken(request.token(), absl::Now()));
  enrolment->token = token.id;
  subject->role = token.role;
  TERCIO_RETURN_IF_ERROR(ChooseName(token, request.name(), &subject->name));
  // Only agents serve others, and so need names by which they are reached.
  if (token.role == kAgentRole) {
    TERCIO_ASSIGN_OR_RETURN(subject->names, HostsOf(request.request()));
  }
  CertificateRecord record;
  TERCIO_ASSIGN_OR_RETURN(const IssuedCertificate issued,
                          Issue(request.request(), *subject, address, &record));
  // The certificate exists before the token is spent, but
  // leaves only after: a failure in between costs nothing.
  TERCIO_RETURN_IF_ERROR(store_.Spend(token, record, Forsaken(subject->name, record.issued)));
  v1::Certificate answer;
  answer.set_certificate(issued.pem);
  answer.set_authority(authority_.certificate());
  return answer;
}

absl::StatusOr<v1::Certificate> Registrar::Renew(const Caller& caller,
                                                 const v1::RenewRequest& request) {
  // Name and role are those of the present certificate: a renewal extends and changes nothing.
  Subject subject = {caller.name, std::string(NameOf(caller.role)), {}};
  if (caller.role == Role::kAgent) {
    TERCIO_ASSIGN_OR_RETURN(subject.names, HostsOf(request.request()));
  }
  CertificateRecord record;
  TERCIO_ASSIGN_OR_RETURN(const IssuedCertificate issued,
                          Issue(request.request(), subject, caller.address, &record));
  // The serial shows that the old one was not revoked in the meantime.
  TERCIO_RETURN_IF_ERROR(store_.AddSuccessor(caller.serial, record));
  v1::Certificate answer;
  answer.set_certificate(issued.pem);
  answer.set_authority(authority_.certificate());
  return answer;
}

grpc::Status AccessServiceImpl::Renew(grpc::ServerContext* context, const v1::RenewRequest* request,
                                      v1::Certificate* response) {
  GuardedCall call(gate_, *context, "AccessService/Renew");
  if (call.refused()) return call.refusal();
  // With certificates made elsewhere there is no key here that could sign.
  if (registrar_ == nullptr) {
    return call.Done(
        "",
        ToGrpc(absl::FailedPreconditionError(
            "this coordinator does not issue certificates; renew them where they were issued")));
  }
  const absl::StatusOr<v1::Certificate> renewed = registrar_->Renew(call.caller(), *request);
  if (renewed.ok()) *response = *renewed;
  return call.Done(call.caller().name, ToGrpc(renewed.status()));
}

grpc::Status AccessServiceImpl::WhoAmI(grpc::ServerContext* context, const v1::WhoAmIRequest*,
                                       v1::WhoAmIResponse* response) {
  GuardedCall call(gate_, *context, "AccessService/WhoAmI");
  if (call.refused()) return call.refusal();
  response->set_name(call.caller().name);
  response->set_role(std::string(NameOf(call.caller().role)));
  return grpc::Status::OK;
}

class EnrollServer::Service : public v1::EnrollService::Service {
 public:
  Service(Registrar& registrar, AuditLog& audit, const Limits& limits)
      : registrar_(registrar),
        audit_(audit),
        per_address_(limits.per_address),
        total_(limits.total),
        refusals_(limits.per_address) {}

  grpc::Status Enroll(grpc::ServerContext* context, const v1::EnrollRequest* request,
                      v1::Certificate* response) override {
    const std::string address = HostOfPeer(context->peer());
    Registrar::Enrolment enrolment;
    const absl::Status status = Serve(*request, address, &enrolment, response);
    // The outcome is recorded in every case, since attempts matter as much as successes.
    Audit(address, enrolment, status, *response);
    return ToGrpc(status);
  }

 private:
  absl::Status Serve(const v1::EnrollRequest& request, const std::string& address,
                     Registrar::Enrolment* enrolment, v1::Certificate* response) {
    const absl::Time now = SteadyNow();
    // One address alone cannot use up what all have together.
    if (!per_address_.Take(address, now) || !total_.Take("", now)) {
      return absl::ResourceExhaustedError("too many certificate requests; wait a minute and retry");
    }
    TERCIO_ASSIGN_OR_RETURN(*response, registrar_.Enrol(request, address, enrolment));
    return absl::OkStatus();
  }

  void Audit(const std::string& address, const Registrar::Enrolment& enrolment,
             const absl::Status& status, const v1::Certificate& issued) {
    if (!status.ok()) {
      audit_.Count(absl::IsResourceExhausted(status) ? Refusal::kTooOften : Refusal::kEnrolment);
    }
    // Lines have a limit of their own: a guesser must not rotate the others out of the log.
    if (!status.ok() && !refusals_.Take(address, SteadyNow())) return;
    AuditEntry entry;
    entry.address = address;
    entry.who = enrolment.subject.name;
    entry.role = enrolment.subject.role;
    if (const auto facts = ReadCertificate(issued.certificate()); facts.ok()) {
      entry.serial = facts->serial;
    }
    entry.call = "EnrollService/Enroll";
    entry.subject = enrolment.subject.name;
    entry.outcome = status.ok() ? "ok" : "refused";
    entry.reason =
        status.ok() ? absl::StrCat("token ", enrolment.token) : std::string(status.message());
    audit_.Write(entry);
  }

  Registrar& registrar_;
  AuditLog& audit_;
  RateLimiter per_address_;
  RateLimiter total_;
  RateLimiter refusals_;  // lines of what was refused
};

absl::StatusOr<std::unique_ptr<EnrollServer>> EnrollServer::Listen(
    const std::string& address, std::shared_ptr<TlsIdentity> identity, Registrar& registrar,
    AuditLog& audit, const Limits& limits) {
  std::unique_ptr<EnrollServer> server(new EnrollServer);
  server->service_ = std::make_unique<Service>(registrar, audit, limits);
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.SetMaxReceiveMessageSize(kMostMessage);
  builder.SetResourceQuota(
      grpc::ResourceQuota("enrolment").Resize(kMostMemory).SetMaxThreads(kThreads));
  // Strangers must not hold a connection without a handshake, or an idle one, for long.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kLongestConnectionMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kFarewellMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  int port = 0;
  builder.AddListeningPort(
      // Callers have no certificate yet: that is what they come for.
      address, MakeServerCredentials(std::move(identity), ClientCertificates::kNone), &port);
  builder.RegisterService(server->service_.get());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on ", address, "; is the port in use? choose another with --enroll-listen"));
  }
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return server;
}

EnrollServer::~EnrollServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
}

}  // namespace tercio::coordinator
