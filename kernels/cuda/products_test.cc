// Products on CUDA against the CPU's, and the table of algorithms. Tolerance: each backend is
// within 1e-6 of sum |a||b| of the exact product (docs/numerics.md). Factors are normal numbers:
// that sum is about 0.64 k, and the largest result some 2 sqrt(k), in units of which this is less
// than sqrt(k).
#include <cmath>
#include <cstdint>
#include <set>

#include "kernels/cuda/product_timing.h"
#include "kernels/cuda/random_operands.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/testing/both_backends.h"

#ifdef TERCIO_CUDA_EMULATED
#include <cublasLt.h>

#include "emulation/product_control.h"
#endif

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},   {1, 17, 5},   {2, 3, 257}, {5, 16, 16},
                             {7, 33, 31}, {40, 65, 30}, {64, 24, 72}};

class ProductsTest : public BothBackendsTest {};

// g = the function of the product.
void RunWithActivation(Ops& ops, const MatmulArgs& product, Values g,
                       Activation function = Activation::kGeluTanh) {
  ops.RunChain(
      {.product = product,
       .activation = ActivationArgs{
           .h = product.y, .g = g, .rows = product.m, .columns = product.n, .function = function}});
}
// product.dx = the gradient of the function, whose input was `h`.
void RunWithActivationGradient(Ops& ops, const MatmulBackwardInputArgs& product, ConstValues h,
                               Activation function = Activation::kGeluTanh) {
  ops.RunChain({.input_gradient = product,
                .activation_gradient = ActivationBackwardArgs{.dg = product.dx,
                                                              .h = h,
                                                              .dh = product.dx,
                                                              .rows = product.m,
                                                              .columns = product.k,
                                                              .function = function}});
}

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
              ops.Matmul({.x = t.values(x),
                          .w = t.values(w),
                          .bias = t.values(bias),
                          .y = t.values(y),
                          .m = m,
                          .n = n,
                          .k = k,
                          .accumulate = accumulate});
              ops.MatmulBackwardInput({.dy = t.values(dy),
                                       .w = t.values(w),
                                       .dx = t.values(dx),
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .accumulate = accumulate});
              ops.MatmulBackwardWeight({.dy = t.values(dy),
                                        .x = t.values(x),
                                        .dw = t.floats(dw),
                                        .dbias = t.floats(dbias),
                                        .m = m,
                                        .n = n,
                                        .k = k,
                                        .rows_per_leaf = m,
                                        .accumulate = accumulate});
            },
            options);
      }
    }
  }
}

