// The cluster's authority: a key and a certificate that signs those of coordinator, agents and
// people. Its files lie in one directory, 0700, each 0600:
//   authority.pem, authority.key       of the authority itself
//   coordinator.pem, coordinator.key   what the coordinator shows, followed by authority.pem, so
//   that
//                                      who has only the authority's fingerprint can look at it
//   access.sqlite                      tokens and certificates (access_store.h)
//
// Threads: const methods from any thread. Errors: FAILED_PRECONDITION (files), INVALID_ARGUMENT (a
// request that cannot be read, whose key is not acceptable, or a name that no certificate can
// have).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/certificate.h"
#include "common/security/openssl_pointers.h"
#include "common/security/tls_identity.h"

namespace tercio::coordinator {

// The subject of a certificate.
struct Subject {
  std::string name;
  std::string role;
  std::vector<std::string> names;  // DNS names, IP addresses
};

struct IssuedCertificate {
  std::string pem;
  CertificateFacts facts;
};

class Authority {
 public:
  // A new one in `directory`, which must not exist, and a certificate of the coordinator for
  // `hosts`. ALREADY_EXISTS.
  static absl::Status Create(const std::string& directory, const std::vector<std::string>& hosts,
                             absl::Time now);
  static absl::StatusOr<std::unique_ptr<Authority>> Open(const std::string& directory);

  // A certificate for the key of the request (PKCS #10, PEM), from `now` on, for `life`. Only the
  // key of the request is used.
  absl::StatusOr<IssuedCertificate> Issue(const std::string& request, const Subject& subject,
                                          absl::Time now, absl::Duration life) const;
  // A new certificate of the coordinator, for its own key and the names that it has.
  absl::Status RenewCoordinator(absl::Time now) const;

  const std::string& certificate() const { return pem_; }
  const std::string& fingerprint() const { return facts_.fingerprint; }
  static TlsFiles CoordinatorFiles(const std::string& directory);

 private:
  Authority() = default;

  std::string directory_;
  std::string pem_;
  CertificateFacts facts_;
  CertificatePointer certificate_;
  KeyPointer key_;
};

// DNS names and IP addresses that a request asks for.
absl::StatusOr<std::vector<std::string>> NamesOfRequest(const std::string& request);

}  // namespace tercio::coordinator
