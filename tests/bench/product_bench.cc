// Measures this machine's FMA peak and the CPU's matrix products in one run, so that the share of
// the peak does not depend on what the machine did at another time.
//   product_bench [--avx2] [THREADS [PRODUCT]]     default: as many as there are cores, all
//   products
// --avx2: with this instruction set, also where the processor has AVX-512.
// Prints a table: GFLOP/s of the peak, of 2048^3, and of the products of a layer and of the head of
// two models, forward and both gradients, each as a share of the peak. Every figure is the best of
// several repetitions: what disturbs a run only ever makes it slower.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hwy/targets.h"
#include "worker/device/cpu_device.h"

namespace tercio::testing {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Independent chains of FMAs: more than the latency of one (4 to 5 cycles) times two units needs.
constexpr int kChains = 12;
constexpr int64_t kRounds = 1'000'000;

__attribute__((target("avx2,fma"))) float FmaChains256() {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.999999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
  return total;
}

__attribute__((target("avx512f"))) float FmaChains512() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.999999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}

// GFLOP/s of all threads together.
double FmaRate(int threads, float (*chains)(), int lanes) {
  double best = 0;
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::vector<std::thread> workers;
    // A result that nobody reads would let the compiler leave out the loop.
    std::vector<float> results(static_cast<size_t>(threads));
    const double begin = Now();
    for (float& result : results) workers.emplace_back([&] { result = chains(); });
    for (std::thread& worker : workers) worker.join();
    const double seconds = Now() - begin;
    if (results.front() == 0) std::abort();
    best = std::max(best, 2.0 * kChains * kRounds * lanes * threads / seconds / 1e9);
  }
  return best;
}

double PeakRate(int threads, bool avx2) {
  double peak = FmaRate(threads, FmaChains256, 8);
  if (!avx2 && __builtin_cpu_supports("avx512f"))
    peak = std::max(peak, FmaRate(threads, FmaChains512, 16));
  return peak;
}

// y (rows x n) = x (rows x k) w^T, with w n x k.
struct Product {
  const char* name;
  int64_t rows, n, k;
  int64_t rows_per_leaf;
};

class Bench {
 public:
  Bench(int threads, double peak, std::string only)
      : peak_(peak),
        only_(std::move(only)),
        device_(device::CreateCpuDevice(threads)),
        stream_(*device_->CreateStream(device::Device::StreamKind::kCompute)) {}

  void Measure(const char* model, const Product& p) {
    if (!only_.empty() && only_ != p.name) return;
    const auto buffer = [](int64_t count) {
      return std::vector<float>(static_cast<size_t>(count), 0.5f);
    };
    std::vector<float> x = buffer(p.rows * p.k);
    std::vector<float> w = buffer(p.n * p.k);
    std::vector<float> y = buffer(p.rows * p.n);
    Print(model, p, "forward", [&] {
      stream_->ops().Matmul({.x = kernels::ConstValues(x.data()),
                             .w = kernels::ConstValues(w.data()),
                             .bias = nullptr,
                             .y = kernels::Values(y.data()),
                             .m = p.rows,
                             .n = p.n,
                             .k = p.k});
    });
    Print(model, p, "input gradient", [&] {
      stream_->ops().MatmulBackwardInput({.dy = kernels::ConstValues(y.data()),
                                          .w = kernels::ConstValues(w.data()),
                                          .dx = kernels::Values(x.data()),
                                          .m = p.rows,
                                          .n = p.n,
                                          .k = p.k});
    });
    Print(model, p, "weight gradient", [&] {
      stream_->ops().MatmulBackwardWeight({.dy = kernels::ConstValues(y.data()),
                                           .x = kernels::ConstValues(x.data()),
                                           .dw = w.data(),
                                           .dbias = nullptr,
                                           .m = p.rows,
                                           .n = p.n,
                                           .k = p.k,
                                           .rows_per_leaf = p.rows_per_leaf});
    });
  }