// GELU is that of the sum before it is rounded here, and of the rounded one on the CPU: they may be
// one step of the format apart, times the slope.
TEST_F(ProductsTest, WithActivations) {
  const Options options{false, 0};
  for (const Format format : kFormats) {
    const double step = format == Format::kFloat32   ? 1e-6
                        : format == Format::kFloat16 ? 1.0 / 1024
                                                     : 1.0 / 128;
    for (const auto& [m, n, k] : kShapes) {
      for (const Activation function :
           {Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
        for (const bool biased : {false, true}) {
          Begin(format, "activation of a product " + std::to_string(m) + " x " + std::to_string(n) +
                            " x " + std::to_string(k));
          const int x = AddValues("x", m * k, 0, 1 / std::sqrt(static_cast<double>(k)));
          const int w = AddValues("w", n * k);
          const int bias = biased ? AddValues("bias", n) : Bound::kNone;
          const int h = AddValues("h", m * n);
          const int g = AddValues("g", m * n);
          const int dy = AddValues("dy", m * n, 0, 1 / std::sqrt(static_cast<double>(n)));
          const int input = AddValues("input", m * k, 0, 2);
          const int dx = AddValues("dx", m * k);
          Near(4e-6, {h});
          Near(step, {g, dx});
          Check(
              [&](Ops& ops, const Bound& t) {
                RunWithActivation(ops,
                                  {.x = t.values(x),
                                   .w = t.values(w),
                                   .bias = t.values(bias),
                                   .y = t.values(h),
                                   .m = m,
                                   .n = n,
                                   .k = k},
                                  t.values(g), function);
                RunWithActivationGradient(ops,
                                          {.dy = t.values(dy),
                                           .w = t.values(w),
                                           .dx = t.values(dx),
                                           .m = m,
                                           .n = n,
                                           .k = k},
                                          t.values(input), function);
              },
              options);
        }
      }
    }
  }
}

TEST_F(ProductsTest, Tf32IsAskedFor) {
  const Options options{false, 0};
  const auto [m, n, k] = Shape{7, 33, 64};
  for (const bool tf32 : {false, true}) {
    tf32_ = tf32;
    Begin(Format::kFloat32, "tf32");
    const int x = AddValues("x", m * k);
    const int w = AddValues("w", n * k);
    const int y = AddValues("y", m * n);
    Near(2e-3, {y});
    const auto seen = Check(
        [&, m = m, n = n, k = k](Ops& ops, const Bound& t) {
          ops.Matmul({.x = t.values(x),
                      .w = t.values(w),
                      .bias = nullptr,
                      .y = t.values(y),
                      .m = m,
                      .n = n,
                      .k = k});
        },
        options);
    double error = 0;
    for (int64_t i = 0; i < m * n; ++i) {
      double exact = 0;
      for (int64_t j = 0; j < k; ++j) {
        exact += At(x).data[static_cast<size_t>(i / n * k + j)] *
                 At(w).data[static_cast<size_t>(i % n * k + j)];
      }
      error = std::max(error,
                       std::abs(seen[static_cast<size_t>(y)].data[static_cast<size_t>(i)] - exact));
    }
    EXPECT_EQ(error > 1e-4, tf32) << error;
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
          ops.Matmul({.x = t.values(x),
                      .w = t.values(x),
                      .bias = nullptr,
                      .y = t.values(x),
                      .m = 0,
                      .n = 2,
                      .k = 3,
                      .accumulate = false});
          ops.MatmulBackwardInput({.dy = t.values(x),
                                   .w = t.values(x),
                                   .dx = t.values(x),
                                   .m = 0,
                                   .n = 2,
                                   .k = 3,
                                   .accumulate = false});
          ops.MatmulBackwardWeight({.dy = t.values(x),
                                    .x = t.values(x),
                                    .dw = t.floats(dw),
                                    .dbias = t.floats(dbias),
                                    .m = 0,
                                    .n = 2,
                                    .k = 3,
                                    .rows_per_leaf = 1,
                                    .accumulate = accumulate});
        },
        0);
    if (!accumulate) At(dw).data.assign(6, 0);
    if (!accumulate) At(dbias).data.assign(2, 0);
    const std::vector<Tensor> actual = Unpack(bytes);
    for (size_t i = 0; i < actual.size(); ++i) Compare(actual[i], tensors_[i], 0);
  }
}

TEST_F(ProductsTest, OperandsOfTimingAreRandomNumbers) {
  RandomOperands random(stream_);
  constexpr int64_t kCount = 1000;
  DeviceBuffer<float> floats(kCount);
  DeviceBuffer<uint16_t> halves(kCount);
  DeviceBuffer<uint8_t> bytes(2 * RandomOperands::kPeriod + 5);
  ASSERT_EQ(random.Fill(floats.data(), kCount * 4), cudaSuccess);
  const std::vector<float> numbers = floats.Read(stream_);
  double squares = 0;
  for (const float number : numbers) squares += static_cast<double>(number) * number;
  EXPECT_NEAR(squares / kCount, 1, 0.2);
  EXPECT_GT(std::set<float>(numbers.begin(), numbers.end()).size(), size_t{kCount * 9 / 10});
  // The same numbers in any format, and at any time.
  const Values at(reinterpret_cast<std::byte*>(halves.data()), Format::kFloat16, Format::kFloat16);
  ASSERT_EQ(random.Fill(at, kCount * 2), cudaSuccess);
  const std::vector<uint16_t> rounded = halves.Read(stream_);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(rounded[i], __half_as_ushort(__float2half_rn(numbers[i]))) << i;
  }
  RandomOperands other(stream_);
  ASSERT_EQ(other.Fill(floats.data(), kCount * 4), cudaSuccess);
  EXPECT_EQ(floats.Read(stream_), numbers);
  // More than the period, to the last byte, and nothing that is no number.
  const auto period = static_cast<size_t>(RandomOperands::kPeriod);
  for (const Format format : {Format::kE4m3, Format::kE5m2}) {
    const Values eight(reinterpret_cast<std::byte*>(bytes.data()), format, format);
    ASSERT_EQ(random.Fill(eight, 2 * RandomOperands::kPeriod + 5), cudaSuccess);
    const std::vector<uint8_t> all = bytes.Read(stream_);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], all[i % period]) << i;
      EXPECT_LT(all[i] & 0x7f, format == Format::kE4m3 ? 0x7f : 0x7c) << i;
    }
  }
}

