#include "cli/commands/layout_filter.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

v1::Layout Some() {
  v1::Layout layout;
  layout.set_tensor(8);
  layout.set_pipeline(4);
  layout.set_data(16);
  layout.set_micro_batch(2);
  layout.set_zero_stage(1);
  layout.set_shard(4);
  layout.set_recompute(v1::RECOMPUTE_FULL);
  layout.set_sequence_parallel(true);
  return layout;
}

TEST(LayoutFilter, WhatIsNamedHasToBeEqual) {
  for (const char* text : {"8x4x16", "*x4x*", "8x4x16,micro_batch=2,virtual_pipeline=1",
                           "*x*x*,recompute=full,sequence_parallel=true,zero_stage=1,shard=4"}) {
    const auto filter = ParseLayoutFilter(text);
    ASSERT_TRUE(filter.ok()) << filter.status();
    EXPECT_TRUE((*filter)(Some())) << text;
  }
  for (const char* text :
       {"4x4x16", "8x4x16,micro_batch=1", "*x*x*,recompute=none", "8x4x16,sequence_parallel=false",
        "8x4x16,zero_stage=0", "8x4x16,shard=16"}) {
    const auto filter = ParseLayoutFilter(text);
    ASSERT_TRUE(filter.ok()) << filter.status();
    EXPECT_FALSE((*filter)(Some())) << text;
  }
}

TEST(LayoutFilter, FaultsNameWhatIsWrong) {
  EXPECT_THAT(std::string(ParseLayoutFilter("8x4").status().message()),
              HasSubstr("layout '8x4': no three degrees; expected TENSORxPIPELINExDATA"));
  EXPECT_THAT(std::string(ParseLayoutFilter("8x0x1").status().message()), HasSubstr("'0'"));
  EXPECT_THAT(std::string(ParseLayoutFilter("8x4x1,zero=1").status().message()),
              HasSubstr("no key 'zero'"));
  EXPECT_FALSE(ParseLayoutFilter("8x4x1,micro_batch=two").ok());
  EXPECT_FALSE(ParseLayoutFilter("8x4x1,recompute=some").ok());
  EXPECT_FALSE(ParseLayoutFilter("").ok());
}

}  // namespace
}  // namespace tercio::cli
