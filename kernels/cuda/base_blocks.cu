// Values of quantised weights (kernels/quantized_base.h), with the CPU's bits.
//
// Launch geometry: a thread makes 8 neighbours of a row, and 8 threads a block of 64 elements; a
// thread block 32 such blocks. The table lies in shared memory, a copy for each thread block. Bytes
// for each element, with B = 2 or 4: 1/2 + 1/64 + B (NF4) or 1 + 1/64 + B. Bound by memory.
#include "kernels/cuda/parts.h"
#include "kernels/cuda/primitives/groups.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/ops.h"

namespace tercio::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // elements of a thread
constexpr int kBlocksOfLaunch = kThreads * kWidth / static_cast<int>(kBaseBlock);

// By value, so that no buffer of the device has to hold it.
struct Tables {
  float nf4[16];
  float map[256];
};

struct Matrix {
  const std::byte* codes;
  const std::byte* scales;
  const float* groups;
  int64_t blocks;  // of all rows
  int64_t blocks_of_row;
  int64_t first;
  int64_t stride;
};

__device__ __forceinline__ float ScaleOf(const Matrix& matrix, int64_t block, const float* map) {
  const int64_t row = block / matrix.blocks_of_row;
  const int64_t number = matrix.first + row * matrix.stride + block % matrix.blocks_of_row;
  const float relative = __fmul_rn(map[static_cast<unsigned char>(matrix.scales[block])],
                                   matrix.groups[1 + number / kScalesOfGroup]);
  return __fadd_rn(relative, matrix.groups[0]);
}

template <bool kAligned, BaseFormat kFormat, typename T>
__global__ void __launch_bounds__(kThreads)
    DequantizeBlocksKernel(T* to, const Matrix matrix, const Tables tables) {
  __shared__ float map[256];
  __shared__ float nf4[16];
  const int thread = static_cast<int>(threadIdx.x);
  map[thread] = tables.map[thread];
  if (thread < 16) nf4[thread] = tables.nf4[thread];
  __syncthreads();
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + thread) * kWidth;
  const int64_t block = first / kBaseBlock;
  if (block >= matrix.blocks) return;
  const float scale = ScaleOf(matrix, block, map);
  const std::byte* codes = matrix.codes + CodesBytes(kFormat, first);
  float values[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if constexpr (kFormat == BaseFormat::kNf4) {
      const unsigned both = static_cast<unsigned char>(codes[j / 2]);
      values[j] = __fmul_rn(nf4[j % 2 == 0 ? both >> 4 : both & 15], scale);
    } else {
      values[j] = __fmul_rn(map[static_cast<unsigned char>(codes[j])], scale);
    }
  }
  StoreGroup<kAligned>(values, kWidth, to + first);
}

Tables MakeTables() {
  Tables tables;
  for (size_t i = 0; i < kNf4Table.size(); ++i) tables.nf4[i] = kNf4Table[i];
  for (size_t i = 0; i < kDynamicMap.size(); ++i) tables.map[i] = kDynamicMap[i];
  return tables;
}

template <bool kAligned, BaseFormat kFormat, typename T>
void Start(const DequantizeBlocksArgs& a, const CudaContext& context) {
  const int64_t of_row = a.columns / kBaseBlock;
  const Matrix matrix = {.codes = a.codes,
                         .scales = a.scales,
                         .groups = a.groups,
                         .blocks = a.rows * of_row,
                         .blocks_of_row = of_row,
                         .first = a.first,
                         .stride = a.stride};
  const int64_t blocks = (matrix.blocks + kBlocksOfLaunch - 1) / kBlocksOfLaunch;
  Launch(DequantizeBlocksKernel<kAligned, kFormat, T>,
         LaunchShape{dim3(static_cast<unsigned>(blocks)), kThreads}, context.stream, As<T>(a.to),
         matrix, MakeTables());
}

template <BaseFormat kFormat>
void StartAs(const DequantizeBlocksArgs& a, const CudaContext& context) {
  ByStorage(a.to.stored(), [&]<typename T>() {
    if (Aligned({a.to.data()}, 0, 1)) return Start<true, kFormat, T>(a, context);
    Start<false, kFormat, T>(a, context);
  });
}

}  // namespace

void DequantizeBlocksCuda(const DequantizeBlocksArgs& args, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return;
  TERCIO_CHECK(args.format != BaseFormat::kNone);
  TERCIO_CHECK_EQ(args.columns % kBaseBlock, 0);
  if (args.format == BaseFormat::kNf4) return StartAs<BaseFormat::kNf4>(args, context);
  StartAs<BaseFormat::kInt8>(args, context);
}

}  // namespace tercio::kernels::cuda
