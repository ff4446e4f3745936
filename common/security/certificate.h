// Certificates, keys and requests for certificates, as PEM text: what they say, and new ones.
//
// The holder of a certificate is its common name. What the holder may do is its role, a URI among
// the alternative names: tercio:role/ROLE. Both are the authority's words, never the request's.
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
  std::string role;                // empty: it says none; of several, "unclear"
  std::string serial;              // lower-case hexadecimal digits
  std::string fingerprint;         // SHA-256 of its bytes (DER), lower-case hexadecimal digits
  std::vector<std::string> names;  // DNS names and IP addresses that it is for
  absl::Time not_before;
  absl::Time not_after;
};

// Reads the first certificate in the text. INVALID_ARGUMENT also for a common name that could be
// taken for another: one with control characters.
absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view pem);

// As PEM text.
std::string PemOf(X509* certificate);

// A new key (EC, P-256), PKCS #8.
std::string MakeKey();

// A request (PKCS #10) of the key's owner, with DNS names or IP addresses that the certificate
// should be for.
absl::StatusOr<std::string> MakeCertificateRequest(const std::string& key, const std::string& name,
                                                   const std::vector<std::string>& names);

// Whether the key is that of the first certificate.
absl::Status CheckKeyBelongs(std::string_view certificate, std::string_view key);

// "IP:" or "DNS:" before a name, as OpenSSL takes alternative names. INVALID_ARGUMENT for what can
// be neither (empty, too long, other characters than those of host names).
absl::StatusOr<std::string> AlternativeName(const std::string& name);

// What a certificate, or a request for one, names among its alternatives.
struct AlternativeNames {
  std::vector<std::string> hosts;  // DNS names and IP addresses
  std::vector<std::string> uris;
};
AlternativeNames ReadAlternativeNames(const GENERAL_NAMES* names);

}  // namespace tercio
