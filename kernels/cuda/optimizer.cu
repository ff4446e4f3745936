// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization", algorithm 2), in the order
// of operations of torch.optim.AdamW, with the rounded copy that the model reads.
//
// Launch geometry: primitives/rows.cuh, without rows; a lane has eight elements.
// Bytes for each element: 28, and those of the copy. Bound by memory.
#include <cmath>

#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/rows.cuh"

namespace tercio::kernels::cuda {
namespace {

template <typename T>
struct Update {
  static constexpr int kWidth = 8;
  float* parameter;
  const float* gradient;
  float* m;
  float* v;
  T* rounded;
  float keep, clip, rest1, beta2, rest2, eps, root2, step;

  template <bool kAligned>
  __device__ __forceinline__ void Run(int64_t, int64_t at, int64_t count) const {
    float p[kWidth], g[kWidth], m1[kWidth], m2[kWidth];
    LoadGroup<kAligned>(parameter + at, count, p);
    LoadGroup<kAligned>(gradient + at, count, g);
    LoadGroup<kAligned>(m + at, count, m1);
    LoadGroup<kAligned>(v + at, count, m2);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float clipped = g[j] * clip;
      m1[j] = fmaf(clipped - m1[j], rest1, m1[j]);
      m2[j] = fmaf(clipped * clipped, rest2, m2[j] * beta2);
      const float denominator = sqrtf(m2[j]) / root2 + eps;
      p[j] = fmaf(step, m1[j] / denominator, p[j] * keep);
    }
    StoreGroup<kAligned>(m1, count, m + at);
    StoreGroup<kAligned>(m2, count, v + at);
    StoreGroup<kAligned>(p, count, parameter + at);
    if (rounded != nullptr) StoreGroup<kAligned>(p, count, rounded + at);
  }
};

}  // namespace

void AdamWCuda(const AdamWArgs& a, const CudaContext& context) {
  ByStorage(a.rounded.stored(), [&]<typename T>() {
    const Update<T> operation{a.parameter,
                              a.gradient,
                              a.m,
                              a.v,
                              As<T>(a.rounded),
                              1.0f - a.learning_rate * a.weight_decay,
                              a.clip,
                              static_cast<float>(1.0 - static_cast<double>(a.beta1)),
                              a.beta2,
                              static_cast<float>(1.0 - static_cast<double>(a.beta2)),
                              a.eps,
                              static_cast<float>(std::sqrt(a.bias_correction2)),
                              static_cast<float>(-a.learning_rate / a.bias_correction1)};
    LaunchFlat(operation, a.count,
               Aligned({a.parameter, a.gradient, a.m, a.v, operation.rounded}, 0, 1),
               context.stream);
  });
}

}  // namespace tercio::kernels::cuda
