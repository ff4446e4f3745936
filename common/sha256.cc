#include "common/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace tercio {

struct Sha256::Context {
  // OpenSSL's context may not be copied, and so is hidden here.
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  // A digest that cannot be made is a fault of the installation.
  TERCIO_CHECK_EQ(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  // Every result is checked: a digest over less than all bytes would look right.
  TERCIO_CHECK_EQ(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()), 1);
}

std::string Sha256::HexDigest() {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  TERCIO_CHECK_EQ(EVP_DigestFinal_ex(context_->digest, raw, &size), 1);
  std::string hex;
  // Lower case is what other tools print.
  for (unsigned int i = 0; i < size; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[raw[i] >> 4];
    hex += kDigits[raw[i] & 15];
  }
  return hex;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 sha;
  sha.Update(bytes);
  return sha.HexDigest();
}

}  // namespace tercio
