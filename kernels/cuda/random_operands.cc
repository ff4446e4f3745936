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

std::vector<std::byte> MakePeriod(Format format, int64_t elements) {
  std::mt19937_64 random(kSeed);
  std::normal_distribution<float> normal;
  const int64_t size = BytesOf(format);
  std::vector<std::byte> period(static_cast<size_t>(elements * size));
  for (int64_t i = 0; i < elements; ++i) Store(format, normal(random), period.data() + i * size);
  return period;
}

}  // namespace

cudaError_t RandomOperands::Fill(Values to, int64_t bytes) {
  std::vector<std::byte>& period = periods_[to.stored()];
  // A few milliseconds of the host for each format of a job.
  if (period.empty()) period = MakePeriod(to.stored(), kPeriod);
  int64_t filled = std::min(bytes, static_cast<int64_t>(period.size()));
  cudaError_t error = cudaMemcpyAsync(to.data(), period.data(), static_cast<size_t>(filled),
                                      cudaMemcpyHostToDevice, stream_);
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