  // The forward product of many matrices, one after the other, as generation reads them.
  void MeasureWeights(const Product& p) {
    if (!only_.empty() && only_ != p.name) return;
    const int64_t count = std::max<int64_t>(1, (int64_t{1} << 26) / (p.n * p.k));
    std::vector<float> x(static_cast<size_t>(p.rows * p.k), 0.5f);
    std::vector<float> y(static_cast<size_t>(p.rows * p.n));
    // Memory of the device, which has large pages.
    const int64_t bytes = count * p.n * p.k * static_cast<int64_t>(sizeof(float));
    const auto memory = *device_->Allocate(bytes);
    auto* const w = reinterpret_cast<float*>(memory->data());
    std::fill_n(w, count * p.n * p.k, 0.5f);
    double best = 1e30;
    for (int i = 0; i < 6; ++i) {
      const double begin = Now();
      for (int64_t at = 0; at < count; ++at) {
        stream_->ops().Matmul({.x = kernels::ConstValues(x.data()),
                               .w = kernels::ConstValues(w + at * p.n * p.k),
                               .bias = nullptr,
                               .y = kernels::Values(y.data()),
                               .m = p.rows,
                               .n = p.n,
                               .k = p.k});
      }
      if (!stream_->Synchronize().ok()) std::abort();
      best = std::min(best, Now() - begin);
    }
    std::printf("| %s | %lld x %lld x %lld | %.1f |\n", p.name, static_cast<long long>(p.rows),
                static_cast<long long>(p.n), static_cast<long long>(p.k),
                static_cast<double>(bytes) / best / 1e9);
    std::fflush(stdout);
  }

 private:
  void Print(const char* model, const Product& p, const char* pass,
             const std::function<void()>& run) {
    const double operations = 2.0 * static_cast<double>(p.rows * p.n * p.k);
    double best = 1e30;
    // Small products are over too soon for one repetition to be their best.
    const int repetitions = operations > 1e10 ? 4 : 30;
    for (int i = 0; i < repetitions; ++i) {
      const double begin = Now();
      run();
      if (!stream_->Synchronize().ok()) std::abort();
      best = std::min(best, Now() - begin);
    }
    const double rate = operations / best / 1e9;
    std::printf("| %s | %s | %lld x %lld x %lld | %s | %.1f | %.0f %% |\n", model, p.name,
                static_cast<long long>(p.rows), static_cast<long long>(p.n),
                static_cast<long long>(p.k), pass, rate, 100 * rate / peak_);
    std::fflush(stdout);
  }

  const double peak_;
  const std::string only_;  // the only product to measure; empty: all
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

int Main(int threads, bool avx2, const std::string& only) {
  const double peak = PeakRate(threads, avx2);
  std::printf("%d threads, FMA peak %.1f GFLOP/s\n\n", threads, peak);
  std::printf("| model | product | rows x n x k | pass | GFLOP/s | of the peak |\n");
  std::printf("|---|---|---|---|---|---|\n");
  Bench bench(threads, peak, only);
  bench.Measure("-", {"square", 2048, 2048, 2048, 2048});
  // nanoGPT's CPU configuration: 12 sequences of 64 tokens.
  for (const Product& p : {Product{"qkv", 768, 384, 128, 64}, Product{"output", 768, 128, 128, 64},
                           Product{"up", 768, 512, 128, 64}, Product{"down", 768, 128, 512, 64}}) {
    bench.Measure("nanoGPT", p);
  }
  // 4 sequences of 256 tokens.
  for (const Product& p :
       {Product{"qkv", 1024, 2304, 768, 256}, Product{"output", 1024, 768, 768, 256},
        Product{"up", 1024, 3072, 768, 256}, Product{"down", 1024, 768, 3072, 256},
        Product{"head", 256, 50272, 768, 256}}) {
    bench.Measure("GPT-2 124M", p);
  }
  // Generation: the weights are read once for few rows, so that memory is the limit.
  std::printf("\n| product | rows x n x k | GB/s of weights |\n|---|---|---|\n");
  for (const int64_t rows : {1, 8}) {
    bench.MeasureWeights({"few-up", rows, 3072, 768, rows});
    bench.MeasureWeights({"few-down", rows, 768, 3072, rows});
    bench.MeasureWeights({"few-head", rows, 50272, 768, rows});
  }
  return 0;
}

}  // namespace
}  // namespace tercio::testing

int main(int argc, char** argv) {
  bool avx2 = false;
  if (argc > 1 && std::string(argv[1]) == "--avx2") {
    avx2 = true;
    hwy::SetSupportedTargetsForTest(HWY_AVX2);
    --argc;
    ++argv;
  }
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  if (argc > 3 || threads < 1) {
    std::fprintf(stderr, "usage: product_bench [--avx2] [THREADS [PRODUCT]]\n");
    return 2;
  }
  return tercio::testing::Main(threads, avx2, argc > 2 ? argv[2] : "");
}
