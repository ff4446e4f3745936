// Products on CUDA against the CPU's, and the table of algorithms. Tolerance: each backend is
// within 1e-6 of sum |a||b| of the exact product (docs/numerics.md). Factors are normal numbers:
// that sum is about 0.64 k, and the largest result some 2 sqrt(k), in units of which this is less
// than sqrt(k).
#include <cmath>
#include <cstdint>

#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},   {1, 17, 5},   {2, 3, 257}, {5, 16, 16},
                             {7, 33, 31}, {40, 65, 30}, {64, 24, 72}};

class ProductsTest : public BothBackendsTest {};

TEST_F(ProductsTest, Products) {
  const Options options{false, 0};
  for (const Format format : kFormats) {
    for (const auto& [m, n, k] : kShapes) {
      for (const bool accumulate : {false, true}) {
        Begin(format, "products " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                          std::to_string(k));
        const int x = AddValues("x", m * k);
        const int w = AddValues("w", n * k);
        const int bias = accumulate ? Bound::kNone : AddValues("bias", n);
        const int y = AddValues("y", m * n);
        const int dy = AddValues("dy", m * n);
        const int dx = AddValues("dx", m * k);
        const int dw = AddFloats("dw", n * k);
        const int dbias = m % 2 == 1 ? AddFloats("dbias", n) : Bound::kNone;
        Near(2e-6 * (1 + std::sqrt(static_cast<double>(k))), {y});
        Near(2e-6 * (1 + std::sqrt(static_cast<double>(n))), {dx});
        Near(2e-6 * (1 + std::sqrt(static_cast<double>(m))), {dw, dbias});
        Check(
            [&](Ops& ops, const Bound& t) {
              ops.Matmul(
                  {t.values(x), t.values(w), t.values(bias), t.values(y), m, n, k, accumulate});
              ops.MatmulBackwardInput(
                  {t.values(dy), t.values(w), t.values(dx), m, n, k, accumulate});
              ops.MatmulBackwardWeight({t.values(dy), t.values(x), t.floats(dw), t.floats(dbias), m,
                                        n, k, m, accumulate});
            },
            options);
      }
    }
  }
}

TEST_F(ProductsTest, NoRows) {
  Begin(Format::kBfloat16, "no rows");
  const int x = AddValues("x", 8);
  const int dw = AddFloats("dw", 6);
  const int dbias = AddFloats("dbias", 2);
  for (const bool accumulate : {true, false}) {
    const auto bytes = RunOnDevice(
        [&](Ops& ops, const Bound& t) {
          ops.Matmul({t.values(x), t.values(x), nullptr, t.values(x), 0, 2, 3, false});
          ops.MatmulBackwardInput({t.values(x), t.values(x), t.values(x), 0, 2, 3, false});
          ops.MatmulBackwardWeight(
              {t.values(x), t.values(x), t.floats(dw), t.floats(dbias), 0, 2, 3, 1, accumulate});
        },
        0);
    if (!accumulate) At(dw).data.assign(6, 0);
    if (!accumulate) At(dbias).data.assign(2, 0);
    const std::vector<Tensor> actual = Unpack(bytes);
    for (size_t i = 0; i < actual.size(); ++i) Compare(actual[i], tensors_[i], 0);
  }
}

#ifdef TERCIO_CUDA_EMULATED
// The emulated library has an algorithm that wants a workspace and has other bits than the other
// one.
class AlgorithmsTest : public ProductsTest {
 protected:
  static constexpr int64_t kDepth = 300;

  std::vector<float> Multiply(int64_t workspace_bytes, ProductAlgorithms* algorithms,
                              OperationErrors* errors) {
    Begin(Format::kFloat32, "algorithms");
    random_.seed(kSeed);
    std::normal_distribution<float> normal;
    std::vector<float> x(8 * kDepth), w(8 * kDepth);
    for (float& value : x) value = normal(random_);
    for (float& value : w) value = normal(random_);
    DeviceBuffer<float> x_buffer(x, 0), w_buffer(w, 0), y(64);
    DeviceBuffer<unsigned char> workspace(workspace_bytes);
    const auto ops = CreateCudaOps({stream_, reinterpret_cast<std::byte*>(workspace.data()),
                                    workspace_bytes, errors, algorithms});
    const MatmulArgs args{x_buffer.data(), w_buffer.data(), nullptr, y.data(), 8, 8, kDepth};
    ops->Matmul(args);
    ops->Matmul(args);
    return y.Read(stream_);
  }
};

TEST_F(AlgorithmsTest, FitTheWorkspaceAndAreKept) {
  OperationErrors errors;
  ProductAlgorithms small, large;
  const auto without = Multiply(1024, &small, &errors);
  const auto with = Multiply(1 << 20, &large, &errors);
  EXPECT_FALSE(errors.first());
  ASSERT_EQ(small.size(), 1u);
  ASSERT_EQ(large.size(), 1u);
  EXPECT_EQ(small.begin()->first, large.begin()->first);
  EXPECT_EQ(small.begin()->second.workspace_bytes, 0);
  EXPECT_GT(large.begin()->second.workspace_bytes, 0);
  EXPECT_NE(without, with);
  // What the table says is taken.
  const ProductAlgorithms before = small;
  EXPECT_EQ(Multiply(1 << 20, &small, &errors), without);
  EXPECT_EQ(small, before);
}

TEST_F(AlgorithmsTest, OneThatDoesNotFitIsAnErrorWithTheOperationsName) {
  OperationErrors errors;
  ProductAlgorithms algorithms;
  Multiply(1 << 20, &algorithms, &errors);
  ASSERT_FALSE(errors.first());
  Multiply(1024, &algorithms, &errors);  // its workspace is missing
  ASSERT_TRUE(errors.first());
  EXPECT_EQ(errors.first()->operation, "Matmul");
  EXPECT_NE(errors.first()->what.find("m 8, n 8, k 300: CUBLAS_STATUS_INVALID_VALUE"),
            std::string::npos)
      << errors.first()->what;
}
#endif

}  // namespace
}  // namespace tercio::kernels::cuda
