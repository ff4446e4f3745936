#include "worker/agent/snapshots/snapshot_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/log.h"
#include "common/security/certificate.h"
#include "common/security/roles.h"
#include "common/status_macros.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_builder.h"

namespace tercio::agent {
namespace {

// gRPC's default limit of a message is 4 MiB.
constexpr size_t kChunkBytes = 1 << 20;

// One answer for all of these, so that a caller without the token learns nothing about runs.
absl::Status TakesNoPart() {
  return absl::AbortedError(
      "this agent does not take part in that attempt, or the attempt is over");
}

}  // namespace

// People have certificates of the same authority, but no business here. A certificate without a
// role comes from an authority that has no roles; on the socket of the node's own trainers there
// are no certificates.
absl::Status SnapshotServiceImpl::CheckCaller(const grpc::ServerContext& context,
                                              std::string_view call) {
  const auto found = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (found.empty()) return absl::OkStatus();
  const absl::StatusOr<CertificateFacts> facts =
      ReadCertificate({found.front().data(), found.front().size()});
  if (!facts.ok()) return absl::UnauthenticatedError(facts.status().message());
  {
    MutexLock lock(mutex_);
    if (revoked_.contains(facts->serial)) {
      LogWarning(absl::StrCat("refused: ", std::string(call), " by ", facts->name,
                              ", whose certificate ", facts->serial, " was revoked"));
      return absl::UnauthenticatedError(
          absl::StrCat("the certificate of ", facts->name, ", ", facts->serial, ", was revoked"));
    }
  }
  if (facts->role.empty() || Allows(RuleOf(call)->least, RoleNamed(facts->role))) {
    return absl::OkStatus();
  }
  LogWarning(
      absl::StrCat("refused: ", std::string(call), " by ", facts->name, ", role ", facts->role));
  return absl::PermissionDeniedError(absl::StrCat(std::string(call), " is for agents"));
}

void SnapshotServiceImpl::Revoke(const v1::RevokedCertificates& certificates) {
  MutexLock lock(mutex_);
  // The first list of a connection replaces all, since certificates that have expired are left out.
  if (!certificates.more()) revoked_.clear();
  revoked_.insert(certificates.serials().begin(), certificates.serials().end());
}

grpc::Status SnapshotServiceImpl::Put(grpc::ServerContext* context,
                                      grpc::ServerReader<v1::PutSnapshotMessage>* reader,
                                      v1::PutSnapshotResponse*) {
  if (absl::Status status = CheckCaller(*context, "SnapshotService/Put"); !status.ok()) {
    return ToGrpc(status);
  }
  return ToGrpc(Receive(*reader));
}

absl::Status SnapshotServiceImpl::Receive(grpc::ServerReader<v1::PutSnapshotMessage>& reader) {
  v1::PutSnapshotMessage message;
  if (!reader.Read(&message) || !message.has_begin()) {
    return absl::InvalidArgumentError("the first message must be begin");
  }
  if (!takes_part_(message.begin().run(), message.begin().token())) return TakesNoPart();
  TERCIO_ASSIGN_OR_RETURN(const auto incoming, store_.Begin(std::move(*message.mutable_begin())));
  while (reader.Read(&message)) {
    if (message.has_chunk()) {
      TERCIO_RETURN_IF_ERROR(incoming->Append(message.chunk().data()));
    } else if (message.has_end()) {
      return incoming->Finish(message.end());
    }
  }
  // The room of the copy is free again when `incoming` ends.
  return absl::DataLossError("the stream ended early");
}

grpc::Status SnapshotServiceImpl::Get(grpc::ServerContext* context,
                                      const v1::GetSnapshotRequest* request,
                                      grpc::ServerWriter<v1::GetSnapshotMessage>* writer) {
  if (absl::Status status = CheckCaller(*context, "SnapshotService/Get"); !status.ok()) {
    return ToGrpc(status);
  }
  if (!takes_part_(request->run(), request->token())) return ToGrpc(TakesNoPart());
  // The store may drop the copy while it is being sent; this keeps it.
  const std::shared_ptr<const SnapshotCopy> copy =
      store_.Find(request->run().job_id(), request->attempt(), request->rank(), request->step());
  if (copy == nullptr) {
    return ToGrpc(absl::NotFoundError(absl::StrCat("there is no longer a copy of rank ",
                                                   request->rank(), " at step ", request->step(),
                                                   " of attempt ", request->attempt())));
  }
  v1::GetSnapshotMessage message;
  *message.mutable_begin() = copy->begin;
  message.mutable_begin()->clear_steps();
  // A reader that has gone away needs no answer.
  bool open = writer->Write(message);
  for (size_t at = 0; open && at < copy->size; at += kChunkBytes) {
    const std::string_view part = copy->bytes().substr(at, kChunkBytes);
    message.mutable_chunk()->set_data(part.data(), part.size());
    open = writer->Write(message);
  }
  if (open) {
    message.mutable_end()->set_checksum(copy->checksum);
    message.mutable_end()->set_bytes(static_cast<int64_t>(copy->size));
    writer->Write(message);
  }
  return grpc::Status::OK;
}

absl::StatusOr<std::unique_ptr<SnapshotServer>> SnapshotServer::Listen(
    const std::string& address, std::shared_ptr<TlsIdentity> identity,
    SnapshotServiceImpl& service) {
  const auto credentials = MakeServerCredentials(std::move(identity));
  std::unique_ptr<SnapshotServer> server(new SnapshotServer);
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  // A caller has shown a certificate within that time: revoked certificates that expired earlier
  // can be forgotten.
  builder.AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_AGE_MS,
      static_cast<int>(absl::ToInt64Milliseconds(kLongestConnectionOfAgents)));
  int port = 0;
  builder.AddListeningPort(address, credentials, &port);
  builder.RegisterService(&service);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", address));
  }
  // The system has chosen the port if 0 was given, and others must know it.
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return server;
}

SnapshotServer::~SnapshotServer() {
  // Calls are cut off at once: the copies end with this process anyway.
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace tercio::agent
