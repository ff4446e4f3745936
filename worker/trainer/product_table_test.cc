#include "worker/trainer/product_table.h"

#include <memory>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gtest/gtest.h"
#include "kernels/cuda/scratch.h"

namespace tercio::trainer {
namespace {

using kernels::Format;
using kernels::cuda::ProductAlgorithm;
using kernels::cuda::ProductAlgorithms;
using kernels::cuda::ProductEpilogue;
using kernels::cuda::ProductKind;
using kernels::cuda::ProductShape;

ProductShape ShapeOf(int64_t m) {
  return {ProductKind::kWeightGradient,
          Format::kBfloat16,
          Format::kFloat32,
          m,
          3,
          5,
          ProductEpilogue::kBiasGradient,
          true,
          true,
          true,
          {16, 8, 4}};
}
constexpr ProductAlgorithm kAlgorithm = {{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}, 77};
constexpr int64_t kWorkspace = 77;

TEST(ProductTable, ComesBackAsItWas) {
  v1::ProductTable table;
  AddProduct(ShapeOf(1), kAlgorithm, &table);
  AddProduct(ShapeOf(2), kernels::cuda::kNoAlgorithm, &table);
  AddProduct(ShapeOf(3), kernels::cuda::kSeparateEpilogue, &table);
  const ProductShape scaled{.kind = ProductKind::kScaled,
                            .operands = Format::kE5m2,
                            .result = Format::kFloat32,
                            .m = 16,
                            .n = 32,
                            .k = 48};
  ProductShape fast = scaled;
  fast.kind = ProductKind::kScaledFast;
  fast.operands = Format::kE4m3;
  AddProduct(scaled, kAlgorithm, &table);
  AddProduct(fast, kAlgorithm, &table);
  ProductAlgorithms back;
  TakeProducts(table, kWorkspace, &back);
  EXPECT_EQ(back, (ProductAlgorithms{{ShapeOf(1), kAlgorithm},
                                     {ShapeOf(2), kernels::cuda::kNoAlgorithm},
                                     {ShapeOf(3), kernels::cuda::kSeparateEpilogue},
                                     {scaled, kAlgorithm},
                                     {fast, kAlgorithm}}));
  // What is there stays.
  back[ShapeOf(1)] = {};
  TakeProducts(table, kWorkspace, &back);
  EXPECT_EQ(back[ShapeOf(1)], ProductAlgorithm());
}

TEST(ProductTable, NonsenseIsLeftOut) {
  v1::ProductTable good;
  AddProduct(ShapeOf(1), kAlgorithm, &good);
  v1::ProductTable table;
  for (int i = 0; i < 6; ++i) *table.add_algorithms() = good.algorithms(0);
  table.mutable_algorithms(0)->set_kind(5);
  table.mutable_algorithms(1)->set_operands(-1);
  table.mutable_algorithms(2)->set_epilogue(99);
  table.mutable_algorithms(3)->clear_words();
  table.mutable_algorithms(4)->add_alignment(1);
  table.mutable_algorithms(5)->set_result(3);
  ProductAlgorithms back;
  TakeProducts(table, kWorkspace, &back);
  EXPECT_TRUE(back.empty());
}

TEST(ProductTable, WhatNeedsMoreWorkspaceIsLeftOut) {
  v1::ProductTable table;
  AddProduct(ShapeOf(1), kAlgorithm, &table);
  AddProduct(ShapeOf(2), kernels::cuda::kNoAlgorithm, &table);
  ProductAlgorithms back;
  TakeProducts(table, kAlgorithm.workspace_bytes - 1, &back);
  EXPECT_EQ(back, (ProductAlgorithms{{ShapeOf(2), kernels::cuda::kNoAlgorithm}}));
}

// As an older version has left it: that entry would keep a better one out for ever.
TEST(ProductCache, ReplacesWhatNeedsTooMuchWorkspace) {
  const TempDir dir;
  ASSERT_TRUE(MakeDirectories(dir.path() + "/products").ok());
  const ProductCache cache(dir.path() + "/products", "GPU", "lib");
  ProductAlgorithm greedy = kAlgorithm;
  greedy.workspace_bytes = kernels::cuda::kProductWorkspaceBytes + 1;
  v1::ProductTable old = cache.Read();
  AddProduct(ShapeOf(1), greedy, &old);
  ASSERT_TRUE(WriteFileDurably(dir.path() + "/products/GPU-lib.pb", old.SerializeAsString()).ok());
  v1::ProductTable table;
  AddProduct(ShapeOf(1), kAlgorithm, &table);
  ASSERT_TRUE(cache.Add(table).ok());
  ASSERT_EQ(cache.Read().algorithms_size(), 1);
  ProductAlgorithms back;
  TakeProducts(cache.Read(), kWorkspace, &back);
  EXPECT_EQ(back, (ProductAlgorithms{{ShapeOf(1), kAlgorithm}}));
}

TEST(ProductCache, OneFileForEachGpuAndLibrary) {
  const TempDir dir;
  const std::string path = dir.path() + "/products";
  const ProductCache cache(path, "GPU/1", "lib 2");
  EXPECT_EQ(cache.Read().gpu(), "GPU/1");
  EXPECT_EQ(cache.Read().algorithms_size(), 0);
  v1::ProductTable table;
  AddProduct(ShapeOf(1), kAlgorithm, &table);
  ASSERT_TRUE(cache.Add(table).ok());
  AddProduct(ShapeOf(2), kAlgorithm, &table);
  ASSERT_TRUE(cache.Add(table).ok());
  EXPECT_EQ(cache.Read().algorithms_size(), 2);
  EXPECT_EQ(ProductCache(path, "GPU/1", "lib 3").Read().algorithms_size(), 0);
  EXPECT_EQ(ProductCache(path, "GPU-1", "lib 2").Read().algorithms_size(), 0);  // the same file
  ASSERT_TRUE(WriteFileDurably(path + "/GPU-1-lib-2.pb", "damaged").ok());
  EXPECT_EQ(cache.Read().algorithms_size(), 0);
  ASSERT_TRUE(cache.Add(table).ok());
  EXPECT_EQ(cache.Read().algorithms_size(), 2);
}

}  // namespace
}  // namespace tercio::trainer
