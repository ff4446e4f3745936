#include "coordinator/access/authority.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/file.h"
#include "common/security/channel.h"
#include "common/status_macros.h"

namespace tercio::coordinator {
namespace {

// Keys are for the coordinator's user alone.
constexpr int kPrivate = 0600;
// RFC 5280 allows 20 bytes; 16 random ones never meet.
constexpr int kSerialBytes = 16;
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 3650);
constexpr absl::Duration kCoordinatorLife = absl::Hours(24 * 90);
// Machines whose clocks are slow accept a new certificate, too.
constexpr absl::Duration kClockSkew = absl::Minutes(5);
// A short life, as in tests, is not eaten up by the allowance for clocks.
constexpr int kLeastLifePerSkew = 10;
// 112 bits are the strength of RSA with 2048, the least that Debian's OpenSSL accepts by default.
constexpr int kLeastSecurityBits = 112;
constexpr int kLeastRsaBits = 2048;
// Larger keys make every handshake slow, which a stranger could use.
constexpr int kMostRsaBits = 8192;

absl::Status Failed(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", TakeOpenSslError()));
}

struct Extension {
  int kind;
  std::string value;
};

// Version, serial, times, subject: what authority and others have alike.
CertificatePointer Blank(const std::string& name, absl::Time from, absl::Time to) {
  CertificatePointer certificate(X509_new());
  // Extensions exist in version 3 only.
  X509_set_version(certificate.get(), X509_VERSION_3);
  std::array<unsigned char, kSerialBytes> serial;
  TERCIO_CHECK_EQ(RAND_bytes(serial.data(), serial.size()), 1);
  serial[0] = static_cast<unsigned char>((serial[0] & 0x3f) | 0x40);  // positive, always as long
  BIGNUM* number = BN_bin2bn(serial.data(), serial.size(), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(from));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(to));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  return certificate;
}

