#include "common/security/join_token.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tercio {
namespace {

// The version is part of the token, so that another form can follow.
constexpr std::string_view kFormat = "tercio1";
// 16 bytes of secret, and 32 of SHA-256, as hexadecimal digits.
constexpr size_t kSecretDigits = 32;
constexpr size_t kFingerprintDigits = 64;

bool IsHex(const std::string& text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           // Only lower case is written, and nothing else is accepted.
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string FormatJoinToken(const JoinToken& token) {
  return absl::StrCat(std::string(kFormat), ".", token.secret, ".", token.fingerprint);
}

absl::StatusOr<JoinToken> ParseJoinToken(const std::string& text) {
  // Tokens are copied from terminals and files, which add line breaks.
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const std::vector<std::string> parts = absl::StrSplit(trimmed, '.');
  if (parts.size() != 3 || parts[0] != kFormat || !IsHex(parts[1], kSecretDigits) ||
      !IsHex(parts[2], kFingerprintDigits)) {
    return absl::InvalidArgumentError(
        "not a token: expected tercio1.SECRET.FINGERPRINT, as `tercio-coordinator token` "
        "prints it");
  }
  return JoinToken{parts[1], parts[2]};
}

}  // namespace tercio
