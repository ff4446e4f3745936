#include "common/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace tercio {

struct Sha256::Context {
  EVP_MD_CTX* digest = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(digest); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  TERCIO_CHECK_EQ(EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  TERCIO_CHECK_EQ(EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size()), 1);
}

std::string Sha256::HexDigest() {
  unsigned char raw[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  TERCIO_CHECK_EQ(EVP_DigestFinal_ex(context_->digest, raw, &size), 1);
  std::string hex;
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
