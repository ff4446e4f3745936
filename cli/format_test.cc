#include "cli/format.h"

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

TEST(Table, PadsByCharactersAndMovesNoCursor) {
  EXPECT_EQ(Table({{"node-\xc3\xbc", "ready"}, {"node-b", "a\x1b[2J\n"}}),
            "node-\xc3\xbc  ready\n"
            "node-b  a?[2J?\n");
}

}  // namespace
}  // namespace tercio::cli
