#include "worker/blocks/rotary_table.h"

#include <cmath>
#include <cstddef>

#include "gtest/gtest.h"

namespace tercio::blocks {
namespace {

v1::ModelSpec Model() {
  v1::ModelSpec model;
  model.set_context(40);
  model.set_hidden(48);
  model.set_heads(4);
  return model;
}

// Half cosines, then half sines of position * theta^(-2i / turned).
void ExpectAngles(const v1::ModelSpec& model, int turned, double theta) {
  const std::vector<float> table = RotaryTable(model);
  ASSERT_EQ(table.size(), static_cast<size_t>(model.context() * turned));
  for (int position = 0; position < model.context(); ++position) {
    for (int i = 0; i < turned / 2; ++i) {
      const double angle = position * std::pow(theta, -2.0 * i / turned);
      const size_t at = static_cast<size_t>(position * turned + i);
      EXPECT_NEAR(table[at], std::cos(angle), 1e-5) << position << " " << i;
      EXPECT_NEAR(table[at + static_cast<size_t>(turned / 2)], std::sin(angle), 1e-5);
    }
  }
}

TEST(RotaryTable, HasTheAnglesOfAWholeHead) { ExpectAngles(Model(), 12, 10000); }

TEST(RotaryTable, OfHeadsThatAreNoShareOfTheModel) {
  v1::ModelSpec model = Model();
  model.set_head_dim(16);
  model.set_rope_theta(500000);
  ExpectAngles(model, 16, 500000);
}

TEST(RotaryTable, OfTheChannelsThatAreTurned) {
  v1::ModelSpec model = Model();
  model.set_head_dim(16);
  model.set_rotary_dim(4);
  ExpectAngles(model, 4, 10000);
}

}  // namespace
}  // namespace tercio::blocks
