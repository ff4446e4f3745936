// SHA-256 (FIPS 180-4) by OpenSSL.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tercio {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::string_view bytes);
  // 64 lower-case hexadecimal digits. Called once, last.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view bytes);

}  // namespace tercio
