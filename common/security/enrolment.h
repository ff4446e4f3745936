// Obtaining a certificate: with a token the first time, with the current certificate from then on.
// The files are in one directory, 0700, each 0600: key.pem, certificate.pem, authority.pem.
//
// A token is sent only to a server with a certificate of the authority whose fingerprint the token
// carries, over TLS 1.3, and to no other.
//
// Threads: any; each call blocks for at most about 10 s.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/join_token.h"
#include "common/security/tls_identity.h"
#include "grpcpp/channel.h"

namespace tercio {

struct EnrolmentRequest {
  std::string address;  // HOST:PORT of the enrolment port
  JoinToken token;
  std::string name;                // for an agent its node; empty: as in the token
  std::vector<std::string> hosts;  // for an agent: names and addresses at which others reach it
};

// Creates a key and obtains a certificate for it in `directory`. UNAUTHENTICATED: the server is not
// the token's (nothing was sent), or does not accept the token; UNAVAILABLE: no answer;
// RESOURCE_EXHAUSTED: too many recent requests, or the disk is full. The token is not spent if the
// files could not be written.
absl::Status Enrol(const EnrolmentRequest& request, const std::string& directory);

// A new certificate for the key in `directory`, by the service behind `channel`.
absl::Status RenewCertificate(const std::shared_ptr<grpc::Channel>& channel,
                              const std::string& directory, const std::vector<std::string>& hosts);

// Whether a third of the certificate's life or less is left.
bool RenewalIsDue(const CertificateFacts& certificate, absl::Time now);

TlsFiles EnrolledFiles(const std::string& directory);
bool IsEnrolled(const std::string& directory);

// The default port for enrolment: the one after the coordinator's.
absl::StatusOr<std::string> EnrolmentAddress(const std::string& coordinator);

}  // namespace tercio
