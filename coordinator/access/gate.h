// Identifies callers and decides what they may do: every call of the coordinator's services passes
// here first (service/guarded_services.h). Without TLS every caller is an admin without a name, as
// on a machine of one's own.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/security/roles.h"
#include "common/steady_time.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/rate_limiter.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"
#include "grpcpp/support/status.h"

namespace tercio::coordinator {

struct Caller {
  std::string name;  // name of the certificate; empty without TLS
  Role role = Role::kNone;
  std::string serial;
  std::string address;  // without the port

  // An agent speaks for its own node only.
  bool MaySpeakFor(const std::string& node) const { return role != Role::kAgent || node == name; }
};

class Gate {
 public:
  struct Options {
    bool tls = false;
    // The role of certificates that name none; kNone: they are refused.
    Role default_role = Role::kNone;
    // Calls that change state, of one caller. Nodes may share a certificate, and all of them come
    // back within seconds when the coordinator has been away: each address has its own limit of
    // Attach calls.
    RateLimiter::Limit changes = {60, 20};
    RateLimiter::Limit refusals = {60, 5};  // lines about one caller's refused calls
    std::function<absl::Time()> now = SteadyNow;
  };
  // `audit` may be null, else it must outlive the gate.
  Gate(Options options, AuditLog* audit);

  Caller WhoCalls(const grpc::ServerContextBase& context);
  // PERMISSION_DENIED (role), UNAUTHENTICATED (revoked), RESOURCE_EXHAUSTED (too often).
  // Refusals are in the audit log.
  absl::Status Admit(const Caller& caller, std::string_view call);
  // The outcome of a call that was admitted; reading ones are not recorded.
  void Record(const Caller& caller, std::string_view call, const std::string& subject,
              const absl::Status& status);
  // Refuses a call that Admit let pass: the job is another's, or the node is not the caller's own.
  absl::Status Refuse(const Caller& caller, std::string_view call, const std::string& subject,
                      absl::Status status);

  struct Revoked {
    uint64_t version = 0;  // incremented by the gate at each change; 0: none yet
    std::set<std::string> serials;
    std::set<std::string> agents;  // the subset that agents may still meet
  };
  // From now on certificates of these numbers are refused; streams that they have open end.
  void SetRevoked(Revoked revoked);
  std::shared_ptr<const Revoked> revoked() const;

  // Lets the streams of a server be ended when their certificates are revoked.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeStreamWatches();

 private:
  class StreamWatch;
  class StreamWatchFactory;
  struct Known {
    std::string name;
    Role role = Role::kNone;
    std::string serial;
  };

  Known Read(const std::string& pem);
  absl::Status Judge(const Caller& caller, std::string_view call);
  void AuditRefusal(const Caller& caller, std::string_view call, const std::string& subject,
                    Refusal refusal, const absl::Status& status);

  const Options options_;
  AuditLog* const audit_;
  RateLimiter changes_;
  RateLimiter refusals_;

  mutable Mutex mutex_;
  std::map<std::string, Known> known_ TERCIO_GUARDED_BY(mutex_);  // by PEM text; at most kMostKnown
  std::shared_ptr<const Revoked> revoked_ TERCIO_GUARDED_BY(mutex_) = std::make_shared<Revoked>();

  // Cancelling a call may run its end on the same thread, and so the destructor of its watch.
  RecursiveMutex streams_mutex_;
  std::map<const StreamWatch*, std::pair<std::string, grpc::ServerContextBase*>> streams_
      TERCIO_GUARDED_BY(streams_mutex_);
};

// One unary call, from its admission to its line in the audit log.
class GuardedCall {
 public:
  // `call` must outlive it: it is a literal.
  GuardedCall(Gate& gate, const grpc::ServerContextBase& context, std::string_view call);

  bool refused() const { return !status_.ok(); }
  grpc::Status refusal() const;
  const Caller& caller() const { return caller_; }
  // Refuses a call whose request is about another caller's job or node.
  grpc::Status Refuse(const std::string& subject, absl::Status status);
  // Records the outcome and returns it.
  grpc::Status Done(const std::string& subject, const grpc::Status& outcome);

 private:
  Gate& gate_;
  const std::string_view call_;
  Caller caller_;
  absl::Status status_;
};

// "127.0.0.1" of gRPC's "ipv4:127.0.0.1:4711"; the same of IPv6; else the whole.
std::string HostOfPeer(const std::string& peer);

}  // namespace tercio::coordinator
