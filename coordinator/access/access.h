// Everything that decides which caller may do what at a coordinator: its certificate, the gate, the
// audit log and, where the state directory has an authority (`tercio-coordinator init`), tokens,
// revocation and the enrolment port.
//
// Threads: the object has one of its own, which checks for certificates that operators have revoked
// and renews the coordinator's certificate.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/security/tls_identity.h"
#include "coordinator/access/access_store.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authority.h"
#include "coordinator/access/enroll_service.h"
#include "coordinator/access/gate.h"
#include "coordinator/access/handshake_log.h"

namespace tercio::coordinator {

class Access {
 public:
  struct Settings {
    std::string state_dir;
    TlsFiles tls;               // given: instead of those of the state directory's authority
    std::string listen;         // address of the services
    std::string enroll_listen;  // empty: the default for `listen`
    std::string default_role;   // for certificates made elsewhere that name none
    double certificate_life_seconds = 30 * 86400.0;
    bool read_only = false;  // without TLS, whatever is in the directory
  };
  // FAILED_PRECONDITION: certificates that cannot be used, or the revoked ones cannot be read;
  // INVALID_ARGUMENT: settings.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const Settings& settings);
  ~Access();

  static std::string DirectoryOf(const std::string& state_dir) { return state_dir + "/access"; }

  Gate& gate() { return *gate_; }
  const AuditLog* audit() const { return audit_.get(); }                      // null: no TLS
  const std::shared_ptr<TlsIdentity>& identity() const { return identity_; }  // null: no TLS
  AccessServiceImpl& service() { return *service_; }
  // Opens the enrolment port, if there is to be one. Called once.
  absl::Status ServeEnrolment(Registrar::MayBeHere may_be_here);
  // HOST:PORT; empty: there is none.
  std::string enroll_address() const { return enroll_ == nullptr ? "" : enroll_->address(); }

 private:
  explicit Access(Settings settings) : settings_(std::move(settings)) {}
  absl::Status OpenAuthority();
  void Watch();
  absl::Status LookForRevoked();
  void Warn(const absl::Status& status);
  void RenewOwn();

  const Settings settings_;
  std::unique_ptr<Authority>
      authority_;  // null: certificates are made elsewhere, or there are none
  std::unique_ptr<AccessStore> store_;
  std::unique_ptr<Registrar> registrar_;
  std::shared_ptr<TlsIdentity> identity_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<HandshakeLog> handshakes_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<AccessServiceImpl> service_;
  std::unique_ptr<EnrollServer> enroll_;
  std::string seen_version_;                       // version of the store
  absl::Time renew_after_ = absl::InfinitePast();  // by the steady clock; used by the watcher
  absl::Time warned_ = absl::InfinitePast();       // the same

  Mutex mutex_;
  ConditionVariable stopped_;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace tercio::coordinator
