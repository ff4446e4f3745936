// Values in 8 bits, their scales and the products of them: on CUDA against the CPU's. What is
// quantized has the same bits; products are within 2e-6 of the largest result, as others are
// (products_test.cc), and a step of their format.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "kernels/cuda/product_timing.h"
#include "kernels/cuda/testing/both_backends.h"

#ifdef TERCIO_CUDA_EMULATED
#include "emulation/control.h"
#endif

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kE4m3, Format::kE5m2};
constexpr Format kSixteen[] = {Format::kBfloat16, Format::kFloat16};

class EightBitsTest : public BothBackendsTest {
 protected:
  void SetUp() override {
#ifdef TERCIO_CUDA_EMULATED
    emulation::Settings settings;
    settings.major = 9;
    emulation::Configure(settings);
#endif
    BothBackendsTest::SetUp();
    int major = 0;
    int minor = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    ASSERT_EQ(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
    if (10 * major + minor < 89) GTEST_SKIP() << "the device has no products of 8 bits";
  }
};

TEST_F(EightBitsTest, Quantizes) {
  struct Case {
    int64_t rows, columns;
    bool plain, transposed, largest;
  };
  const Case cases[] = {{1, 1, true, true, true},     {64, 64, true, true, true},
                        {65, 130, true, true, true},  {48, 208, false, true, false},
                        {17, 16, true, false, true},  {128, 80, true, true, false},
                        {300, 33, false, true, true}, {16, 1008, true, true, true}};
  for (const Format stored : kSixteen) {
    for (const Format format : kFormats) {
      for (const auto& [rows, columns, has_plain, has_transposed, has_largest] : cases) {
        Begin(stored, "quantize " + std::to_string(rows) + " x " + std::to_string(columns));
        const int x = AddValues("x", rows * columns, 0, 30);
        const int scale = AddScale("scale", format == Format::kE4m3 ? 0.25f : 128.0f);
        const int plain = has_plain ? AddEightBits("plain", format, rows * columns) : Bound::kNone;
        const int transposed =
            has_transposed ? AddEightBits("transposed", format, rows * columns) : Bound::kNone;
        const int largest = has_largest ? AddFloats("largest", 1) : Bound::kNone;
        if (has_largest) At(largest).data = {0.5};
        Check([&, rows = rows, columns = columns](Ops& ops, const Bound& t) {
          ops.Quantize({.x = t.values(x),
                        .plain = t.eight_bits(plain, format),
                        .transposed = t.eight_bits(transposed, format),
                        .scale = t.scale(scale),
                        .largest = t.floats(largest),
                        .rows = rows,
                        .columns = columns});
        });
      }
    }
  }
}

// Every bf16 value: ties, subnormal numbers, what is too large, infinite or none.
TEST_F(EightBitsTest, RoundsEveryNumber) {
  for (const Format format : kFormats) {
    Begin(Format::kBfloat16, "rounding");
    const int x = AddValues("x", 65536);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const uint32_t wide = bits << 16;
      float value = 0;
      std::memcpy(&value, &wide, sizeof(value));
      At(x).data[bits] = value;
    }
    const int scale = AddScale("scale", 2);
    const int plain = AddEightBits("plain", format, 65536);
    const int transposed = AddEightBits("transposed", format, 65536);
    const int largest = AddFloats("largest", 1);
    At(largest).data = {0};
    const auto seen = Check([&](Ops& ops, const Bound& t) {
      ops.Quantize({.x = t.values(x),
                    .plain = t.eight_bits(plain, format),
                    .transposed = t.eight_bits(transposed, format),
                    .scale = t.scale(scale),
                    .largest = t.floats(largest),
                    .rows = 256,
                    .columns = 256});
    });
    EXPECT_TRUE(std::isinf(seen[static_cast<size_t>(largest)].data[0]));
    EXPECT_TRUE(std::isnan(seen[static_cast<size_t>(plain)].data[0x7f80]));  // the code of infinity
  }
}

