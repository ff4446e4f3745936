#include "tests/bench/kernels/rates.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/product_timing.h"
#include "kernels/cuda/scratch.h"
#include "tests/bench/kernels/cases.h"

namespace tercio::bench {
namespace {

namespace cuda = kernels::cuda;

constexpr int kRounds = 5;
constexpr int kWarmUps = 3;
constexpr uint64_t kSeed = 1;
// What plans give (plan/memory_map.cc).
constexpr int64_t kMostAttentionBytes = int64_t{296} << 20;
// Numbers that are none of the special ones in any format.
constexpr int kFill = 0x3c;

absl::Status Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

absl::Status CheckSizes(const Sizes& s) {
  if (s.context < 1 || s.heads < 1 || s.vocabulary < 1 || s.repeats < 1 || s.tokens < s.context ||
      s.tokens % s.context != 0 || s.tokens % 16 != 0 || s.hidden % 16 != 0 || s.hidden < s.heads ||
      s.hidden % s.heads != 0) {
    return absl::InvalidArgumentError(
        "tokens must be a multiple of the context and of 16, hidden of the heads and of 16");
  }
  return absl::OkStatus();
}

// All memory of the measurement, and what runs on it.
class Bench {
 public:
  explicit Bench(const Sizes& sizes) : sizes_(sizes) {}
  ~Bench() {
    for (void* memory : {static_cast<void*>(arena_), static_cast<void*>(workspace_),
                         static_cast<void*>(indices_)}) {
      cudaFree(memory);
    }
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  absl::StatusOr<Rates> Run() {
    TERCIO_RETURN_IF_ERROR(Prepare());
    TERCIO_RETURN_IF_ERROR(ChooseAlgorithms());
    Rates result;
    for (const bool own : {false, true}) {
      const auto ops = MakeOps(own, &timed_);
      for (const Case& one : cases_) {
        if (one.own_attention != own) continue;
        TERCIO_ASSIGN_OR_RETURN(const double seconds, Time(one, *ops));
        result.rates.push_back({one.operation, one.bytes, one.flops, seconds});
      }
    }
    for (const cuda::OperationNote& note : notes_.Take()) result.notes.push_back(note.text);
    return result;
  }

 private:
  absl::Status Prepare() {
    TERCIO_RETURN_IF_ERROR(Check(cudaSetDevice(0), "cudaSetDevice"));
    TERCIO_RETURN_IF_ERROR(
        Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (cudaEvent_t* event : {&begin_, &end_}) {
      TERCIO_RETURN_IF_ERROR(Check(cudaEventCreate(event), "cudaEventCreate"));
    }
    TERCIO_RETURN_IF_ERROR(PutIndices());
    Arena counting(nullptr);
    MakeCases(sizes_, indices_, distinct_, counting);
    arena_bytes_ = counting.most();
    const int64_t inner = 4 * sizes_.hidden;
    cuda::ScratchShapes shapes;
    shapes.rows = sizes_.tokens;
    shapes.norm_columns = sizes_.hidden;
    shapes.sum_columns = inner;
    shapes.heads = sizes_.heads;
    shapes.digest_count = sizes_.tokens * inner;
    shapes.squares_count = arena_bytes_;
    shapes.product_bytes = cuda::kProductWorkspaceBytes;
    shapes.library_attention_bytes =
        std::min(kMostAttentionBytes,
                 cuda::LibraryAttentionBytes({.sequences = sizes_.tokens / sizes_.context,
                                              .tokens = sizes_.context,
                                              .heads = sizes_.heads,
                                              .group = 1,
                                              .head_dim = sizes_.hidden / sizes_.heads}));
    workspace_bytes_ = cuda::CudaScratchBytes(shapes);
    TERCIO_RETURN_IF_ERROR(Allocate(&arena_, arena_bytes_));
    TERCIO_RETURN_IF_ERROR(Allocate(&workspace_, workspace_bytes_));
    Arena arena(arena_);
    cases_ = MakeCases(sizes_, indices_, distinct_, arena);
    return absl::OkStatus();
  }

  template <typename T>
  static absl::Status Allocate(T** memory, int64_t bytes) {
    return Check(cudaMalloc(reinterpret_cast<void**>(memory), static_cast<size_t>(bytes)),
                 "cudaMalloc");
  }

  absl::Status PutIndices() {
    std::mt19937_64 random(kSeed);
    std::vector<int32_t> tokens(static_cast<size_t>(sizes_.tokens));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint64_t>(sizes_.vocabulary));
    }
    distinct_ = static_cast<int64_t>(std::set(tokens.begin(), tokens.end()).size());
    const size_t bytes = tokens.size() * sizeof(int32_t);
    TERCIO_RETURN_IF_ERROR(Allocate(&indices_, static_cast<int64_t>(bytes)));
    return Check(cudaMemcpy(indices_, tokens.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  std::unique_ptr<kernels::Ops> MakeOps(bool own_attention, cuda::ProductAlgorithms* algorithms) {
    cuda::CudaOpsOptions options;
    options.stream = stream_;
    options.workspace = workspace_;
    options.workspace_bytes = workspace_bytes_;
    options.errors = &errors_;
    options.algorithms = algorithms;
    options.attention = own_attention ? cuda::AttentionKernel::kOwn : cuda::AttentionKernel::kAuto;
    options.notes = &notes_;
    return cuda::CreateCudaOps(options);
  }

  // As before the first step of a job: what the library offers for each shape is timed.
  absl::Status ChooseAlgorithms() {
    cuda::ProductAlgorithms ranked;
    {
      const auto ops = MakeOps(/*own_attention=*/false, &ranked);
      for (const Case& one : cases_) {
        if (one.flops == 0 || one.own_attention) continue;
        TERCIO_RETURN_IF_ERROR(Call(one, *ops, 1));
      }
    }
    notes_.Take();
    std::vector<cuda::ProductShape> shapes;
    for (const auto& [shape, algorithm] : ranked) shapes.push_back(shape);
    std::byte* operands = nullptr;
    TERCIO_RETURN_IF_ERROR(Allocate(&operands, cuda::BytesForTiming(shapes)));
    const absl::Cleanup free = [operands] { cudaFree(operands); };
    cuda::TimeProducts(shapes, {operands, workspace_, workspace_bytes_}, stream_, &timed_,
                       &errors_);
    return Finish("the choice of products' algorithms");
  }

  // Median over rounds of the mean of a call.
  absl::StatusOr<double> Time(const Case& one, kernels::Ops& ops) {
    TERCIO_RETURN_IF_ERROR(Check(
        cudaMemsetAsync(arena_, kFill, static_cast<size_t>(arena_bytes_), stream_), "cudaMemset"));
    TERCIO_RETURN_IF_ERROR(Call(one, ops, kWarmUps));
    std::array<double, kRounds> seconds;
    for (double& round : seconds) {
      TERCIO_RETURN_IF_ERROR(Check(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
      for (int i = 0; i < sizes_.repeats; ++i) one.call(ops);
      TERCIO_RETURN_IF_ERROR(Check(cudaEventRecord(end_, stream_), "cudaEventRecord"));
      TERCIO_RETURN_IF_ERROR(Finish(one.operation));
      float milliseconds = 0;
      TERCIO_RETURN_IF_ERROR(
          Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime"));
      round = milliseconds / 1e3 / sizes_.repeats;
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
    return seconds[kRounds / 2];
  }

  absl::Status Call(const Case& one, kernels::Ops& ops, int times) {
    for (int i = 0; i < times; ++i) one.call(ops);
    return Finish(one.operation);
  }

  absl::Status Finish(const std::string& what) {
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (errors_.first().has_value()) {
      return absl::InternalError(
          absl::StrCat(what, ": ", errors_.first()->operation, ": ", errors_.first()->what));
    }
    return Check(error, what.c_str());
  }

  const Sizes sizes_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  int32_t* indices_ = nullptr;
  int64_t distinct_ = 0;
  std::byte* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  cuda::OperationErrors errors_;
  cuda::OperationNotes notes_;
  cuda::ProductAlgorithms timed_;
  std::vector<Case> cases_;
};

}  // namespace

absl::StatusOr<Rates> MeasureRates(const Sizes& sizes) {
  TERCIO_RETURN_IF_ERROR(CheckSizes(sizes));
  return Bench(sizes).Run();
}

}  // namespace tercio::bench
