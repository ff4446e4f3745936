#include "serve/api_keys.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/log.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace tercio::serve {
namespace {

constexpr size_t kLeastKeyBytes = 16;
constexpr std::string_view kScheme = "Bearer ";

bool IsKey(std::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return false;
  }
  return text.size() >= kLeastKeyBytes;
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Load(const std::string& path) {
  TERCIO_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  struct stat facts = {};
  if (stat(path.c_str(), &facts) == 0 && (facts.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    LogWarning(absl::StrCat("--api-key-file ", path,
                            " can be read by other users of this machine; chmod 600 it"));
  }
  ApiKeys keys;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    const absl::string_view key = absl::StripAsciiWhitespace(line);
    if (key.empty() || key.front() == '#') continue;
    if (!IsKey(std::string_view(key.data(), key.size()))) {
      return absl::InvalidArgumentError(absl::StrCat("--api-key-file ", path, ":", number,
                                                     ": a key has at least ", kLeastKeyBytes,
                                                     " characters and no blanks; make one with "
                                                     "`openssl rand -hex 32`"));
    }
    keys.digests_.push_back(Sha256Hex(std::string_view(key.data(), key.size())));
  }
  if (keys.digests_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--api-key-file ", path, " has no key; write one on each line"));
  }
  return keys;
}

bool ApiKeys::Allows(std::string_view authorization) const {
  if (authorization.substr(0, kScheme.size()) != kScheme) return false;
  const std::string digest = Sha256Hex(authorization.substr(kScheme.size()));
  int matches = 0;
  // All keys are compared, so that the time tells nothing about them.
  for (const std::string& key : digests_) {
    matches += CRYPTO_memcmp(key.data(), digest.data(), key.size()) == 0 ? 1 : 0;
  }
  return matches > 0;
}

}  // namespace tercio::serve
