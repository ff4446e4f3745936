#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "nlohmann/json.hpp"
#include "worker/collective/host_staged.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_status.h"
#include "worker/trainer/device_report.h"
#include "worker/trainer/memory_trial.h"
#include "worker/trainer/operation_rates.h"

namespace tercio::trainer {
namespace {

using Json = nlohmann::json;

// A measurement is enlarged until it takes this long, or reaches its largest size: sizes that suit
// a GPU's speed would take long on a slow device.
constexpr double kEnoughSeconds = 0.02;
constexpr int kRepeats = 4;
constexpr int64_t kSmallestSide = 128;
constexpr int64_t kLargestSide = 8192;
constexpr int64_t kSmallestCopy = int64_t{1} << 20;
constexpr int64_t kLargestCopy = int64_t{256} << 20;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

// major * 10000 + minor * 100 + patch, as cuBLAS, cuDNN 9 and NCCL since 2.9 have it.
std::string VersionText(int64_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// The trainer may be built without cuDNN.
std::string CudnnVersion() {
  void* library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  const absl::Cleanup close = [library] { dlclose(library); };
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  return version == nullptr ? "" : VersionText(static_cast<int64_t>(version()));
}

Json Libraries() {
  // A library that does not answer is left out: the report is made to find out what is wrong.
  Json libraries = {{"device", "cuda"}};
  int runtime = 0;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) libraries["cuda_runtime"] = runtime;
  // That of the library which this process loads: it may be NVIDIA's for forward compatibility.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess) libraries["cuda_driver"] = driver;
  int nccl = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) libraries["nccl"] = VersionText(nccl);
  libraries["cublas"] = VersionText(static_cast<int64_t>(cublasLtGetVersion()));
  if (const std::string cudnn = CudnnVersion(); !cudnn.empty()) libraries["cudnn"] = cudnn;
  return libraries;
}

class Timer {
 public:
  static absl::StatusOr<std::unique_ptr<Timer>> Create() {
    auto timer = std::make_unique<Timer>();
    for (cudaEvent_t* event : {&timer->start_, &timer->end_}) {
      TERCIO_RETURN_IF_ERROR(device::CudaStatus(cudaEventCreate(event), "creating an event"));
    }
    return timer;
  }
  ~Timer() {
    for (const cudaEvent_t event : {start_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  // Mean time of several calls, after one that does not count.
  absl::StatusOr<double> Time(cudaStream_t stream, const std::function<absl::Status()>& call) {
    // The first call loads kernels and chooses an algorithm.
    TERCIO_RETURN_IF_ERROR(call());
    TERCIO_RETURN_IF_ERROR(
        device::CudaStatus(cudaEventRecord(start_, stream), "recording an event"));
    for (int i = 0; i < kRepeats; ++i) TERCIO_RETURN_IF_ERROR(call());
    TERCIO_RETURN_IF_ERROR(device::CudaStatus(cudaEventRecord(end_, stream), "recording an event"));
    TERCIO_RETURN_IF_ERROR(
        device::CudaStatus(cudaStreamSynchronize(stream), "running the measurement"));
    float milliseconds = 0;
    TERCIO_RETURN_IF_ERROR(
        device::CudaStatus(cudaEventElapsedTime(&milliseconds, start_, end_), "reading the time"));
    // Rates are divided by this time.
    return std::max(1e-9, milliseconds * 1e-3 / kRepeats);
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Fills with numbers between 0.5 and 1, and between -1 and -0.5, as if random: a GPU needs less
// power for zeros, and is faster with them than with any trained values.
void Fill(device::Stream& stream, device::DeviceMemory& memory, kernels::Format format) {
  const bool wide = format == kernels::Format::kFloat32;
  std::vector<uint32_t> words(kSmallestCopy / sizeof(uint32_t));
  uint32_t random = 1;
  for (uint32_t& word : words) {
    // This is the linear congruential generator of Numerical Recipes.
    random = random * 1664525 + 1013904223;
    const uint32_t bits = random ^ (random >> 16);
    // Sign and fraction are random and the exponent is not; a word holds two numbers of bf16.
    word = wide ? 0x3f000000 | (bits & 0x807fffff) : 0x3f003f00 | (bits & 0x807f807f);
  }
  for (int64_t at = 0; at < memory.size_bytes(); at += kSmallestCopy) {
    stream.CopyFromHost(memory.data() + at, words.data(),
                        std::min(kSmallestCopy, memory.size_bytes() - at));
  }
}

// Operations per second of products as training computes them.
absl::StatusOr<double> MeasureProducts(device::Device& device, kernels::Format format) {
  TERCIO_ASSIGN_OR_RETURN(const auto workspace, device.Allocate(kWorkspaceBytes));
  TERCIO_ASSIGN_OR_RETURN(const auto stream,
                          device.CreateStream(device::Device::StreamKind::kCompute,
                                              {workspace->data(), workspace->size_bytes()}));
  TERCIO_ASSIGN_OR_RETURN(const auto timer, Timer::Create());
  for (int64_t side = kSmallestSide;; side *= 2) {
    std::vector<std::unique_ptr<device::DeviceMemory>> memory;
    std::vector<kernels::Values> values;
    for (int i = 0; i < 3; ++i) {
      TERCIO_ASSIGN_OR_RETURN(auto matrix, device.Allocate(side * side * BytesOf(format)));
      // The third matrix is the result.
      if (i < 2) Fill(*stream, *matrix, format);
      values.push_back(kernels::Values(matrix->data(), format, format));
      memory.push_back(std::move(matrix));
    }
    const kernels::MatmulArgs product = {.x = values[0],
                                         .w = values[1],
                                         .bias = nullptr,
                                         .y = values[2],
                                         .m = side,
                                         .n = side,
                                         .k = side,
                                         .accumulate = false};
    TERCIO_ASSIGN_OR_RETURN(const double seconds, timer->Time(device::HandleOf(*stream), [&] {
      stream->ops().Matmul(product);
      return absl::OkStatus();
    }));
    TERCIO_RETURN_IF_ERROR(stream->Synchronize());
    if (seconds >= kEnoughSeconds || side >= kLargestSide) {
      // A multiplication and an addition count as two operations.
      return 2.0 * static_cast<double>(side * side * side) / seconds;
    }
  }
}

// Bytes per second of `copy`, which is given the number of bytes.
absl::StatusOr<double> MeasureCopy(
    cudaStream_t stream, int64_t most,
    const std::function<absl::Status(int64_t bytes, cudaStream_t stream)>& copy) {
  TERCIO_ASSIGN_OR_RETURN(const auto timer, Timer::Create());
  for (int64_t bytes = std::min(most, kSmallestCopy);; bytes = std::min(most, bytes * 4)) {
    TERCIO_ASSIGN_OR_RETURN(const double seconds,
                            timer->Time(stream, [&] { return copy(bytes, stream); }));
    if (seconds >= kEnoughSeconds || bytes == most) return static_cast<double>(bytes) / seconds;
  }
}

absl::Status MeasureGpu(int gpu, Json* report) {
  TERCIO_ASSIGN_OR_RETURN(const auto device, device::CreateCudaDevice(gpu));
  size_t free = 0;
  size_t total = 0;
  TERCIO_RETURN_IF_ERROR(device::CudaStatus(cudaMemGetInfo(&free, &total), "querying free memory"));
  // The figure is taken before this program allocates anything.
  (*report)["memory_free_bytes"] = free;
  (*report)["memory_total_bytes"] = total;
  {
    // Others may need memory on this GPU, so most of what is free is left alone.
    const auto most = static_cast<int64_t>(std::min<size_t>(kLargestCopy, free / 4));
    TERCIO_ASSIGN_OR_RETURN(const auto there, device->Allocate(most));
    // Copies of training go through pinned memory, too.
    TERCIO_ASSIGN_OR_RETURN(const auto here, device->AllocateHost(most));
    TERCIO_ASSIGN_OR_RETURN(const auto stream,
                            device->CreateStream(device::Device::StreamKind::kCompute));
    const auto measure = [&](const char* name, void* to, const void* from, cudaMemcpyKind kind) {
      const absl::StatusOr<double> rate =
          MeasureCopy(device::HandleOf(*stream), most, [&](int64_t bytes, cudaStream_t handle) {
            return device::CudaStatus(
                cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, handle), "copying");
          });
      if (rate.ok()) (*report)[name] = *rate;
      return rate.status();
    };
    TERCIO_RETURN_IF_ERROR(measure("host_to_device_bytes_per_second", there->data(), here->data(),
                                   cudaMemcpyHostToDevice));
    TERCIO_RETURN_IF_ERROR(measure("device_to_host_bytes_per_second", here->data(), there->data(),
                                   cudaMemcpyDeviceToHost));
  }
  TERCIO_ASSIGN_OR_RETURN((*report)["bf16_flops"],
                          MeasureProducts(*device, kernels::Format::kBfloat16));
  TERCIO_ASSIGN_OR_RETURN((*report)["fp32_flops"],
                          MeasureProducts(*device, kernels::Format::kFloat32));
  return absl::OkStatus();
}

// A trial that fails shows a fault of the memory plan, not of the GPU.
absl::Status TryMemory(int gpu, Json* report) {
  TERCIO_ASSIGN_OR_RETURN(const auto device, device::CreateCudaDevice(gpu));
  TERCIO_ASSIGN_OR_RETURN((*report)["memory_plan"],
                          TryMemoryPlan(*device, TrialJob(v1::DEVICE_KIND_CUDA),
                                        collective::CreateHostStagedCommunicator));
  return absl::OkStatus();
}

absl::Status MeasurePeers(int from, int to, Json* report) {
  int direct = 0;
  TERCIO_RETURN_IF_ERROR(
      device::CudaStatus(cudaDeviceCanAccessPeer(&direct, from, to), "querying peer access"));
  (*report)["direct"] = direct != 0;
  TERCIO_ASSIGN_OR_RETURN(const auto target, device::CreateCudaDevice(to));
  TERCIO_ASSIGN_OR_RETURN(const auto there, target->Allocate(kLargestCopy));
  // It is made last and so is the thread's device, from which peer access is enabled.
  TERCIO_ASSIGN_OR_RETURN(const auto source, device::CreateCudaDevice(from));
  TERCIO_ASSIGN_OR_RETURN(const auto here, source->Allocate(kLargestCopy));
  TERCIO_ASSIGN_OR_RETURN(const auto stream,
                          source->CreateStream(device::Device::StreamKind::kCompute));
  if (direct != 0) {
    // Without this the copy would take the way over the host.
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(to, 0);
    if (enabled != cudaErrorPeerAccessAlreadyEnabled) {
      TERCIO_RETURN_IF_ERROR(device::CudaStatus(enabled, "enabling peer access"));
    }
    cudaGetLastError();  // already enabled is no error
  }
  TERCIO_ASSIGN_OR_RETURN(
      (*report)["bytes_per_second"],
      MeasureCopy(device::HandleOf(*stream), kLargestCopy, [&](int64_t bytes, cudaStream_t handle) {
        return device::CudaStatus(cudaMemcpyPeerAsync(there->data(), to, here->data(), from,
                                                      static_cast<size_t>(bytes), handle),
                                  "copying between GPUs");
      }));
  return absl::OkStatus();
}

void SetError(const absl::Status& status, Json* report) {
  if (!status.ok()) (*report)["error"] = std::string(status.message());
}

}  // namespace

std::string DescribeLibraries() { return Libraries().dump(); }

absl::StatusOr<v1::MachineFigures> MeasureDevices(int threads) {
  if (threads > 0) {
    return absl::InvalidArgumentError("a number of threads is for CPUs; leave out --threads");
  }
  int count = 0;
  const absl::Status status = device::CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs");
  if (!status.ok() || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no GPU to measure", status.ok() ? "" : ": ", std::string(status.message())));
  }
  cudaDeviceProp properties = {};
  TERCIO_RETURN_IF_ERROR(
      device::CudaStatus(cudaGetDeviceProperties(&properties, 0), "querying the GPU's properties"));
  v1::MachineFigures figures;
  figures.set_device(properties.name);
  figures.set_devices(1);
  {
    TERCIO_ASSIGN_OR_RETURN(const auto device, device::CreateCudaDevice(0));
    const RateOptions options = {.formats = {kernels::Format::kFloat32, kernels::Format::kBfloat16},
                                 .stores_floats = false,
                                 .workspace_bytes = kWorkspaceBytes,
                                 .now = SteadyNow};
    TERCIO_RETURN_IF_ERROR(MeasureOperations(*device, options, &figures));
    TERCIO_ASSIGN_OR_RETURN(
        const double step,
        SecondsOfTrialStep(*device, TrialJob(v1::DEVICE_KIND_CUDA),
                           collective::CreateHostStagedCommunicator, /*threads=*/1, SteadyNow));
    figures.set_step_seconds(step);
  }
  if (count == 1) return figures;
  Json pair;
  TERCIO_RETURN_IF_ERROR(MeasurePeers(0, 1, &pair));
  figures.set_link_bytes_per_second(pair["bytes_per_second"].get<double>());
  return figures;
}

std::string ExamineDevices() {
  Json report = Libraries();
  report["gpus"] = Json::array();
  report["peers"] = Json::array();
  int count = 0;
  SetError(device::CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"), &report);
  for (int gpu = 0; gpu < count; ++gpu) {
    Json one = {{"gpu", gpu}};
    cudaDeviceProp properties = {};
    absl::Status status = device::CudaStatus(cudaGetDeviceProperties(&properties, gpu),
                                             "querying the GPU's properties");
    if (status.ok()) {
      one["name"] = properties.name;
      one["compute_capability"] = absl::StrCat(properties.major, ".", properties.minor);
      one["multiprocessors"] = properties.multiProcessorCount;
      status = MeasureGpu(gpu, &one);
    }
    if (status.ok()) SetError(TryMemory(gpu, &one), &one["memory_plan"]);
    // A GPU that fails is a part of the report: the others are examined nevertheless.
    SetError(status, &one);
    report["gpus"].push_back(std::move(one));
  }
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      Json pair = {{"from", from}, {"to", to}};
      // Each direction is measured, since paths between GPUs are not always symmetric.
      SetError(MeasurePeers(from, to, &pair), &pair);
      report["peers"].push_back(std::move(pair));
    }
  }
  return report.dump();
}

}  // namespace tercio::trainer
