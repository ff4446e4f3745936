#include "common/security/certificate.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/security/openssl_pointers.h"
#include "common/status_macros.h"

namespace tercio {
namespace {

constexpr size_t kLongestName = 253;  // RFC 1035
// The role of a certificate that names several roles, or an empty one; no role has this name.
constexpr char kUnclearRole[] = "unclear";

absl::StatusOr<CertificatePointer> Certificate(std::string_view pem) {
  CertificatePointer certificate(PEM_read_bio_X509(ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(absl::StrCat("contains no certificate: ", TakeOpenSslError()));
}

// Refuses keys with a passphrase, for which OpenSSL would prompt on a terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<KeyPointer> Key(std::string_view pem) {
  KeyPointer key(PEM_read_bio_PrivateKey(ReaderOf(pem).get(), nullptr, NoPassphrase, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("contains no key without a passphrase: ", TakeOpenSslError()));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  // A time that cannot be read is taken for one long past, so that nobody trusts it.
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

std::string SerialOf(const X509* certificate) {
  BIGNUM* number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr);
  char* text = BN_bn2hex(number);
  // Serial numbers are compared as text, in the case that we write.
  std::string serial = absl::AsciiStrToLower(text);
  OPENSSL_free(text);
  BN_free(number);
  return serial;
}

// A name that looks like another must not be taken for it: "ann", a zero byte and more is not ann.
absl::StatusOr<std::string> CommonName(const X509* certificate) {
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  // A certificate without a name is one of another issuer.
  if (at < 0) return std::string();
  unsigned char* text = nullptr;
  const int size =
      ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its common name is not text: ", TakeOpenSslError()));
  }
  // The length counts, not the first zero byte.
  std::string name(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  OPENSSL_free(text);
  if (std::none_of(name.begin(), name.end(), [](char c) { return absl::ascii_iscntrl(c); })) {
    return name;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("its common name \"", absl::CEscape(name), "\" has control characters"));
}

std::string_view BytesOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

// Empty if it is not one.
std::string AddressText(std::string_view bytes) {
  // Any other length is no address, whatever the certificate claims.
  if (bytes.size() != sizeof(in_addr) && bytes.size() != sizeof(in6_addr)) return "";
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6, bytes.data(), text, sizeof(text));
  return text;
}

void ReadNames(const X509* certificate, CertificateFacts& facts) {
  const NamesPointer names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  const AlternativeNames found = ReadAlternativeNames(names.get());
  facts.names = found.hosts;
  for (const std::string& uri : found.uris) {
    if (!absl::StartsWith(uri, kRolePrefix)) continue;
    const std::string role = uri.substr(sizeof(kRolePrefix) - 1);
    // Several roles are as unclear as none: which one was meant cannot be known.
    facts.role = facts.role.empty() && !role.empty() ? role : kUnclearRole;
  }
}

absl::Status AddNames(X509_REQ* request, const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    TERCIO_ASSIGN_OR_RETURN(const std::string entry, AlternativeName(name));
    absl::StrAppend(&all, all.empty() ? "" : ",", entry);
  }
  // Requests of people have no names.
  if (all.empty()) return absl::OkStatus();
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, all.c_str());
  if (extension == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a certificate cannot be issued for ", all, ": ", TakeOpenSslError()));
  }
  // OpenSSL takes the extensions as a stack, and copies them.
  STACK_OF(X509_EXTENSION)* extensions = sk_X509_EXTENSION_new_null();
  sk_X509_EXTENSION_push(extensions, extension);
  X509_REQ_add_extensions(request, extensions);
  sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
  return absl::OkStatus();
}

}  // namespace

AlternativeNames ReadAlternativeNames(const GENERAL_NAMES* names) {
  AlternativeNames found;
  // Other kinds of names have no meaning here.
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS) {
      found.hosts.emplace_back(BytesOf(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      if (std::string address = AddressText(BytesOf(name->d.iPAddress)); !address.empty()) {
        found.hosts.push_back(std::move(address));
      }
    } else if (name->type == GEN_URI) {
      found.uris.emplace_back(BytesOf(name->d.uniformResourceIdentifier));
    }
  }
  return found;
}

