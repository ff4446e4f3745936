#include "common/security/enrolment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/security/certificate.h"
#include "common/security/channel.h"
#include "common/security/tls_diagnosis.h"
#include "common/status_macros.h"
#include "grpcpp/client_context.h"
#include "proto/tercio/v1/access_service.grpc.pb.h"

namespace tercio {
namespace {

constexpr int kPrivate = 0600;
constexpr int kDirectoryMode = 0700;
// The coordinator answers at once; a person or a boot is waiting.
constexpr std::chrono::seconds kPatience{10};
constexpr size_t kReserveBytes = 64 << 10;  // more than the files take
// Two thirds of its life leave time for many tries.
constexpr double kRenewalShare = 1.0 / 3;

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
}

// Creates the directory private, and fixes the mode of an existing one.
absl::Status MakePrivateDirectory(const std::string& path) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(path));
  if (chmod(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
  return FileError(errno, "cannot change the mode of", path);
}

// The new certificate must be usable before it replaces the old one.
absl::Status Keep(const v1::Certificate& issued, const std::string& key,
                  const std::string& directory) {
  // The pair is checked before anything is replaced.
  TERCIO_RETURN_IF_ERROR(CheckKeyBelongs(issued.certificate(), key));
  TERCIO_RETURN_IF_ERROR(ReadCertificate(issued.authority()).status());
  const TlsFiles files = EnrolledFiles(directory);
  // The certificate comes last: with it the directory counts as enrolled (IsEnrolled).
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(files.key, key, kPrivate));
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(files.authority, issued.authority(), kPrivate));
  return WriteFileDurably(files.certificate, issued.certificate(), kPrivate);
}

}  // namespace

absl::Status Enrol(const EnrolmentRequest& request, const std::string& directory) {
  // The fingerprint in the token proves the server before the secret is sent to it.
  TERCIO_ASSIGN_OR_RETURN(const std::string authority,
                          FetchAuthority(request.address, request.token.fingerprint));
  // The next call spends the token, so a full or unwritable disk must be detected before.
  TERCIO_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  const std::string reserve = directory + "/reserve";
  // The reserve proves that there is room, and keeps it until the answer.
  TERCIO_RETURN_IF_ERROR(WriteFileDurably(reserve, std::string(kReserveBytes, ' '), kPrivate));
  absl::Cleanup room = [&reserve] { unlink(reserve.c_str()); };
  // The key never leaves this machine; the request contains its public half.
  const std::string key = MakeKey();
  v1::EnrollRequest message;
  TERCIO_ASSIGN_OR_RETURN(*message.mutable_request(),
                          MakeCertificateRequest(key, request.name, request.hosts));
  message.set_token(request.token.secret);
  message.set_name(request.name);
  const auto stub = v1::EnrollService::NewStub(OpenAnonymousChannel(request.address, authority));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Certificate issued;
  const grpc::Status status = stub->Enroll(&context, message, &issued);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    // A handshake that failed has a reason that gRPC does not tell.
    TERCIO_RETURN_IF_ERROR(DiagnoseServer(request.address, authority));
    return absl::UnavailableError(
        absl::StrCat("cannot enrol at ", request.address, ": ", status.error_message()));
  }
  TERCIO_RETURN_IF_ERROR(FromGrpc(status));
  // The room is given back just before it is needed.
  std::move(room).Invoke();
  return Keep(issued, key, directory);
}

absl::Status RenewCertificate(const std::shared_ptr<grpc::Channel>& channel,
                              const std::string& directory, const std::vector<std::string>& hosts) {
  TERCIO_ASSIGN_OR_RETURN(const std::string key, ReadFile(EnrolledFiles(directory).key));
  v1::RenewRequest message;
  // The name is that of the present certificate; the coordinator ignores any other.
  TERCIO_ASSIGN_OR_RETURN(*message.mutable_request(), MakeCertificateRequest(key, "", hosts));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Certificate issued;
  TERCIO_RETURN_IF_ERROR(
      FromGrpc(v1::AccessService::NewStub(channel)->Renew(&context, message, &issued)));
  return Keep(issued, key, directory);
}

bool RenewalIsDue(const CertificateFacts& certificate, absl::Time now) {
  const absl::Duration life = certificate.not_after - certificate.not_before;
  return certificate.not_after - now <= kRenewalShare * life;
}

TlsFiles EnrolledFiles(const std::string& directory) {
  return {directory + "/certificate.pem", directory + "/key.pem", directory + "/authority.pem"};
}

bool IsEnrolled(const std::string& directory) {
  return PathExists(EnrolledFiles(directory).certificate);
}

absl::StatusOr<std::string> EnrolmentAddress(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(coordinator.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", coordinator, " is not HOST:PORT"));
  }
  // The default port of enrolment follows that of the services.
  return absl::StrCat(coordinator.substr(0, colon), ":", port + 1);
}

}  // namespace tercio
