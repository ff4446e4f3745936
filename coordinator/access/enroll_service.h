// Issues certificates: for tokens on a port of its own (EnrollService), and renewals to holders of
// one before it expires (AccessService).
//
// Threads: gRPC's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/channel.h"
#include "coordinator/access/access_store.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authority.h"
#include "coordinator/access/gate.h"
#include "coordinator/access/rate_limiter.h"
#include "grpcpp/server.h"
#include "proto/tercio/v1/access_service.grpc.pb.h"

namespace tercio::coordinator {

// INVALID_ARGUMENT: not a valid name for a person or node.
absl::Status CheckName(const std::string& name);

// Signs certificates for entitled callers, and records them.
class Registrar {
 public:
  // Both must outlive it. `life`: of the certificates of people and agents.
  Registrar(const Authority& authority, AccessStore& store, absl::Duration life)
      : authority_(authority), store_(store), life_(life) {}

  // Whether a node of that name may be connected; nullopt: none ever was. A machine that was set up
  // again, or a pod that replaced another, has the name but not the certificate: it gets one if the
  // name's node is gone, and the earlier certificates are revoked.
  using MayBeHere = std::function<std::optional<bool>(const std::string& node)>;
  void KnowNodes(MayBeHere may_be_here) { may_be_here_ = std::move(may_be_here); }

  // The facts of an enrolment for the audit log.
  struct Enrolment {
    Subject subject;    // for whom
    int64_t token = 0;  // its number
  };
  // Issues a certificate in the token's name and role; where an agent's token has no name, in
  // `name`, if that fits the token's patterns. UNAUTHENTICATED | INVALID_ARGUMENT |
  // PERMISSION_DENIED (the name is taken, or the token is for other nodes) |
  // RESOURCE_EXHAUSTED (too many certificates).
  absl::StatusOr<v1::Certificate> Enrol(const v1::EnrollRequest& request,
                                        const std::string& address, Enrolment* enrolment);
  absl::StatusOr<v1::Certificate> Renew(const Caller& caller, const v1::RenewRequest& request);

 private:
  static absl::Status ChooseName(const TokenRecord& token, const std::string& wanted,
                                 std::string* name);
  absl::Time Forsaken(const std::string& node, absl::Time now) const;
  absl::StatusOr<IssuedCertificate> Issue(const std::string& request, const Subject& subject,
                                          const std::string& address, CertificateRecord* record);

  const Authority& authority_;
  AccessStore& store_;
  const absl::Duration life_;
  MayBeHere may_be_here_ = [](const std::string&) { return true; };
};

// `registrar` is null where the certificates were made elsewhere.
class AccessServiceImpl : public v1::AccessService::Service {
 public:
  AccessServiceImpl(Gate& gate, Registrar* registrar) : gate_(gate), registrar_(registrar) {}
  grpc::Status Renew(grpc::ServerContext*, const v1::RenewRequest*, v1::Certificate*) override;
  grpc::Status WhoAmI(grpc::ServerContext*, const v1::WhoAmIRequest*, v1::WhoAmIResponse*) override;

 private:
  Gate& gate_;
  Registrar* const registrar_;
};

// The enrolment port: any client that reaches it may try, so its limits are tight. Messages have at
// most 64 KiB, connections last half a minute, each address may ask a few times a minute.
class EnrollServer {
 public:
  struct Limits {
    RateLimiter::Limit per_address = {20, 0.5};
    RateLimiter::Limit total = {200, 20};
  };
  // FAILED_PRECONDITION when the address cannot be used. The other objects must outlive it.
  static absl::StatusOr<std::unique_ptr<EnrollServer>> Listen(const std::string& address,
                                                              std::shared_ptr<TlsIdentity> identity,
                                                              Registrar& registrar, AuditLog& audit,
                                                              const Limits& limits);
  ~EnrollServer();
  const std::string& address() const { return address_; }

 private:
  class Service;
  EnrollServer() = default;

  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace tercio::coordinator
