#include "plan/planner/cost/op_time.h"

#include "gtest/gtest.h"

namespace tercio::plan::cost {
namespace {

OpTime A100() { return {*AcceleratorOf("A100-80"), Constants{}, Factor::k16}; }

double Share(const ProductSize& size) {
  const double flops = 2.0 * static_cast<double>(size.m) * static_cast<double>(size.n) *
                       static_cast<double>(size.k) * static_cast<double>(size.batch);
  return flops / A100().Product(size) / 312e12;
}

TEST(OpTime, LargeProductsReachMostOfThePeak) {
  EXPECT_GT(Share({8192, 8192, 8192}), 0.7);
  EXPECT_LT(Share({8192, 8192, 8192}), 0.87);
}

TEST(OpTime, SmallInnerDimensionsAndFewTilesAreSlower) {
  EXPECT_LT(Share({8192, 8192, 64}), 0.6 * Share({8192, 8192, 8192}));
  EXPECT_LT(Share({256, 256, 8192}), 0.5 * Share({8192, 8192, 8192}));
  // One more row than fills the processors begins another wave of tiles.
  const OpTime op = A100();
  EXPECT_GT(op.Product({256 * 108 + 1, 128, 4096}), 1.2 * op.Product({256 * 108, 128, 4096}));
}

TEST(OpTime, RowsThatAreNoWholeVectorsMissTheTensorCores) {
  const OpTime op = A100();
  EXPECT_GT(op.Product({2048, 2048, 108, 64}), 3 * op.Product({2048, 2048, 112, 64}));
}

TEST(OpTime, ThinProductsAreBoundByMemory) {
  const OpTime op = A100();
  const double seconds = op.Product({8, 8192, 8192});
  EXPECT_GE(seconds, 2 * 8192.0 * 8192.0 / 2.04e12);
}

TEST(OpTime, CpusHaveNoTiles) {
  Accelerator cpu = *AcceleratorOf("A100-80");
  cpu.tiles_products = false;
  const OpTime op(cpu, Constants{}, Factor::k16);
  EXPECT_LT(op.Product({40, 40, 64, 4096}), 0.8 * A100().Product({40, 40, 64, 4096}));
}

TEST(OpTime, EightBitsAreFasterWhereThereAreUnits) {
  const OpTime hopper(*AcceleratorOf("H100"), Constants{}, Factor::k16);
  const ProductSize size{8192, 8192, 8192};
  EXPECT_LT(hopper.Product(size, Factor::k8), 0.65 * hopper.Product(size));
  const OpTime ampere = A100();
  EXPECT_NEAR(ampere.Product(size, Factor::k8), ampere.Product(size), 1e-9);
}

TEST(OpTime, AttentionInOneKernelSavesTrafficAndSkipsWhatIsMasked) {
  const OpTime op = A100();
  const AttentionSize size{
      .sequences = 4, .queries = 2048, .keys = 2048, .heads = 8, .key_heads = 8, .head_dim = 128};
  const Recipe& stored = *FindRecipe("megatron2021");
  Recipe flash = *FindRecipe("megatron-core");
  EXPECT_LT(op.AttentionForward(size, flash), 0.5 * op.AttentionForward(size, stored));
  EXPECT_GT(op.AttentionBackward(size, flash), 2 * op.AttentionForward(size, flash));
  const double skipping = op.AttentionForward(size, flash);
  flash.skips_masked = false;
  EXPECT_NEAR(op.AttentionForward(size, flash), 2 * skipping, 0.3 * skipping);
  AttentionSize window = size;
  window.window = 256;
  flash.skips_masked = true;
  EXPECT_LT(op.AttentionForward(window, flash), 0.5 * skipping);
}

TEST(OpTime, KernelsOfEarlierGenerationsLeaveHopperIdle) {
  const OpTime hopper(*AcceleratorOf("H100"), Constants{}, Factor::k16);
  const AttentionSize size{
      .sequences = 1, .queries = 8192, .keys = 8192, .heads = 8, .key_heads = 8, .head_dim = 128};
  Recipe recipe = *FindRecipe("bridge");
  const double new_kernel = hopper.AttentionForward(size, recipe);
  recipe.attention = AttentionKernel::kFlash2;
  EXPECT_GT(hopper.AttentionForward(size, recipe), 1.5 * new_kernel);
}

}  // namespace
}  // namespace tercio::plan::cost