TEST_F(EightBitsTest, ChoosesScales) {
  for (const Format stored : kSixteen) {
    for (const Format format : kFormats) {
      for (const int64_t count : {1, 15, 16, 257, 70001}) {
        for (const double size : {0.0, 1e-4, 1.0, 900.0}) {
          Begin(stored, "scale of " + std::to_string(count));
          const int x = AddValues("x", count, 0, size);
          if (count == 257) At(x).data[5] = std::numeric_limits<double>::quiet_NaN();
          const int scale = AddScale("scale", 3);
          Check([&](Ops& ops, const Bound& t) {
            ops.ChooseScale(
                {.x = t.values(x), .count = count, .format = format, .scale = t.scale(scale)});
          });
        }
      }
    }
  }
}

TEST_F(EightBitsTest, Multiplies) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const Format stored : kSixteen) {
    for (const Format format : kFormats) {
      for (const auto& [m, n, k] : {Shape{16, 16, 16}, Shape{48, 32, 64}, Shape{16, 80, 272}}) {
        for (const bool accumulate : {false, true}) {
          Begin(stored, "scaled product " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                            std::to_string(k));
          const int a = AddEightBits("a", format, m * k);
          const int b = AddEightBits("b", Format::kE4m3, n * k);
          const int a_scale = AddScale("scale of a", 4);
          const int b_scale = AddScale("scale of b", 0.5f);
          const int bias = accumulate ? Bound::kNone : AddValues("bias", n);
          const int y = AddValues("y", m * n);
          const int dw = AddFloats("dw", m * n);
          Near(2e-6 * (1 + std::sqrt(static_cast<double>(k))), {y, dw});
          Check(
              [&, m = m, n = n, k = k](Ops& ops, const Bound& t) {
                ScaledMatmulArgs args{.a = t.eight_bits(a, format),
                                      .b = t.eight_bits(b, Format::kE4m3),
                                      .a_scale = t.scale(a_scale),
                                      .b_scale = t.scale(b_scale),
                                      .bias = t.values(bias),
                                      .c = t.values(y),
                                      .m = m,
                                      .n = n,
                                      .k = k,
                                      .accumulate = accumulate};
                ops.ScaledMatmul(args);
                args.bias = nullptr;
                args.c = t.floats(dw);
                ops.ScaledMatmul(args);
              },
              {.unaligned = false});
        }
      }
    }
  }
}

// Fast accumulation shortens a sum where it is asked for, and nowhere else: one product of 448 x
// 448 leaves 63 of 1 x 1 few bits.
TEST_F(EightBitsTest, AccumulatesFastOnlyWhereAsked) {
  constexpr int64_t kSize = 16, kDepth = 64;
  Begin(Format::kBfloat16, "fast accumulation");
  const int a = AddEightBits("a", Format::kE4m3, kSize * kDepth);
  const int b = AddEightBits("b", Format::kE4m3, kSize * kDepth);
  for (const int id : {a, b}) {
    for (size_t i = 0; i < At(id).data.size(); ++i) {
      At(id).data[i] = static_cast<int64_t>(i) % kDepth == 0 ? 448 : 1;
    }
  }
  const int scale = AddScale("scale", 1);
  const int exact = AddFloats("exact", kSize * kSize);
  const int fast = AddFloats("fast", kSize * kSize);
  Near(1.0 / 1024, {fast});
  const auto seen = Check(
      [&](Ops& ops, const Bound& t) {
        ScaledMatmulArgs args{.a = t.eight_bits(a, Format::kE4m3),
                              .b = t.eight_bits(b, Format::kE4m3),
                              .a_scale = t.scale(scale),
                              .b_scale = t.scale(scale),
                              .bias = nullptr,
                              .c = t.floats(exact),
                              .m = kSize,
                              .n = kSize,
                              .k = kDepth};
        ops.ScaledMatmul(args);
        args.c = t.floats(fast);
        args.fast_accumulation = true;
        ops.ScaledMatmul(args);
      },
      {.unaligned = false});
  for (const double sum : seen[static_cast<size_t>(exact)].data) EXPECT_EQ(sum, 448 * 448 + 63);
#ifdef TERCIO_CUDA_EMULATED
  for (const double sum : seen[static_cast<size_t>(fast)].data) EXPECT_NE(sum, 448 * 448 + 63);
#endif
}

