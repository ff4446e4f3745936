#include "model/architectures/registry.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::model {
namespace {

TEST(Sections, EveryArchitectureHasOne) {
  const google::protobuf::EnumDescriptor* set = v1::Architecture_descriptor();
  EXPECT_EQ(AllArchitectures().size() + 1, static_cast<size_t>(set->value_count()));
  for (int i = 1; i < set->value_count(); ++i) {
    const auto architecture = static_cast<v1::Architecture>(set->value(i)->number());
    EXPECT_EQ(FactsOf(architecture).architecture, architecture);
  }
  EXPECT_EQ(FactsOf(v1::ARCHITECTURE_UNSPECIFIED).architecture, v1::ARCHITECTURE_GPT2);
  EXPECT_EQ(FactsOf(static_cast<v1::Architecture>(1000)).architecture, v1::ARCHITECTURE_GPT2);
}

// A preset has what its architecture can have, and sizes that fit together.
TEST(Sections, PresetsArePossible) {
  std::set<std::string> names;
  for (const ArchitectureFacts* facts : AllArchitectures()) {
    EXPECT_FALSE(facts->presets.empty());
    for (const Preset& preset : facts->presets) {
      SCOPED_TRACE(preset.name);
      EXPECT_TRUE(names.insert(preset.name).second);
      const auto found = FindPreset(preset.name);
      ASSERT_TRUE(found.has_value());
      const v1::ModelSpec model = ModelOf(*found);
      EXPECT_EQ(model.architecture(), facts->architecture);
      EXPECT_EQ(model.bias(), facts->bias);
      EXPECT_EQ(model.rope_theta() > 0, facts->rope_theta > 0);
      EXPECT_TRUE(facts->free_head || model.untied_head() != facts->tied_head);
      EXPECT_EQ(model.heads() % model.kv_heads(), 0);
      EXPECT_TRUE(facts->grouped_keys || model.kv_heads() == model.heads());
      EXPECT_TRUE(model.head_dim() > 0 || model.hidden() % model.heads() == 0);
      const int head = model.head_dim() > 0 ? model.head_dim() : model.hidden() / model.heads();
      EXPECT_LE(head, 256);
      EXPECT_LE(model.rotary_dim(), head);
      EXPECT_EQ(model.rotary_dim() % 2, 0);
      EXPECT_TRUE(facts->Has("head_dim") || model.head_dim() == 0);
      EXPECT_TRUE(facts->Has("rotary_dim") || model.rotary_dim() == 0);
      EXPECT_TRUE(facts->Has("sliding_window") || model.sliding_window() == 0);
      EXPECT_TRUE(facts->Has("activation") || model.activation() == v1::ACTIVATION_UNSPECIFIED);
      // The default stays unset.
      EXPECT_NE(model.activation(), facts->activation);
    }
  }
  EXPECT_FALSE(FindPreset("gpt5").has_value());
}

TEST(Sections, WidthsFollowFromTheOthers) {
  v1::ModelSpec model;
  model.set_hidden(4096);
  EXPECT_EQ(UsualFfnHidden(model), 16384);
  model.set_architecture(v1::ARCHITECTURE_LLAMA);
  EXPECT_EQ(UsualFfnHidden(model), 10944);
  model.set_hidden(48);
  EXPECT_EQ(UsualFfnHidden(model), 128);
}

}  // namespace
}  // namespace tercio::model
