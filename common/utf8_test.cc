#include "common/utf8.h"

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(Utf8, ShowsWhatPeopleWriteAndNothingThatMovesTheCursor) {
  EXPECT_EQ(ForDisplay("gr\xc3\xb6\xc3\x9f"
                       "e \xe6\x97\xa5 \xf0\x9f\x94\xa5"),
            "gr\xc3\xb6\xc3\x9f"
            "e \xe6\x97\xa5 \xf0\x9f\x94\xa5");
  EXPECT_EQ(ForDisplay("\x1b[2J\x07\r\x7f"), "?[2J???");
  EXPECT_EQ(ForDisplay(std::string_view("a\0b", 3)), "a?b");
  // CSI as one character, which some terminals obey.
  EXPECT_EQ(ForDisplay("\xc2\x9b"
                       "2J"),
            "?2J");
  // Controls for right-to-left text.
  EXPECT_EQ(ForDisplay("\xe2\x80\xae"
                       "evil\xe2\x81\xa6"),
            "?evil?");
  EXPECT_EQ(ForDisplay("a\tb\nc", "\t"), "a\tb?c");
}

TEST(Utf8, ShowsAQuestionMarkForEachByteThatIsNone) {
  EXPECT_EQ(ForDisplay("\xff\xc3 \xe6\x97"), "?? ??");
  EXPECT_EQ(ForDisplay("\xc0\xaf\xed\xa0\x80"), "?????");  // overlong, a surrogate
  EXPECT_TRUE(IsUtf8(ForDisplay("\xff\xfe\x80", "\xff")));
}

}  // namespace
}  // namespace tercio