// The pieces of an FP8 linear layer together: gradients from transposed factors.
TEST_F(EightBitsTest, ProductsOfWhatWasQuantized) {
  constexpr int64_t kRows = 48, kOut = 32, kIn = 64;
  Begin(Format::kBfloat16, "a linear layer");
  const int x = AddValues("x", kRows * kIn);
  const int dy = AddValues("dy", kRows * kOut, 0, 1e-4);
  const int x8 = AddEightBits("x transposed", Format::kE4m3, kRows * kIn);
  const int dy8 = AddEightBits("dy transposed", Format::kE5m2, kRows * kOut);
  const int x_scale = AddScale("scale of x", 1);
  const int dy_scale = AddScale("scale of dy", 1);
  const int dw = AddFloats("dw", kOut * kIn);
  Near(2e-6 * (1 + std::sqrt(static_cast<double>(kRows))), {dw});
  const auto seen = Check(
      [&](Ops& ops, const Bound& t) {
        ops.ChooseScale({.x = t.values(x),
                         .count = kRows * kIn,
                         .format = Format::kE4m3,
                         .scale = t.scale(x_scale)});
        ops.ChooseScale({.x = t.values(dy),
                         .count = kRows * kOut,
                         .format = Format::kE5m2,
                         .scale = t.scale(dy_scale)});
        ops.Quantize({.x = t.values(x),
                      .plain = nullptr,
                      .transposed = t.eight_bits(x8, Format::kE4m3),
                      .scale = t.scale(x_scale),
                      .largest = nullptr,
                      .rows = kRows,
                      .columns = kIn});
        ops.Quantize({.x = t.values(dy),
                      .plain = nullptr,
                      .transposed = t.eight_bits(dy8, Format::kE5m2),
                      .scale = t.scale(dy_scale),
                      .largest = nullptr,
                      .rows = kRows,
                      .columns = kOut});
        ops.ScaledMatmul({.a = t.eight_bits(dy8, Format::kE5m2),
                          .b = t.eight_bits(x8, Format::kE4m3),
                          .a_scale = t.scale(dy_scale),
                          .b_scale = t.scale(x_scale),
                          .bias = nullptr,
                          .c = t.floats(dw),
                          .m = kOut,
                          .n = kIn,
                          .k = kRows});
      },
      {.unaligned = false});
  // Error against the values before they were rounded: 2^-3 (E5M2) and 2^-4 of each factor, as a
  // random walk.
  double error = 0;
  double size = 0;
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    double exact = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      exact += At(dy).data[static_cast<size_t>(row * kOut + i / kIn)] *
               At(x).data[static_cast<size_t>(row * kIn + i % kIn)];
    }
    error += std::pow(seen[static_cast<size_t>(dw)].data[static_cast<size_t>(i)] - exact, 2);
    size += exact * exact;
  }
  EXPECT_LT(std::sqrt(error / size), 0.1);
  EXPECT_GT(std::sqrt(error / size), 1e-3);
}

// Chains that end in 8 bits, and the number of kernels in which they run.
struct ChainTensors {
  int x, branch, weight, bias, sum, y, mean, rstd, h, plain, transposed, scale, largest;
};
constexpr int64_t kRows = 80, kColumns = 144;