#ifdef TERCIO_CUDA_EMULATED
// The emulated library has an algorithm that wants a workspace and has other bits than the other
// one.
class AlgorithmsTest : public ProductsTest {
 protected:
  static constexpr int64_t kDepth = 300;

  void TearDown() override {
    emulation::SetProductSettings({});
    ProductsTest::TearDown();
  }

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
    const auto ops =
        CreateCudaOps({stream_, reinterpret_cast<std::byte*>(workspace.data()), workspace_bytes,
                       errors, algorithms, AttentionKernel::kOwn, &multiply_notes_});
    const MatmulArgs args{.x = x_buffer.data(),
                          .w = w_buffer.data(),
                          .bias = nullptr,
                          .y = y.data(),
                          .m = 8,
                          .n = 8,
                          .k = kDepth};
    ops->Matmul(args);
    ops->Matmul(args);
    return y.Read(stream_);
  }

  // The products of a layer with each epilogue.
  static constexpr int64_t kRows = 16, kColumns = 24, kInner = 32;
  struct LayerTensors {
    int x, w, bias, h, g, dy, dx, dw, dbias;
  };
  LayerTensors AddLayer() {
    return {.x = AddValues("x", kRows * kInner, 0, 0.2),
            .w = AddValues("w", kColumns * kInner),
            .bias = AddValues("bias", kColumns),
            .h = AddValues("h", kRows * kColumns),
            .g = AddValues("g", kRows * kColumns),
            .dy = AddValues("dy", kRows * kColumns, 0, 0.2),
            .dx = AddValues("dx", kRows * kInner),
            .dw = AddFloats("dw", kColumns * kInner),
            .dbias = AddFloats("dbias", kColumns)};
  }
  static void MultiplyLayer(Ops& ops, const Bound& t, const LayerTensors& ids);
  static std::vector<ProductShape> LayerShapes();

  OperationNotes multiply_notes_;
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

// The emulated library ranks the slower one first.
TEST_F(AlgorithmsTest, TimingTakesTheFastest) {
  Begin(Format::kBfloat16, "timing");
  constexpr int64_t kWorkspace = 1 << 20;
  using enum ProductEpilogue;
  std::vector<ProductShape> shapes;
  for (const auto& [kind, epilogue] :
       {std::pair(ProductKind::kForward, kNone), std::pair(ProductKind::kForward, kGelu),
        std::pair(ProductKind::kInputGradient, kGeluGradient),
        std::pair(ProductKind::kInputGradient, kNone),
        std::pair(ProductKind::kWeightGradient, kBiasGradient)}) {
    const bool weight = kind == ProductKind::kWeightGradient;
    shapes.push_back({.kind = kind,
                      .operands = Format::kBfloat16,
                      .result = weight ? Format::kFloat32 : Format::kBfloat16,
                      .m = 40,
                      .n = 64,
                      .k = 48,
                      .epilogue = epilogue,
                      .bias = epilogue == kGelu,
                      .accumulate = weight});
  }
  ProductShape impossible = shapes[1];
  impossible.n = 12;
  shapes.push_back(impossible);
  DeviceBuffer<unsigned char> operands(BytesForTiming(shapes)), workspace(kWorkspace);
  ProductAlgorithms table;
  OperationErrors errors;
  TimeProducts(shapes,
               {reinterpret_cast<std::byte*>(operands.data()),
                reinterpret_cast<std::byte*>(workspace.data()), kWorkspace},
               stream_, &table, &errors);
  ASSERT_FALSE(errors.first()) << errors.first()->what;
  // All, and the two with epilogues whose products without are not among them.
  EXPECT_EQ(table.size(), shapes.size() + 2);
  for (size_t i = 0; i + 1 < shapes.size(); ++i) {
    ASSERT_TRUE(table.contains(shapes[i])) << i;
    EXPECT_EQ(table[shapes[i]].workspace_bytes, 0) << i;
  }
  impossible.epilogue = kNone;
  EXPECT_TRUE(table.contains(impossible));
}

