// Owners of OpenSSL's objects, its texts in memory, and its last error in words.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

namespace tercio {

template <auto kFree>
struct OpenSslFreer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using BioPointer = std::unique_ptr<BIO, OpenSslFreer<BIO_free_all>>;
using CertificatePointer = std::unique_ptr<X509, OpenSslFreer<X509_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, OpenSslFreer<EVP_PKEY_free>>;
using RequestPointer = std::unique_ptr<X509_REQ, OpenSslFreer<X509_REQ_free>>;
using NamesPointer = std::unique_ptr<GENERAL_NAMES, OpenSslFreer<GENERAL_NAMES_free>>;

// The text must outlive the reader.
inline BioPointer ReaderOf(std::string_view text) {
  return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The text written to a BIO_s_mem().
inline std::string TextOf(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);  // NOLINT: OpenSSL's type
  return std::string(data, static_cast<size_t>(size));
}

// Returns the last error, and clears it.
inline std::string TakeOpenSslError() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "not PEM" : reason;
}

}  // namespace tercio