ResidualArgs ResidualOf(const Bound& t, const ChainTensors& ids) {
  return {.residual = t.values(ids.x),
          .branch = t.values(ids.branch),
          .bias = t.values(ids.bias),
          .out = t.values(ids.sum),
          .rows = kRows,
          .columns = kColumns,
          .dropout = {}};
}
LayerNormArgs NormOf(const Bound& t, const ChainTensors& ids) {
  return {.x = t.values(ids.x),
          .weight = t.values(ids.weight),
          .bias = t.values(ids.bias),
          .y = t.values(ids.y),
          .mean = t.floats(ids.mean),
          .rstd = t.floats(ids.rstd),
          .rows = kRows,
          .columns = kColumns};
}

class ChainsOfEightBits : public EightBitsTest {
 protected:
  using Make = std::function<Chain(const Bound& t, const ChainTensors& ids)>;

  ChainTensors AddTensors(Format format, bool has_transposed) {
    ChainTensors ids{};
    ids.x = AddValues("x", kRows * kColumns, kColumns, 2);
    ids.branch = AddValues("branch", kRows * kColumns);
    ids.weight = AddValues("weight", kColumns);
    ids.bias = AddValues("bias", kColumns);
    ids.sum = AddValues("sum", kRows * kColumns);
    ids.y = AddValues("y", kRows * kColumns);
    ids.mean = AddFloats("mean", kRows);
    ids.rstd = AddFloats("rstd", kRows);
    ids.h = AddValues("h", kRows * 2 * kColumns, 0, 2);
    ids.plain = AddEightBits("plain", format, kRows * kColumns);
    ids.transposed =
        has_transposed ? AddEightBits("transposed", format, kRows * kColumns) : Bound::kNone;
    ids.scale = AddScale("scale", 32);
    ids.largest = AddFloats("largest", 1);
    At(ids.largest).data = {0.25};
    return ids;
  }

  // The chain as the backend runs it has the bits of its operations one by one.
  void ExpectOnePass(const std::string& name, Format format, const Make& make) {
    Begin(Format::kBfloat16, name);
    const ChainTensors ids = AddTensors(format, format == Format::kE5m2);
    const auto call = [&](Ops& ops, const Bound& t, bool joined) {
      Chain chain = make(t, ids);
      const ConstValues x = chain.norm ? chain.norm->y : t.values(ids.y);
      chain.quantize = QuantizeArgs{.x = x,
                                    .plain = t.eight_bits(ids.plain, format),
                                    .transposed = t.eight_bits(ids.transposed, format),
                                    .scale = t.scale(ids.scale),
                                    .largest = t.floats(ids.largest),
                                    .rows = kRows,
                                    .columns = kColumns};
      joined ? ops.RunChain(chain) : ops.Ops::RunChain(chain);
    };
    for (const int64_t offset : {0, 1}) {
      SCOPED_TRACE(offset);
      const auto apart =
          RunOnDevice([&](Ops& ops, const Bound& t) { call(ops, t, false); }, offset);
#ifdef TERCIO_CUDA_EMULATED
      const int64_t before = emulation::GetCounts().kernels;
#endif
      EXPECT_EQ(RunOnDevice([&](Ops& ops, const Bound& t) { call(ops, t, true); }, offset), apart);
#ifdef TERCIO_CUDA_EMULATED
      // At addresses that are not aligned the values are rounded by a kernel of its own.
      EXPECT_EQ(emulation::GetCounts().kernels - before, offset == 0 ? 1 : 2);
#endif
      SameInEveryOrder([&] {
        return RunOnDevice([&](Ops& ops, const Bound& t) { call(ops, t, true); }, offset);
      });
    }
  }
};

TEST_F(ChainsOfEightBits, Norms) {
  for (const bool rms : {false, true}) {
    ExpectOnePass("norm", Format::kE4m3, [rms](const Bound& t, const ChainTensors& ids) {
      Chain chain{.norm = NormOf(t, ids)};
      chain.norm->rms = chain.norm->unit_offset = rms;
      return chain;
    });
    ExpectOnePass("residual and norm", Format::kE4m3,
                  [rms](const Bound& t, const ChainTensors& ids) {
                    Chain chain{.residual = ResidualOf(t, ids), .norm = NormOf(t, ids)};
                    chain.norm->rms = chain.norm->unit_offset = rms;
                    return chain;
                  });
  }
}

