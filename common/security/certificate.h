// Reads and creates certificates, keys and requests for certificates, as PEM text.
//
// The holder of a certificate is its common name. What the holder may do is its role, a URI among
// the alternative names: tercio:role/ROLE. Both are set by the authority, never by the request.
//
// Threads: any. Errors: INVALID_ARGUMENT, with what is wrong; never with the text of a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/openssl_pointers.h"

namespace tercio {

inline constexpr char kRolePrefix[] = "tercio:role/";

struct CertificateFacts {
  std::string name;                // common name
  std::string role;                // empty: it has none; "unclear" if it has several
  std::string serial;              // lower-case hexadecimal digits
  std::string fingerprint;         // SHA-256 of its bytes (DER), lower-case hexadecimal digits
  std::vector<std::string> names;  // DNS names and IP addresses that it is for
  absl::Time not_before;
  absl::Time not_after;
};

// Reads the first certificate in the text. INVALID_ARGUMENT also for a common name that could be
// taken for another: one with control characters.
absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view pem);

// The certificate as PEM text.
std::string PemOf(X509* certificate);

// A new key (EC, P-256), PKCS #8.
std::string MakeKey();

// A request (PKCS #10) of the key's owner, with DNS names or IP addresses that the certificate
// should be for.
absl::StatusOr<std::string> MakeCertificateRequest(const std::string& key, const std::string& name,
                                                   const std::vector<std::string>& names);

// OK if the key is that of the first certificate.
absl::Status CheckKeyBelongs(std::string_view certificate, std::string_view key);

// The name with "IP:" or "DNS:" before it, the form in which OpenSSL takes alternative names.
// INVALID_ARGUMENT for a name that can be neither (empty, too long, characters that host names do
// not have).
absl::StatusOr<std::string> AlternativeName(const std::string& name);

// The alternative names in a certificate, or in a request for one.
struct AlternativeNames {
  std::vector<std::string> hosts;  // DNS names and IP addresses
  std::vector<std::string> uris;
};
AlternativeNames ReadAlternativeNames(const GENERAL_NAMES* names);

}  // namespace tercio