absl::StatusOr<CertificateFacts> ReadCertificate(std::string_view pem) {
  TERCIO_ASSIGN_OR_RETURN(const CertificatePointer certificate, Certificate(pem));
  CertificateFacts facts;
  TERCIO_ASSIGN_OR_RETURN(facts.name, CommonName(certificate.get()));
  facts.serial = SerialOf(certificate.get());
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  TERCIO_CHECK_EQ(X509_digest(certificate.get(), EVP_sha256(), digest, &size), 1);
  // The fingerprint is that of tokens: SHA-256 over the certificate as it is sent.
  facts.fingerprint =
      absl::BytesToHexString({reinterpret_cast<const char*>(digest), static_cast<size_t>(size)});
  facts.not_before = TimeOf(X509_get0_notBefore(certificate.get()));
  facts.not_after = TimeOf(X509_get0_notAfter(certificate.get()));
  ReadNames(certificate.get(), facts);
  return facts;
}

std::string PemOf(X509* certificate) {
  const BioPointer text(BIO_new(BIO_s_mem()));
  TERCIO_CHECK_EQ(PEM_write_bio_X509(text.get(), certificate), 1);
  return TextOf(text.get());
}

std::string MakeKey() {
  // P-256 is what every TLS library supports, and its handshakes are cheap.
  const KeyPointer key(EVP_EC_gen("P-256"));
  TERCIO_CHECK(key != nullptr);
  const BioPointer text(BIO_new(BIO_s_mem()));
  TERCIO_CHECK_EQ(
      // PKCS #8 is the form that all tools read.
      PEM_write_bio_PKCS8PrivateKey(text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr),
      1);
  return TextOf(text.get());
}

absl::StatusOr<std::string> MakeCertificateRequest(const std::string& key, const std::string& name,
                                                   const std::vector<std::string>& names) {
  TERCIO_ASSIGN_OR_RETURN(const KeyPointer own, Key(key));
  const RequestPointer request(X509_REQ_new());
  X509_NAME* subject = X509_REQ_get_subject_name(request.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  TERCIO_RETURN_IF_ERROR(AddNames(request.get(), names));
  if (X509_REQ_set_pubkey(request.get(), own.get()) != 1 ||
      X509_REQ_sign(request.get(), own.get(), EVP_sha256()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key cannot sign a request: ", TakeOpenSslError()));
  }
  const BioPointer text(BIO_new(BIO_s_mem()));
  TERCIO_CHECK_EQ(PEM_write_bio_X509_REQ(text.get(), request.get()), 1);
  return TextOf(text.get());
}

absl::Status CheckKeyBelongs(std::string_view certificate, std::string_view key) {
  TERCIO_ASSIGN_OR_RETURN(const CertificatePointer of, Certificate(certificate));
  TERCIO_ASSIGN_OR_RETURN(const KeyPointer own, Key(key));
  if (X509_check_private_key(of.get(), own.get()) == 1) return absl::OkStatus();
  // The mismatch is in OpenSSL's queue, and would be shown with a later error.
  ERR_clear_error();
  return absl::InvalidArgumentError("does not belong to the certificate");
}

absl::StatusOr<std::string> AlternativeName(const std::string& name) {
  unsigned char bytes[sizeof(in6_addr)];
  // An address is no host name, even where it looks like one.
  if (inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
      inet_pton(AF_INET6, name.c_str(), bytes) == 1) {
    return "IP:" + name;
  }
  bool good = !name.empty() && name.size() <= kLongestName;
  for (const char c : name)
    good = good && (absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_');
  // Underscores are no part of host names, but of names that machines have.
  if (good) return "DNS:" + name;
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CEscape(name.substr(0, 80)),
                                                 "\" is not a host name or an IP address"));
}

}  // namespace tercio