// What the library does in the same pass is in the table; what it cannot do is done apart.
TEST_F(AlgorithmsTest, EpiloguesAreUsedWhereTheyFit) {
  const auto epilogues = [&](int64_t n, Format format, Activation function) {
    ProductAlgorithms algorithms;
    algorithms_ = &algorithms;
    Begin(format, "epilogues");
    const int x = AddValues("x", 4 * n);
    const int y = AddValues("y", 4 * n);
    const int g = AddValues("g", 4 * n);
    const int w = AddValues("w", n * n);
    const int dw = AddFloats("dw", n * n);
    const int dbias = AddFloats("dbias", n);
    RunOnDevice(
        [&](Ops& ops, const Bound& t) {
          RunWithActivation(ops,
                            {.x = t.values(x),
                             .w = t.values(w),
                             .bias = nullptr,
                             .y = t.values(y),
                             .m = 4,
                             .n = n,
                             .k = n},
                            t.values(g), function);
          RunWithActivationGradient(
              ops, {.dy = t.values(y), .w = t.values(w), .dx = t.values(g), .m = 4, .n = n, .k = n},
              t.values(x), function);
          ops.MatmulBackwardWeight({.dy = t.values(y),
                                    .x = t.values(x),
                                    .dw = t.floats(dw),
                                    .dbias = t.floats(dbias),
                                    .m = 4,
                                    .n = n,
                                    .k = n,
                                    .rows_per_leaf = 4,
                                    .accumulate = true});
        },
        0);
    algorithms_ = nullptr;
    std::vector<ProductEpilogue> found;
    for (const auto& [shape, algorithm] : algorithms) found.push_back(shape.epilogue);
    return found;
  };
  using enum ProductEpilogue;
  const std::vector<ProductEpilogue> all = {kGelu, kGeluGradient, kBiasGradient};
  const std::vector<ProductEpilogue> only_sums = {kNone, kNone, kBiasGradient};
  EXPECT_EQ(epilogues(16, Format::kBfloat16, Activation::kGeluTanh), all);
  EXPECT_EQ(epilogues(16, Format::kFloat16, Activation::kGeluTanh), all);
  EXPECT_EQ(epilogues(16, Format::kBfloat16, Activation::kGelu), only_sums);
  EXPECT_EQ(epilogues(16, Format::kBfloat16, Activation::kRelu), only_sums);
  EXPECT_EQ(epilogues(16, Format::kFloat32, Activation::kGeluTanh), only_sums);
  EXPECT_EQ(epilogues(12, Format::kBfloat16, Activation::kGeluTanh), only_sums);
}

// As tables are that another job has made, or another version of the library.
TEST_F(AlgorithmsTest, OneOfTheTableThatDoesNotFitIsReplaced) {
  OperationErrors errors;
  ProductAlgorithms small, large;
  const auto without = Multiply(1024, &small, &errors);
  Multiply(1 << 20, &large, &errors);
  const ProductAlgorithms split = large;
  EXPECT_EQ(Multiply(1024, &large, &errors), without);  // its workspace is missing
  EXPECT_EQ(large, small);
  EXPECT_EQ(multiply_notes_.fallbacks()[static_cast<size_t>(Fallback::kTableAlgorithm)], 1);
  large = split;
  emulation::SetProductSettings({.knows_algorithms = false});
  Multiply(1 << 20, &large, &errors);  // the library does not know it any more, and chooses
  EXPECT_EQ(large, split);
  EXPECT_FALSE(errors.first()) << errors.first()->what;
  EXPECT_EQ(multiply_notes_.fallbacks()[static_cast<size_t>(Fallback::kTableAlgorithm)], 2);
  // The reason is a warning once.
  const auto notes = multiply_notes_.Take();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes[0].warning);
  EXPECT_NE(notes[0].text.find("table_algorithm"), std::string::npos) << notes[0].text;
  EXPECT_NE(notes[0].text.find("m 8, n 8, k 300"), std::string::npos) << notes[0].text;
}

// The fastest algorithm is of no use to a job that has less workspace for products, so no job is
// offered one that others cannot have: attention may leave any amount.
TEST_F(AlgorithmsTest, ALargerWorkspaceOffersNoMore) {
  emulation::SetProductSettings(
      {.split_workspace = kProductWorkspaceBytes + 1, .split_is_faster = true});
  OperationErrors errors;
  ProductAlgorithms algorithms;
  Multiply(kProductWorkspaceBytes + (1 << 20), &algorithms, &errors);
  ASSERT_EQ(algorithms.size(), 1u);
  EXPECT_EQ(algorithms.begin()->second.workspace_bytes, 0);
  emulation::SetProductSettings(
      {.split_workspace = kProductWorkspaceBytes, .split_is_faster = true});
  algorithms.clear();
  Multiply(kProductWorkspaceBytes + (1 << 20), &algorithms, &errors);
  EXPECT_EQ(algorithms.begin()->second.workspace_bytes, kProductWorkspaceBytes);
}