absl::Status AddExtensions(X509* certificate, X509* issuer,
                           const std::vector<Extension>& extensions) {
  X509V3_CTX context;
  // The issuer is needed for the identifier of its key.
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  for (const Extension& entry : extensions) {
    X509_EXTENSION* extension =
        X509V3_EXT_conf_nid(nullptr, &context, entry.kind, entry.value.c_str());
    if (extension == nullptr) return Failed("cannot create a certificate extension");
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestPointer> ReadRequest(const std::string& pem) {
  RequestPointer request(PEM_read_bio_X509_REQ(ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  if (request != nullptr) return request;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read the certificate request: ", TakeOpenSslError()));
}

// Accepts kinds and sizes that TLS 1.3 takes and whose signatures are cheap to check.
bool IsGood(EVP_PKEY* key) {
  const int bits = EVP_PKEY_get_bits(key);
  switch (EVP_PKEY_get_base_id(key)) {
    case EVP_PKEY_EC: {
      char curve[32] = "";  // stays empty where the key describes one of its own
      return EVP_PKEY_get_group_name(key, curve, sizeof(curve), nullptr) == 1 &&
             EVP_PKEY_get_security_bits(key) >= kLeastSecurityBits;
    }
    case EVP_PKEY_RSA:
      return bits >= kLeastRsaBits && bits <= kMostRsaBits;
    default:
      return EVP_PKEY_get_base_id(key) == EVP_PKEY_ED25519;
  }
}

// Checks that the key is acceptable, and that the sender has it.
absl::Status CheckRequest(X509_REQ* request) {
  EVP_PKEY* key = X509_REQ_get0_pubkey(request);
  const bool good = key != nullptr && IsGood(key);
  const bool own = good && X509_REQ_verify(request, key) == 1;
  // A failed check leaves errors in OpenSSL's queue, which a later message would show.
  ERR_clear_error();
  if (own) return absl::OkStatus();
  return absl::InvalidArgumentError(
      good ? "the certificate request is not signed with its own key"
           : "the key of the certificate request has an unsupported type or size; use EC P-256");
}

absl::StatusOr<std::string> MakeAuthority(const std::string& key, absl::Time now) {
  const KeyPointer own(PEM_read_bio_PrivateKey(ReaderOf(key).get(), nullptr, nullptr, nullptr));
  std::array<unsigned char, 4> mark;
  TERCIO_CHECK_EQ(RAND_bytes(mark.data(), mark.size()), 1);
  // Authorities of two clusters are told apart by the mark.
  std::string name = "Tercio authority ";
  for (const unsigned char byte : mark) absl::StrAppend(&name, absl::Hex(byte, absl::kZeroPad2));
  // The authority is valid no later than what it signs, whatever the clocks of others show.
  const CertificatePointer certificate = Blank(name, now - kClockSkew, now + kAuthorityLife);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  X509_set_pubkey(certificate.get(), own.get());
  TERCIO_RETURN_IF_ERROR(AddExtensions(certificate.get(), certificate.get(),
                                       // The path length forbids it to make further authorities.
                                       {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                        {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                        {NID_subject_key_identifier, "hash"}}));
  if (X509_sign(certificate.get(), own.get(), EVP_sha256()) == 0) return Failed("cannot sign");
  return PemOf(certificate.get());
}

}  // namespace

TlsFiles Authority::CoordinatorFiles(const std::string& directory) {
  return {directory + "/coordinator.pem", directory + "/coordinator.key",
          directory + "/authority.pem"};
}

absl::Status Authority::Create(const std::string& directory, const std::vector<std::string>& hosts,
                               absl::Time now) {
  // The directory is made private at once: no moment exists in which others could enter.
  if (mkdir(directory.c_str(), 0700) != 0) {
    if (errno != EEXIST) return FileError(errno, "cannot create", directory);
    return absl::AlreadyExistsError(absl::StrCat(directory, " already exists"));
  }
  const std::string key = MakeKey();
  TERCIO_ASSIGN_OR_RETURN(const std::string pem, MakeAuthority(key, now));
  // Each file is durable before the next, so that a certificate without its key cannot remain.
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(directory + "/authority.key", key, kPrivate));
  const std::string own = MakeKey();
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(directory + "/coordinator.key", own, kPrivate));
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(directory + "/authority.pem", pem, kPrivate));
  TERCIO_ASSIGN_OR_RETURN(const auto authority, Open(directory));
  TERCIO_ASSIGN_OR_RETURN(const std::string request,
                          MakeCertificateRequest(own, kCoordinatorRole, {}));
  TERCIO_ASSIGN_OR_RETURN(const IssuedCertificate issued,
                          authority->Issue(request, {kCoordinatorRole, kCoordinatorRole, hosts},
                                           now, kCoordinatorLife));
  // The authority follows, so that a client that knows its fingerprint only can check it.
  return WriteFileDurably(directory + "/coordinator.pem", issued.pem + pem, kPrivate);
}

absl::StatusOr<std::unique_ptr<Authority>> Authority::Open(const std::string& directory) {
  std::unique_ptr<Authority> authority(new Authority);
  authority->directory_ = directory;
  const TlsFiles files = {directory + "/authority.pem", directory + "/authority.key",
                          directory + "/authority.pem"};
  // The same checks as of every other pair.
  TERCIO_ASSIGN_OR_RETURN(const auto identity,
                          TlsIdentity::Load(files, TlsIdentity::KeyFile::kOwn));
  const auto material = identity->Current();
  authority->pem_ = material->certificate;
  authority->facts_ = material->facts;
  authority->certificate_.reset(
      PEM_read_bio_X509(ReaderOf(material->certificate).get(), nullptr, nullptr, nullptr));
  authority->key_.reset(
      PEM_read_bio_PrivateKey(ReaderOf(material->key).get(), nullptr, nullptr, nullptr));
  return authority;
}

absl::StatusOr<IssuedCertificate> Authority::Issue(const std::string& request,
                                                   const Subject& subject, absl::Time now,
                                                   absl::Duration life) const {
  TERCIO_ASSIGN_OR_RETURN(const RequestPointer parsed, ReadRequest(request));
  TERCIO_RETURN_IF_ERROR(CheckRequest(parsed.get()));
  // The role is a URI among the names: other software ignores it, and it cannot be a host.
  std::string names = absl::StrCat("URI:", kRolePrefix, subject.role);
  for (const std::string& name : subject.names) {
    TERCIO_ASSIGN_OR_RETURN(const std::string entry, AlternativeName(name));
    absl::StrAppend(&names, ",", entry);
  }
  // People need not be servers; agents serve copies of snapshots to one another.
  const bool serves = subject.role == kCoordinatorRole || subject.role == kAgentRole;
  const CertificatePointer certificate =
      Blank(subject.name, now - std::min(kClockSkew, life / kLeastLifePerSkew),
            // A certificate that outlives its authority would
            // fail all at once, far from its own date.
            std::min(now + life, facts_.not_after));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  X509_set_pubkey(certificate.get(), X509_REQ_get0_pubkey(parsed.get()));
  TERCIO_RETURN_IF_ERROR(
      AddExtensions(certificate.get(), certificate_.get(),
                    // Nothing that is issued may issue.
                    {{NID_basic_constraints, "critical,CA:FALSE"},
                     {NID_key_usage, "critical,digitalSignature"},
                     {NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth"},
                     {NID_authority_key_identifier, "keyid"},
                     {NID_subject_alt_name, names}}));
  if (X509_sign(certificate.get(), key_.get(), EVP_sha256()) == 0) return Failed("cannot sign");
  IssuedCertificate issued;
  issued.pem = PemOf(certificate.get());
  TERCIO_ASSIGN_OR_RETURN(issued.facts, ReadCertificate(issued.pem));
  // The result is read back: a name with unusual characters could be read as another one.
  if (issued.facts.name == subject.name && issued.facts.role == subject.role) return issued;
  return absl::InvalidArgumentError(absl::StrCat("no certificate can be issued for the name \"",
                                                 absl::CEscape(subject.name), "\""));
}

absl::Status Authority::RenewCoordinator(absl::Time now) const {
  // The key stays: only the dates of the certificate have run out.
  TERCIO_ASSIGN_OR_RETURN(const std::string key, ReadFile(directory_ + "/coordinator.key"));
  TERCIO_ASSIGN_OR_RETURN(const std::string old, ReadFile(directory_ + "/coordinator.pem"));
  TERCIO_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(old));
  TERCIO_ASSIGN_OR_RETURN(const std::string request,
                          MakeCertificateRequest(key, kCoordinatorRole, {}));
  TERCIO_ASSIGN_OR_RETURN(
      const IssuedCertificate issued,
      Issue(request, {kCoordinatorRole, kCoordinatorRole, facts.names}, now, kCoordinatorLife));
  return WriteFileDurably(directory_ + "/coordinator.pem", issued.pem + pem_, kPrivate);
}

absl::StatusOr<std::vector<std::string>> NamesOfRequest(const std::string& request) {
  TERCIO_ASSIGN_OR_RETURN(const RequestPointer parsed, ReadRequest(request));
  STACK_OF(X509_EXTENSION)* extensions = X509_REQ_get_extensions(parsed.get());
  // Requests of people have no such extension, since nobody connects to them.
  const NamesPointer names(static_cast<GENERAL_NAMES*>(
      X509V3_get_d2i(extensions, NID_subject_alt_name, nullptr, nullptr)));
  sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
  return ReadAlternativeNames(names.get()).hosts;
}

}  // namespace tercio::coordinator
