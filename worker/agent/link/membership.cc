#include "worker/agent/link/membership.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/security/certificate.h"
#include "common/security/enrolment.h"
#include "common/security/join_token.h"
#include "common/status_macros.h"

namespace tercio::agent {
namespace {

constexpr char kTokenVariable[] = "TERCIO_JOIN_TOKEN";
constexpr absl::Duration kLongestWait = absl::Seconds(30);
constexpr std::chrono::milliseconds kLookInterval{500};
constexpr std::chrono::milliseconds kAfterFault{30'000};
// Attempts to renew a certificate, spread over the time before it expires.
constexpr int kTries = 20;

// Removes the token from the environment, which trainers inherit.
std::string TakeTokenVariable() {
  const char* value = std::getenv(kTokenVariable);
  std::string token = value == nullptr ? "" : value;
  unsetenv(kTokenVariable);
  return token;
}

absl::StatusOr<JoinToken> ReadToken(const std::string& path) {
  // The variable is removed even if the token comes from a file.
  std::string text = TakeTokenVariable();
  if (!path.empty()) {
    TERCIO_ASSIGN_OR_RETURN(text, ReadFile(path));
  }
  return ParseJoinToken(text);
}

absl::StatusOr<CertificateFacts> FactsOf(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ReadCertificate(text);
}

// Whether there is a certificate that is still valid and comes from the token's authority: a
// cluster that was set up again issues tokens of another authority.
bool CanBeUsed(const TlsFiles& files, const absl::StatusOr<JoinToken>& token) {
  const absl::StatusOr<CertificateFacts> own = FactsOf(files.certificate);
  if (!own.ok() || own->not_after <= absl::Now()) return false;
  const absl::StatusOr<CertificateFacts> authority = FactsOf(files.authority);
  return !token.ok() || (authority.ok() && authority->fingerprint == token->fingerprint);
}

// The coordinator may still be starting, or refuse for a while because too many ask.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsDeadlineExceeded(status);
}

// Waits in small steps, since `stop` can only be asked.
bool WaitUnless(const std::function<bool()>& stop, absl::Duration wait) {
  for (; wait > absl::ZeroDuration(); wait -= absl::Milliseconds(100)) {
    if (stop()) return false;
    absl::SleepFor(absl::Milliseconds(100));
  }
  return !stop();
}

}  // namespace

bool Membership::HasMeans(const Options& options) {
  return options.tls.given() || !options.join_token_file.empty() ||
         std::getenv(kTokenVariable) != nullptr || IsEnrolled(options.state_dir + "/access");
}

absl::StatusOr<std::unique_ptr<Membership>> Membership::Join(Options options,
                                                             const std::function<bool()>& stop) {
  if (!HasMeans(options)) return std::unique_ptr<Membership>(new Membership(std::move(options)));
  std::unique_ptr<Membership> membership(new Membership(std::move(options)));
  // Files that are given belong to someone else, who also renews them.
  TlsFiles files = membership->options_.tls;
  membership->own_ = !files.given();
  if (membership->own_) {
    files = EnrolledFiles(membership->Directory());
    const bool given =
        !membership->options_.join_token_file.empty() || std::getenv(kTokenVariable) != nullptr;
    const auto token = ReadToken(membership->options_.join_token_file);
    // A node that restarts keeps its certificate, since its token may be used up or have expired.
    if (given && !CanBeUsed(files, token)) {
      TERCIO_RETURN_IF_ERROR(token.status());
      TERCIO_RETURN_IF_ERROR(membership->Enrol(*token, stop));
    }
  }
  TakeTokenVariable();
  TERCIO_ASSIGN_OR_RETURN(
      membership->identity_,
      TlsIdentity::Load(
          files, membership->own_ ? TlsIdentity::KeyFile::kOwn : TlsIdentity::KeyFile::kForeign));
  TERCIO_RETURN_IF_ERROR(membership->CopyForTrainers());
  return membership;
}

absl::Status Membership::Enrol(const JoinToken& token, const std::function<bool()>& stop) {
  EnrolmentRequest request;
  request.token = token;
  request.address = options_.enroll;
  if (request.address.empty()) {
    TERCIO_ASSIGN_OR_RETURN(request.address, EnrolmentAddress(options_.coordinator));
  }
  request.name = options_.node;
  request.hosts = options_.hosts;
  for (absl::Duration wait = absl::Seconds(1);; wait = std::min(kLongestWait, 2 * wait)) {
    const absl::Status status = tercio::Enrol(request, Directory());
    if (status.ok()) LogInfo(absl::StrCat("enrolled at ", request.address));
    if (status.ok() || !IsPassing(status)) return status;
    LogWarning(absl::StrCat("cannot enrol yet: ", std::string(status.message())));
    if (!WaitUnless(stop, wait)) return absl::CancelledError("asked to stop before enrolment");
  }
}

TlsFiles Membership::TrainerFiles() const {
  if (identity_ == nullptr) return {};
  if (!options_.trainer_user.has_value()) return identity_->files();
  return EnrolledFiles(options_.state_dir + "/trainer-access");
}

// With the key a trainer can do what its agent can do; it holds nothing that belongs to other nodes
// or to people.
absl::Status Membership::CopyForTrainers() {
  if (!options_.trainer_user.has_value()) return absl::OkStatus();
  const auto material = identity_->Current();
  if (material->version == copied_) return absl::OkStatus();
  const std::string directory = options_.state_dir + "/trainer-access";
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  const TlsFiles files = TrainerFiles();
  for (const auto& [path, text] :
       {std::pair{files.key, material->key}, std::pair{files.authority, material->authority},
        std::pair{files.certificate, material->certificate}}) {
    // Owned by the trainers before it has its name: there is no moment at which they cannot read
    // it.
    const std::string made = path + ".new";
    TERCIO_RETURN_IF_ERROR(WriteFileDurably(made, text, 0600));
    TERCIO_RETURN_IF_ERROR(GiveTo(*options_.trainer_user, made));
    TERCIO_RETURN_IF_ERROR(RenamePath(made, path));
  }
  copied_ = material->version;
  return absl::OkStatus();
}

void Membership::KeepUp(std::shared_ptr<grpc::Channel> coordinator) {
  if (identity_ == nullptr) return;
  // Renewing may wait for the network, which the first thread must not.
  renewer_ = std::thread([this, channel = std::move(coordinator)] { Run(channel); });
}

// Also due when this node has got another address since: once, whatever form the authority gives
// it.
bool Membership::IsDue() const {
  const CertificateFacts facts = identity_->Current()->facts;
  if (RenewalIsDue(facts, absl::Now())) return true;
  return !named_ &&
         !std::all_of(options_.hosts.begin(), options_.hosts.end(), [&](const auto& host) {
           return std::find(facts.names.begin(), facts.names.end(), host) != facts.names.end();
         });
}

void Membership::Run(const std::shared_ptr<grpc::Channel>& coordinator) {
  MutexLock lock(mutex_);
  std::chrono::milliseconds wait = kLookInterval;
  const auto stops = [this]() TERCIO_REQUIRES(mutex_) { return stopping_; };
  while (!stopped_.WaitFor(mutex_, wait, stops)) {
    lock.Unlock();
    wait = RenewIfDue(coordinator);
    if (const absl::Status copied = CopyForTrainers(); !copied.ok()) {
      LogWarning(std::string(copied.message()));
      wait = kAfterFault;
    }
    lock.Lock();
  }
}

// Returns how long to wait before the next look.
std::chrono::milliseconds Membership::RenewIfDue(
    const std::shared_ptr<grpc::Channel>& coordinator) {
  if (!own_ || !IsDue()) return kLookInterval;
  const absl::Status status = RenewCertificate(coordinator, Directory(), options_.hosts);
  if (status.ok()) {
    named_ = true;
    return kLookInterval;
  }
  const CertificateFacts facts = identity_->Current()->facts;
  LogWarning(absl::StrCat("cannot renew the certificate (valid until ",
                          absl::FormatTime(facts.not_after, absl::UTCTimeZone()),
                          ") yet: ", std::string(status.message())));
  // Renewal begins in the last third of the certificate's life, which has room for kTries attempts.
  const absl::Duration next = (facts.not_after - facts.not_before) / (3 * kTries);
  return std::max(kLookInterval, absl::ToChronoMilliseconds(std::min(next, absl::Hours(1))));
}

Membership::~Membership() {
  if (!renewer_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
  }
  renewer_.join();
}

}  // namespace tercio::agent
