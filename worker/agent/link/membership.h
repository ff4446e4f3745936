// How this node proves its identity: with certificate files that are given (--tls-*), or with those
// that it obtains itself, once for a join token and from then on with its certificate, and keeps in
// its state directory. They are renewed when a third of their life is left, without interrupting
// anything.
//
// Threads: one of its own, for renewals.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/security/join_token.h"
#include "common/security/tls_identity.h"
#include "grpcpp/channel.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

class Membership {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    std::string enroll;       // HOST:PORT; empty: the port after the coordinator's
    std::string state_dir;
    std::string node;
    std::string join_token_file;  // empty: TERCIO_JOIN_TOKEN, if that is set
    TlsFiles tls;
    std::vector<std::string> hosts;  // names and addresses by which other nodes reach this one
    std::optional<TrainerUser> trainer_user;  // reads copies of the files; nullopt: no copies
  };

  // Whether there are files, or a way to obtain them: without either there is no TLS.
  static bool HasMeans(const Options& options);

  // Enrols if there is a token and no valid certificate of the token's authority, retrying while
  // there is no answer, until `stop` returns true. UNAUTHENTICATED: the token is refused, or the
  // server is not the token's; FAILED_PRECONDITION: unusable files; CANCELLED.
  static absl::StatusOr<std::unique_ptr<Membership>> Join(Options options,
                                                          const std::function<bool()>& stop);
  ~Membership();

  const std::shared_ptr<TlsIdentity>& identity() const { return identity_; }  // null: no TLS
  // The files for trainers: those of the identity, or copies that their user can read.
  TlsFiles TrainerFiles() const;
  // Starts renewing, if the files are this object's own, and keeping the trainers' copies up to
  // date. Called once.
  void KeepUp(std::shared_ptr<grpc::Channel> coordinator);

 private:
  explicit Membership(Options options) : options_(std::move(options)) {}
  std::string Directory() const { return options_.state_dir + "/access"; }
  absl::Status Enrol(const JoinToken& token, const std::function<bool()>& stop);
  bool IsDue() const;
  absl::Status CopyForTrainers();
  std::chrono::milliseconds RenewIfDue(const std::shared_ptr<grpc::Channel>& coordinator);
  void Run(const std::shared_ptr<grpc::Channel>& coordinator);

  const Options options_;
  std::shared_ptr<TlsIdentity> identity_;
  bool own_ = false;     // the files are in Directory()
  bool named_ = false;   // the certificate was requested with the present hosts; of the thread
  int64_t copied_ = -1;  // version of the trainers' copies; of the thread, after Join

  Mutex mutex_;
  ConditionVariable stopped_;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread renewer_;
};

}  // namespace tercio::agent
