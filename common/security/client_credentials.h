// TLS credentials of our clients: their certificate, and their checks of the server.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "common/security/tls_identity.h"
#include "grpcpp/security/credentials.h"

namespace tercio {

// The certificate and key are read again for the next connection when their files change. The
// server's certificate must be signed by the authority, be for the requested host and, if it names
// a role at all, have `server_role`: an agent cannot pass for the coordinator.
std::shared_ptr<grpc::ChannelCredentials> MakeClientCredentials(const TlsFiles& files,
                                                                const std::string& server_role);

// The same without a client certificate; `authority` is PEM text.
std::shared_ptr<grpc::ChannelCredentials> MakeAnonymousCredentials(const std::string& authority,
                                                                   const std::string& server_role);

}  // namespace tercio
