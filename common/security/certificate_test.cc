// Certificates that were made to deceive.
#include "common/security/certificate.h"

#include <openssl/ec.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::HasSubstr;

// A self-signed certificate with this common name, of this type of text, and these alternative
// names.
std::string Certificate(const std::string& name, int type, const std::string& names = "") {
  const KeyPointer key(EVP_EC_gen("P-256"));
  const CertificatePointer certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", type,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 1000);
  if (!names.empty()) {
    X509_EXTENSION* extension =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    X509_add_ext(certificate.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_set_pubkey(certificate.get(), key.get());
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  return PemOf(certificate.get());
}

TEST(CertificateTest, ANameIsWhatItSays) {
  EXPECT_EQ(ReadCertificate(Certificate("ann", MBSTRING_UTF8))->name, "ann");
  EXPECT_EQ(ReadCertificate(Certificate(std::string("\0a\0n\0n", 6), V_ASN1_BMPSTRING))->name,
            "ann");
  EXPECT_EQ(ReadCertificate(Certificate("", MBSTRING_UTF8))->name, "");
  EXPECT_EQ(ReadCertificate(Certificate("\xc3\xa4nn", MBSTRING_UTF8))->name, "\xc3\xa4nn");
}

TEST(CertificateTest, ANameThatCouldBeTakenForAnotherIsNone) {
  for (const std::string& name :
       {std::string("ann\0.example", 12), std::string("ann\nbob"), std::string("ann\x1b[2J")}) {
    const auto read = ReadCertificate(Certificate(name, V_ASN1_UTF8STRING));
    EXPECT_TRUE(absl::IsInvalidArgument(read.status()));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("control characters"));
  }
}

TEST(CertificateTest, ARoleIsOneOrNone) {
  const auto role = [](const std::string& names) {
    return ReadCertificate(Certificate("ann", MBSTRING_UTF8, names))->role;
  };
  EXPECT_EQ(role("DNS:a.example"), "");
  EXPECT_EQ(role("DNS:a.example,URI:tercio:role/viewer"), "viewer");
  // It is not the first of several, nor treated as if there were none.
  EXPECT_EQ(role("URI:tercio:role/viewer,URI:tercio:role/admin"), "unclear");
  EXPECT_EQ(role("URI:tercio:role/"), "unclear");
}

}  // namespace
}  // namespace tercio
