// What a client of ours shows and demands over TLS.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "common/security/tls_identity.h"
#include "grpcpp/security/credentials.h"

namespace tercio {

// The certificate and key are read again when their files change, for the next connection. The
// server's certificate must be signed by the authority, be for the host that was asked for and, if
// it names a role at all, `server_role`: an agent cannot pass for the coordinator.
std::shared_ptr<grpc::ChannelCredentials> MakeClientCredentials(const TlsFiles& files,
                                                                const std::string& server_role);

// The same without a certificate of one's own; `authority` is PEM text.
std::shared_ptr<grpc::ChannelCredentials> MakeAnonymousCredentials(const std::string& authority,
                                                                   const std::string& server_role);

}  // namespace tercio
