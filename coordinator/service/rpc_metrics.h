// Counts the calls of a gRPC server by method: begun, ended with which code, and how long they
// took. Methods of Tercio's services are counted one by one, all others (health, reflection) as
// one.
//
// Threads: any. A call costs some atomic additions at its begin and end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/histogram.h"
#include "common/metrics/metrics_page.h"
#include "grpcpp/support/server_interceptor.h"

namespace tercio::coordinator {

class RpcMetrics {
 public:
  // Full names of services whose descriptors are linked, such as "tercio.v1.JobService".
  explicit RpcMetrics(const std::vector<std::string>& services);

  // For grpc::ServerBuilder. This object must outlive the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptors();

  void AddTo(MetricsPage* page) const;

 private:
  static constexpr size_t kCodes = 17;  // status codes of gRPC
  struct Method {
    std::string service;
    std::string name;
    const char* type = "other";
    std::atomic<int64_t> started{0};
    std::array<std::atomic<int64_t>, kCodes> handled = {};
    Histogram seconds{"tercio_rpc_duration_seconds"};
  };
  class Interceptor;
  class Factory;

  Method& MethodOf(const std::string& path);

  std::map<std::string, Method> methods_;  // by path; never changes
  Method other_;
};

}  // namespace tercio::coordinator
