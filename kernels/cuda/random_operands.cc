#include "kernels/cuda/random_operands.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace tercio::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20261124;

// Writes the bits of a number in the format.
void Store(Format format, float value, std::byte* to) {
  const auto store = [to](const auto& bits) { std::memcpy(to, &bits, sizeof(bits)); };
  switch (format) {
    case Format::kFloat32:
      return store(value);
    case Format::kBfloat16:
      return store(__float2bfloat16_rn(value));
    case Format::kFloat16:
      return store(__float2half_rn(value));
    case Format::kE4m3:
      return store(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
    case Format::kE5m2:
      return store(__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2));
  }
}

}  // namespace

RandomOperands::Pinned RandomOperands::MakePeriod(Format format, cudaError_t* error) {
  const int64_t size = BytesOf(format);
  void* memory = nullptr;
  *error = cudaMallocHost(&memory, static_cast<size_t>(kPeriod * size));
  if (*error != cudaSuccess) return nullptr;
  Pinned period(static_cast<std::byte*>(memory));
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kPeriod; ++i) Store(format, normal(random), period.get() + i * size);
  return period;
}

cudaError_t RandomOperands::Fill(Values to, int64_t bytes) {
  cudaError_t error = cudaSuccess;
  Pinned& period = periods_[to.stored()];
  // A few milliseconds of the host for each format of a job.
  if (period == nullptr) period = MakePeriod(to.stored(), &error);
  int64_t filled = std::min(bytes, kPeriod * BytesOf(to.stored()));
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(to.data(), period.get(), static_cast<size_t>(filled),
                            cudaMemcpyHostToDevice, stream_);
  }
  // The rest is copied on the device, each time as much as there is already.
  while (error == cudaSuccess && filled < bytes) {
    const int64_t more = std::min(filled, bytes - filled);
    error = cudaMemcpyAsync(to.data() + filled, to.data(), static_cast<size_t>(more),
                            cudaMemcpyDeviceToDevice, stream_);
    filled += more;
  }
  return error;
}

}  // namespace tercio::kernels::cuda