TEST_F(ChainsOfEightBits, Activations) {
  for (const Activation function :
       {Activation::kGeluTanh, Activation::kGelu, Activation::kRelu, Activation::kSilu}) {
    ExpectOnePass("activation", Format::kE4m3, [=](const Bound& t, const ChainTensors& ids) {
      return Chain{.activation = ActivationArgs{.h = t.values(ids.h),
                                                .g = t.values(ids.y),
                                                .rows = kRows,
                                                .columns = kColumns,
                                                .function = function}};
    });
    ExpectOnePass("its gradient", Format::kE5m2, [=](const Bound& t, const ChainTensors& ids) {
      return Chain{.activation_gradient = ActivationBackwardArgs{.dg = t.values(ids.x),
                                                                 .h = t.values(ids.h),
                                                                 .dh = t.values(ids.y),
                                                                 .rows = kRows,
                                                                 .columns = kColumns,
                                                                 .function = function}};
    });
    ExpectOnePass("gated", Format::kE4m3, [=](const Bound& t, const ChainTensors& ids) {
      return Chain{.gated = GatedArgs{.h = t.values(ids.h),
                                      .g = t.values(ids.y),
                                      .rows = kRows,
                                      .columns = kColumns,
                                      .function = function}};
    });
  }
}

// Rows that a kernel does not take whole, and formats that it does not write, are rounded apart.
TEST_F(ChainsOfEightBits, WhatDoesNotFitIsRoundedApart) {
  Begin(Format::kFloat16, "gelu of fp16");
  const int h = AddValues("h", 48 * 32);
  const int g = AddValues("g", 48 * 32);
  const int plain = AddEightBits("plain", Format::kE4m3, 48 * 32);
  const int scale = AddScale("scale", 8);
  const int largest = AddFloats("largest", 1);
  Near(1e-3, {g, largest});
  Near(1.0 / 8, {plain});
  Check([&](Ops& ops, const Bound& t) {
    ops.RunChain({.activation =
                      ActivationArgs{.h = t.values(h), .g = t.values(g), .rows = 48, .columns = 32},
                  .quantize = QuantizeArgs{.x = t.values(g),
                                           .plain = t.eight_bits(plain, Format::kE4m3),
                                           .transposed = nullptr,
                                           .scale = t.scale(scale),
                                           .largest = t.floats(largest),
                                           .rows = 48,
                                           .columns = 32}});
  });
}

// Timing knows scaled products, and what it chose is taken.
TEST_F(EightBitsTest, AreTimed) {
  std::vector<ProductShape> shapes;
  for (const Format operands : kFormats) {
    ProductShape shape{
        .kind = operands == Format::kE4m3 ? ProductKind::kScaledFast : ProductKind::kScaled,
        .operands = operands,
        .result = Format::kBfloat16,
        .m = 32,
        .n = 48,
        .k = 64};
    shape.bias = operands == Format::kE4m3;
    shapes.push_back(shape);
  }
  DeviceBuffer<unsigned char> operands(BytesForTiming(shapes));
  DeviceBuffer<unsigned char> workspace(1 << 20);
  ProductAlgorithms table;
  OperationErrors errors;
  TimeProducts(shapes,
               {reinterpret_cast<std::byte*>(operands.data()),
                reinterpret_cast<std::byte*>(workspace.data()), 1 << 20},
               stream_, &table, &errors);
  EXPECT_FALSE(errors.first());
  EXPECT_EQ(table.size(), shapes.size());
  for (const ProductShape& shape : shapes) EXPECT_TRUE(table.contains(shape));
}

}  // namespace
}  // namespace tercio::kernels::cuda
