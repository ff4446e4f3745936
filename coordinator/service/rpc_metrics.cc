#include "coordinator/service/rpc_metrics.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "google/protobuf/descriptor.h"

namespace tercio::coordinator {
namespace {

// In the order of gRPC's codes, which are used as indices.
constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

const char* TypeOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return method.server_streaming() ? "bidi_stream" : "client_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

}  // namespace

// Measures one call: gRPC makes it when the call begins and destroys it when the call is over.
class RpcMetrics::Interceptor : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(Method& method) : method_(method) {
    // Relaxed is enough: the counters order nothing but themselves.
    method_.started.fetch_add(1, std::memory_order_relaxed);
  }
  ~Interceptor() override {
    // A stream is measured as a whole: it has no single answer whose delay could be measured.
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
    method_.seconds.Observe(took.count());
    method_.handled[code_].fetch_add(1, std::memory_order_relaxed);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    // The status passes here once per call, also that of streams.
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      const int code = methods->GetSendStatus().error_code();
      if (code >= 0 && code < static_cast<int>(kCodes)) code_ = static_cast<size_t>(code);
    }
    methods->Proceed();
  }

 private:
  Method& method_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  size_t code_ = grpc::StatusCode::CANCELLED;  // for a call that was never answered
};

class RpcMetrics::Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(metrics_.MethodOf(info->method()));
  }

 private:
  RpcMetrics& metrics_;
};

RpcMetrics::RpcMetrics(const std::vector<std::string>& services) {
  static_assert(std::size(kCodeNames) == kCodes);
  // The tables exist before the first call, so that calls look them up without a lock.
  for (const std::string& service : services) {
    const google::protobuf::ServiceDescriptor* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
    TERCIO_CHECK(descriptor != nullptr);
    for (int i = 0; i < descriptor->method_count(); ++i) {
      Method& method = methods_[absl::StrCat("/", service, "/", descriptor->method(i)->name())];
      method.service = service;
      method.name = descriptor->method(i)->name();
      method.type = TypeOf(*descriptor->method(i));
    }
  }
  // Paths are chosen by clients: unknown ones share a series, or a scan would make thousands.
  other_.service = "other";
  other_.name = "other";
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
RpcMetrics::MakeInterceptors() {
  return std::make_unique<Factory>(*this);
}

RpcMetrics::Method& RpcMetrics::MethodOf(const std::string& path) {
  const auto found = methods_.find(path);
  return found == methods_.end() ? other_ : found->second;
}

void RpcMetrics::AddTo(MetricsPage* page) const {
  const auto add = [page](const Method& method) {
    // Ended calls are read first: no call ends before it begins.
    int64_t ended = 0;
    for (size_t code = 0; code < kCodes; ++code) {
      const int64_t count = method.handled[code].load(std::memory_order_relaxed);
      ended += count;
      // A series for each of 17 codes and each method would be mostly zeros; OK is always shown.
      if (count == 0 && code != grpc::StatusCode::OK) continue;
      page->Set("tercio_rpc_handled_total",
                {kCodeNames[code], method.name, method.service, method.type},
                static_cast<double>(count));
    }
    const int64_t started = method.started.load(std::memory_order_relaxed);
    page->Set("tercio_rpc_started_total", {method.name, method.service, method.type},
              static_cast<double>(started));
    // Open calls are a difference, so that no third counter can disagree with the other two.
    page->Set("tercio_rpc_open", {method.name, method.service, method.type},
              static_cast<double>(started - ended));
    page->Set("tercio_rpc_duration_seconds", {method.name, method.service, method.type},
              method.seconds.figures());
  };
  for (const auto& [path, method] : methods_) add(method);
  add(other_);
}

}  // namespace tercio::coordinator
