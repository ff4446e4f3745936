// Holders of tensors against plans that were worked out by hand.
#include "plan/tensor_places.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

v1::ModelSpec Model() {
  v1::ModelSpec model;
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_layers(2);
  model.set_hidden(8);
  model.set_heads(2);
  model.set_ffn_hidden(32);
  model.set_context(4);
  model.set_bias(true);
  model.set_vocab_size(33);
  return model;
}

v1::Layout Layout(int tensor, int pipeline, int data) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(pipeline);
  layout.set_data(data);
  return layout;
}

std::map<std::string, TensorPlaces> ByName(const v1::Layout& layout) {
  std::map<std::string, TensorPlaces> found;
  for (TensorPlaces& places : PlacesOfTensors(Model(), layout)) {
    const std::string name = places.tensor.name;
    found.emplace(name, std::move(places));
  }
  return found;
}

// tensor 2 x pipeline 2 x data 2: ranks 0 to 3 are the first stage, even ranks tensor rank 0.
TEST(TensorPlaces, LayersGoToStagesAndCutsToTensorRanks) {
  const auto all = ByName(Layout(2, 2, 2));
  const TensorPlaces& query = all.at("layers.1.attention.query.weight");
  ASSERT_EQ(query.parts.size(), 2u);
  EXPECT_EQ(query.parts[0].ranks, (std::vector<int>{4, 6}));
  EXPECT_EQ(query.parts[0].shard.row_end, 4);
  EXPECT_EQ(query.parts[1].ranks, (std::vector<int>{5, 7}));
  EXPECT_EQ(query.parts[1].shard.row_begin, 4);
  const TensorPlaces& down = all.at("layers.0.mlp.down.weight");
  ASSERT_EQ(down.parts.size(), 2u);
  EXPECT_EQ(down.parts[1].shard.column_begin, 16);
  EXPECT_EQ(down.parts[1].ranks, (std::vector<int>{1, 3}));
  const TensorPlaces& norm = all.at("final_norm.weight");
  ASSERT_EQ(norm.parts.size(), 1u);
  EXPECT_EQ(norm.parts[0].ranks, (std::vector<int>{4, 5, 6, 7}));
}

// The vocabulary is padded to 64 rows: the second rank has one logical row.
TEST(TensorPlaces, ATiedTableIsHeldByTheFirstAndTheLastStage) {
  const TensorPlaces table = ByName(Layout(2, 2, 1)).at("embedding.token.weight");
  ASSERT_EQ(table.parts.size(), 2u);
  EXPECT_EQ(table.parts[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(table.parts[1].ranks, (std::vector<int>{1, 3}));
  EXPECT_EQ(table.parts[1].shard.row_begin, 32);
  EXPECT_EQ(table.parts[1].shard.row_end, 33);
  const TensorPlaces alone = ByName(Layout(1, 1, 2)).at("embedding.token.weight");
  ASSERT_EQ(alone.parts.size(), 1u);
  EXPECT_EQ(alone.parts[0].ranks, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace tercio::plan