TEST_F(AlgorithmsTest, OneThatIsRefusedWhenItRunsIsReplaced) {
  OperationErrors errors;
  ProductAlgorithms small, large;
  const auto without = Multiply(1024, &small, &errors);
  emulation::SetProductSettings({.refuses_split = true});
  EXPECT_EQ(Multiply(1 << 20, &large, &errors), without);
  EXPECT_EQ(large.begin()->second.workspace_bytes, 0);
  EXPECT_FALSE(errors.first()) << errors.first()->what;
  EXPECT_EQ(multiply_notes_.fallbacks()[static_cast<size_t>(Fallback::kProductAlgorithm)], 1);
}

TEST_F(AlgorithmsTest, WithoutAnyItIsAnErrorWithTheOperationsName) {
  OperationErrors errors;
  ProductAlgorithms algorithms;
  emulation::SetProductSettings({.refused_epilogues = {CUBLASLT_EPILOGUE_DEFAULT}});
  Multiply(1 << 20, &algorithms, &errors);
  ASSERT_TRUE(errors.first());
  EXPECT_EQ(errors.first()->operation, "Matmul");
  EXPECT_NE(errors.first()->what.find("m 8, n 8, k 300: CUBLAS_STATUS_NOT_SUPPORTED"),
            std::string::npos)
      << errors.first()->what;
}

void AlgorithmsTest::MultiplyLayer(Ops& ops, const Bound& t, const LayerTensors& ids) {
  RunWithActivation(ops,
                    {.x = t.values(ids.x),
                     .w = t.values(ids.w),
                     .bias = t.values(ids.bias),
                     .y = t.values(ids.h),
                     .m = kRows,
                     .n = kColumns,
                     .k = kInner},
                    t.values(ids.g));
  RunWithActivationGradient(ops,
                            {.dy = t.values(ids.dy),
                             .w = t.values(ids.w),
                             .dx = t.values(ids.dx),
                             .m = kRows,
                             .n = kColumns,
                             .k = kInner},
                            t.values(ids.x));
  ops.MatmulBackwardWeight({.dy = t.values(ids.dy),
                            .x = t.values(ids.x),
                            .dw = t.floats(ids.dw),
                            .dbias = t.floats(ids.dbias),
                            .m = kRows,
                            .n = kColumns,
                            .k = kInner,
                            .rows_per_leaf = kRows,
                            .accumulate = true});
}

// Those of MultiplyLayer.
std::vector<ProductShape> AlgorithmsTest::LayerShapes() {
  using enum ProductEpilogue;
  std::vector<ProductShape> shapes;
  for (const auto& [kind, epilogue] : {std::pair(ProductKind::kForward, kGelu),
                                       std::pair(ProductKind::kInputGradient, kGeluGradient),
                                       std::pair(ProductKind::kWeightGradient, kBiasGradient)}) {
    const bool weight = kind == ProductKind::kWeightGradient;
    shapes.push_back({.kind = kind,
                      .operands = Format::kBfloat16,
                      .result = weight ? Format::kFloat32 : Format::kBfloat16,
                      .m = kRows,
                      .n = kColumns,
                      .k = kInner,
                      .epilogue = epilogue,
                      .bias = epilogue == kGelu,
                      .accumulate = weight});
  }
  return shapes;
}

ProductAlgorithms Timed(const std::vector<ProductShape>& shapes, cudaStream_t stream) {
  const int64_t bytes = WorkspaceForTiming(shapes);
  DeviceBuffer<unsigned char> operands(BytesForTiming(shapes)), workspace(bytes);
  ProductAlgorithms table;
  OperationErrors errors;
  TimeProducts(shapes,
               {reinterpret_cast<std::byte*>(operands.data()),
                reinterpret_cast<std::byte*>(workspace.data()), bytes},
               stream, &table, &errors);
  EXPECT_FALSE(errors.first()) << errors.first()->what;
  return table;
}

