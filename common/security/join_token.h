// Replaces a certificate until a client has one: a secret, and the fingerprint of the authority to
// which alone it may be sent. As text: tercio1.SECRET.FINGERPRINT, both hexadecimal.
//
// Never logged, and no part of a message.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tercio {

struct JoinToken {
  std::string secret;       // 32 digits: 128 random bits
  std::string fingerprint;  // 64 digits: SHA-256 of the authority's certificate (DER)
};

std::string FormatJoinToken(const JoinToken& token);
// Surrounding spaces are ignored. INVALID_ARGUMENT, without the text.
absl::StatusOr<JoinToken> ParseJoinToken(const std::string& text);

}  // namespace tercio
