// `tercio login`: exchanges a token for a certificate, and shows the identity in use.
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/login_files.h"
#include "cli/output.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/security/certificate.h"
#include "common/security/enrolment.h"
#include "common/security/join_token.h"
#include "common/status_macros.h"
#include "proto/tercio/v1/access_service.grpc.pb.h"

namespace tercio::cli {
namespace {

// The token from the command line, a file ("-": the standard input) or TERCIO_TOKEN.
absl::StatusOr<JoinToken> ReadToken(const LoginOptions& options) {
  // A token among the arguments was meant for this call; a file and the environment follow.
  std::string text = options.token;
  if (text.empty() && options.token_file == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else if (text.empty() && !options.token_file.empty()) {
    TERCIO_ASSIGN_OR_RETURN(text, ReadFile(options.token_file));
  } else if (const char* variable = std::getenv("TERCIO_TOKEN"); text.empty() && variable) {
    text = variable;
  }
  // An empty variable counts as none.
  if (text.empty()) {
    return absl::InvalidArgumentError(
        "a token is required: give --token-file FILE (- reads it from standard input), "
        "TERCIO_TOKEN "
        "or --token; `tercio-coordinator token` creates one");
  }
  return ParseJoinToken(text);
}

absl::Status PrintWho(const GlobalOptions& options, Client& client) {
  grpc::ClientContext context;
  v1::WhoAmIResponse who;
  TERCIO_RETURN_IF_ERROR(
      // The coordinator itself says who calls, so that what is shown is what it believes.
      CallStatus(v1::AccessService::NewStub(client.channel())->WhoAmI(&context, {}, &who), client));
  std::string expires;
  // Without TLS there is no certificate that could expire.
  if (client.tls().given()) {
    TERCIO_ASSIGN_OR_RETURN(const std::string pem, ReadFile(client.tls().certificate));
    TERCIO_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(pem));
    expires = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", facts.not_after, absl::UTCTimeZone());
  }
  if (options.format() != Output::kTable) {
    Json json = {{"coordinator", client.address()},
                 {"name", who.name()},
                 {"role", who.role()},
                 {"expires", expires}};
    // Programs get null for what does not exist.
    for (const char* key : {"name", "expires"}) {
      if (json[key] == "") json[key] = nullptr;
    }
    PrintJson(json, options.format());
  } else if (who.name().empty()) {
    std::cout << client.address() << " does not require authentication: role " << who.role()
              << "\n";
  } else {
    std::cout << who.name() << ", role " << who.role() << " at " << client.address() << ", until "
              << expires << "\n";
  }
  return absl::OkStatus();
}

absl::Status LogIn(const LoginOptions& options) {
  if (options.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "--coordinator HOST:PORT is required: the coordinator to log in to");
  }
  EnrolmentRequest request;
  TERCIO_ASSIGN_OR_RETURN(request.token, ReadToken(options));
  request.address = options.enroll;
  // By default the port is the one after the coordinator's.
  if (request.address.empty()) {
    TERCIO_ASSIGN_OR_RETURN(request.address, EnrolmentAddress(options.coordinator));
  }
  TERCIO_RETURN_IF_ERROR(Enrol(request, LoginDirectory(options.coordinator)));
  // The address is remembered only when the login has succeeded.
  return WriteFileDurably(ConfigDirectory() + "/coordinator", options.coordinator + "\n", 0600);
}

absl::Status LogInAndSay(const LoginOptions& options) {
  if (!options.check) TERCIO_RETURN_IF_ERROR(LogIn(options));
  // The new certificate is used at once, which proves that it works.
  TERCIO_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
  return PrintWho(options, *client);
}

}  // namespace

int Login(const LoginOptions& options) {
  const absl::Status status = LogInAndSay(options);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace tercio::cli