TEST_F(AlgorithmsTest, TimingFusesWhatIsFasterInOnePass) {
  const std::vector<ProductShape> shapes = LayerShapes();
  const std::vector<int> epilogues = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                      CUBLASLT_EPILOGUE_BGRADB};
  const ProductAlgorithms fused = Timed(shapes, stream_);
  for (const ProductShape& shape : shapes) EXPECT_GE(fused.at(shape).workspace_bytes, 0);
  for (size_t slow = 0; slow < shapes.size(); ++slow) {
    emulation::SetProductSettings({.epilogue_microseconds = {{epilogues[slow], 1000}}});
    const ProductAlgorithms table = Timed(shapes, stream_);
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_EQ(table.at(shapes[i]) == kSeparateEpilogue, i == slow) << i;
      // Whichever way is taken, its product has been timed.
      ProductShape plain = shapes[i];
      plain.epilogue = ProductEpilogue::kNone;
      EXPECT_GE(table.at(plain).workspace_bytes, 0) << i;
    }
  }
}

// A wide layer's bias gradient takes more of a workspace than products do.
TEST_F(AlgorithmsTest, TimingHasWorkspaceForOurOwnKernels) {
  ProductShape wide = LayerShapes().back();
  EXPECT_EQ(WorkspaceForTiming({wide}), kProductWorkspaceBytes);
  wide.m = 1 << 16;
  wide.n = 1 << 15;
  EXPECT_EQ(WorkspaceForTiming({wide}), ColumnSumBytes(wide.m, wide.n));
}

// The table decides, so that all ranks and attempts have the same bits: a job that has it fuses
// nothing, even if the library would, and that is no fallback.
TEST_F(AlgorithmsTest, TheTableSaysWhatIsFused) {
  const auto run = [&](ProductAlgorithms algorithms, FallbackCounts* fallbacks) {
    const ProductAlgorithms before = algorithms;
    OperationNotes notes;
    algorithms_ = &algorithms;
    notes_ = &notes;
    Begin(Format::kBfloat16, "the table decides");
    random_.seed(kSeed);
    const LayerTensors ids = AddLayer();
    const auto bytes =
        RunOnDevice([&](Ops& ops, const Bound& t) { MultiplyLayer(ops, t, ids); }, 0);
    algorithms_ = nullptr;
    notes_ = nullptr;
    *fallbacks = notes.fallbacks();
    for (const auto& [shape, algorithm] : before) EXPECT_EQ(algorithms.at(shape), algorithm);
    return bytes;
  };
  FallbackCounts fallbacks;
  const auto fused = run({}, &fallbacks);
  ProductAlgorithms table;
  for (const ProductShape& shape : LayerShapes()) table[shape] = kSeparateEpilogue;
  const auto separate = run(table, &fallbacks);
  EXPECT_EQ(fallbacks, FallbackCounts());
  EXPECT_NE(separate, fused);
  emulation::SetProductSettings(
      {.lacking_epilogues = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                             CUBLASLT_EPILOGUE_BGRADB}});
  EXPECT_EQ(run({}, &fallbacks), separate);
  EXPECT_NE(fallbacks, FallbackCounts());
}

// Each epilogue is refused, at once or when the product runs: the results are those of the CPU all
// the same, the table remembers it, and it is counted.
TEST_F(AlgorithmsTest, RefusedEpiloguesAreComputedApart) {
  for (const auto& [epilogue, what] :
       {std::pair(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, Fallback::kGelu),
        std::pair(CUBLASLT_EPILOGUE_DGELU, Fallback::kGeluGradient),
        std::pair(CUBLASLT_EPILOGUE_BGRADB, Fallback::kBiasGradient)}) {
    for (const bool runs : {false, true}) {
      emulation::ProductSettings settings;
      (runs ? settings.refused_epilogues : settings.lacking_epilogues).insert(epilogue);
      emulation::SetProductSettings(settings);
      ProductAlgorithms algorithms;
      OperationNotes notes;
      algorithms_ = &algorithms;
      notes_ = &notes;
      Begin(Format::kBfloat16, "without an epilogue");
      const LayerTensors ids = AddLayer();
      Near(4e-6, {ids.h, ids.dw, ids.dbias});
      Near(1.0 / 128, {ids.g, ids.dx});
      Check([&](Ops& ops, const Bound& t) { MultiplyLayer(ops, t, ids); }, {false, 0});
      algorithms_ = nullptr;
      notes_ = nullptr;
      int lacks = 0;
      for (const auto& [shape, algorithm] : algorithms) lacks += algorithm == kNoAlgorithm ? 1 : 0;
      EXPECT_GT(lacks, 0) << epilogue;
      EXPECT_GT(notes.fallbacks()[static_cast<size_t>(what)], 0) << epilogue;
    }
  }
}
#endif

}  // namespace
}  // namespace tercio::kernels::cuda
