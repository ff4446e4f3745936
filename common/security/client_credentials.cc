#include "common/security/client_credentials.h"

#include <openssl/pem.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/security/certificate.h"
#include "common/security/openssl_pointers.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace tercio {
namespace {

namespace tls = grpc::experimental;

// A renewed certificate is used this long after it was written.
constexpr unsigned kLookSeconds = 2;

bool IsFor(const std::string& pem, const std::string& host) {
  const CertificatePointer certificate(
      PEM_read_bio_X509(ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return false;
  // A name and an address are checked by different functions; either may fit.
  if (X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1) return true;
  ERR_clear_error();
  return X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) == 1;
}

// Checks the names in a certificate whose signatures and times gRPC has checked.
class ServerVerifier : public tls::ExternalCertificateVerifier {
 public:
  explicit ServerVerifier(std::string role) : role_(std::move(role)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const std::string pem(request->peer_cert().data(), request->peer_cert().size());
    *status = Judge(pem, std::string(request->target_name().data(), request->target_name().size()));
    // The answer is there at once: nothing has to be looked up.
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  grpc::Status Judge(const std::string& pem, const std::string& host) const {
    const auto refused = [](const std::string& why) {
      return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, why);
    };
    const absl::StatusOr<CertificateFacts> facts = ReadCertificate(pem);
    if (!facts.ok()) return refused(std::string(facts.status().message()));
    if (!IsFor(pem, host)) return refused(absl::StrCat("its certificate is not for ", host));
    // Certificates of other authorities name no role; one of ours must name the right one.
    if (facts->role.empty() || facts->role == role_) return grpc::Status::OK;
    return refused(absl::StrCat("its certificate has the role ", facts->role, ", not ", role_));
  }

  const std::string role_;
};

std::shared_ptr<grpc::ChannelCredentials> Make(
    std::shared_ptr<tls::CertificateProviderInterface> provider, bool own_certificate,
    const std::string& server_role) {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::move(provider));
  // Files that change are read again, so that a renewal needs no restart.
  options.watch_root_certs();
  // A client without a certificate of its own can only enrol.
  if (own_certificate) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<ServerVerifier>(server_role));
  return tls::TlsCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeClientCredentials(const TlsFiles& files,
                                                                const std::string& server_role) {
  return Make(std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate,
                                                                    files.authority, kLookSeconds),
              /*own_certificate=*/true, server_role);
}

std::shared_ptr<grpc::ChannelCredentials> MakeAnonymousCredentials(const std::string& authority,
                                                                   const std::string& server_role) {
  return Make(std::make_shared<tls::StaticDataCertificateProvider>(authority),
              /*own_certificate=*/false, server_role);
}

}  // namespace tercio
