#include "coordinator/access/access.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/security/channel.h"
#include "common/security/enrolment.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::coordinator {
namespace {

// Between two checks for revoked certificates.
constexpr std::chrono::milliseconds kLookInterval{500};
constexpr absl::Duration kBetweenRenewals = absl::Minutes(1);
constexpr absl::Duration kBetweenWarnings = absl::Minutes(1);
// It is next to the default port of the services, 7077 (cli/client.cc).
constexpr int kDefaultEnrolPort = 7078;

}  // namespace

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const Settings& settings) {
  std::unique_ptr<Access> access(new Access(settings));
  const std::string directory = DirectoryOf(settings.state_dir);
  if (settings.read_only) {
    // Answers queries of the user who has started it, on loopback.
  } else if (settings.tls.given()) {
    TERCIO_ASSIGN_OR_RETURN(access->identity_,
                            // Whether others can read an operator's own key is the
                            // operator's affair: a warning, not an error.
                            TlsIdentity::Load(settings.tls, TlsIdentity::KeyFile::kForeign));
  } else if (PathExists(directory)) {
    TERCIO_RETURN_IF_ERROR(access->OpenAuthority());
  }
  Gate::Options options;
  options.tls = access->identity_ != nullptr;
  // With an authority of its own every certificate has a role; a default would only hide a mistake.
  if (access->authority_ == nullptr) options.default_role = RoleNamed(settings.default_role);
  if (options.tls) {
    access->audit_ =
        std::make_unique<AuditLog>(settings.state_dir + "/audit.log", AuditLog::Options());
    access->handshakes_ = std::make_unique<HandshakeLog>(*access->audit_);
  }
  access->gate_ = std::make_unique<Gate>(options, access->audit_.get());
  access->service_ = std::make_unique<AccessServiceImpl>(*access->gate_, access->registrar_.get());
  if (access->authority_ != nullptr) {
    // No caller is admitted before the revoked certificates are known.
    TERCIO_RETURN_IF_ERROR(access->LookForRevoked());
    // Operators revoke with another process, so that the store has to be watched.
    access->watcher_ = std::thread([self = access.get()] { self->Watch(); });
  }
  return access;
}

absl::Status Access::OpenAuthority() {
  const std::string directory = DirectoryOf(settings_.state_dir);
  TERCIO_ASSIGN_OR_RETURN(authority_, Authority::Open(directory));
  TERCIO_ASSIGN_OR_RETURN(store_, AccessStore::Open(directory + "/access.sqlite"));
  // The certificate is renewed before it is loaded: the coordinator starts even if it has expired.
  RenewOwn();
  TERCIO_ASSIGN_OR_RETURN(identity_, TlsIdentity::Load(Authority::CoordinatorFiles(directory),
                                                       TlsIdentity::KeyFile::kOwn));
  registrar_ = std::make_unique<Registrar>(*authority_, *store_,
                                           absl::Seconds(settings_.certificate_life_seconds));
  return absl::OkStatus();
}

absl::Status Access::ServeEnrolment(Registrar::MayBeHere may_be_here) {
  const std::string& given = settings_.enroll_listen;
  if (authority_ == nullptr) {
    if (given.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--enroll-listen needs an authority: create one with `tercio-coordinator init`");
  }
  // On loopback there are no other machines to enrol.
  if (given.empty() && IsLoopback(settings_.listen)) return absl::OkStatus();
  registrar_->KnowNodes(std::move(may_be_here));
  const std::string host = settings_.listen.substr(0, settings_.listen.rfind(':'));
  const std::string address = given.empty() ? absl::StrCat(host, ":", kDefaultEnrolPort) : given;
  TERCIO_ASSIGN_OR_RETURN(enroll_, EnrollServer::Listen(address, identity_, *registrar_, *audit_,
                                                        EnrollServer::Limits()));
  return absl::OkStatus();
}

void Access::Watch() {
  MutexLock lock(mutex_);
  const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
  while (!stopped_.WaitFor(mutex_, kLookInterval, stops)) {
    if (const absl::Status looked = LookForRevoked(); !looked.ok()) Warn(looked);
    RenewOwn();
  }
}

// If the store cannot be read, the known ones stay in force.
absl::Status Access::LookForRevoked() {
  TERCIO_ASSIGN_OR_RETURN(std::string version, store_->Version());
  if (version == seen_version_) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(std::set<std::string> revoked, store_->Revoked());
  TERCIO_ASSIGN_OR_RETURN(std::set<std::string> agents,
                          store_->RevokedAgents(absl::Now() - 2 * kLongestConnectionOfAgents));
  // The version is remembered only when all was read: a failure is tried again.
  seen_version_ = std::move(version);
  gate_->SetRevoked({0, std::move(revoked), std::move(agents)});
  return absl::OkStatus();
}

void Access::Warn(const absl::Status& status) {
  const absl::Time now = SteadyNow();
  if (now - warned_ < kBetweenWarnings) return;
  warned_ = now;
  LogError(absl::StrCat("cannot check for revoked certificates; those already known stay revoked: ",
                        std::string(status.message())));
}

void Access::RenewOwn() {
  if (SteadyNow() < renew_after_) return;
  CertificateFacts facts;
  if (identity_ != nullptr) {
    facts = identity_->Current()->facts;
  } else {
    // Also due at the start: it may have expired while the coordinator was away.
    const auto text =
        ReadFile(Authority::CoordinatorFiles(DirectoryOf(settings_.state_dir)).certificate);
    const auto read = ReadCertificate(text.ok() ? *text : "");
    if (!read.ok()) return;  // reported when it is loaded
    facts = *read;
  }
  if (!RenewalIsDue(facts, absl::Now())) return;
  // The pause also follows a failure: a full disk would otherwise fill the log.
  renew_after_ = SteadyNow() + kBetweenRenewals;
  const absl::Status status = authority_->RenewCoordinator(absl::Now());
  if (status.ok()) return;
  LogWarning(
      absl::StrCat("cannot renew the coordinator's certificate: ", std::string(status.message())));
}

Access::~Access() {
  if (watcher_.joinable()) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      stopped_.NotifyAll();
    }
    watcher_.join();
  }
}

}  // namespace tercio::coordinator
