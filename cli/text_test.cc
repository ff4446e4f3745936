#include "cli/text.h"

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

TEST(Text, WideLettersTakeTwoColumnsAndMarksNone) {
  EXPECT_EQ(Columns(""), 0u);
  EXPECT_EQ(Columns("abc"), 3u);
  EXPECT_EQ(Columns("Ünï"), 3u);
  EXPECT_EQ(Columns("漢字"), 4u);
  EXPECT_EQ(Columns("🚀"), 2u);
  EXPECT_EQ(Columns("e\xcc\x81"), 1u);  // an accent of its own
  EXPECT_EQ(Columns("\xff\xfe"), 2u);
}

TEST(Text, ClipsBetweenLetters) {
  EXPECT_EQ(Clip("漢字", 3), "漢");
  EXPECT_EQ(Clip("abc", 5), "abc");
  EXPECT_EQ(Clip("abc", 0), "");
  EXPECT_EQ(Shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(Shortened("abcdefg", 6), "abcde…");
}

TEST(Text, NothingATerminalWouldActOn) {
  EXPECT_EQ(ForTerminal("a\x1b[31mb\x7f\r\tc"), "a?[31mb??\tc");
  EXPECT_EQ(ForTerminal("\xc2\x9b"
                        "31m"),
            "?31m");  // CSI, as one character
  EXPECT_EQ(ForTerminal("\x9b\xff"), "??");
  EXPECT_EQ(ForTerminal("Ünïcode 漢字 🚀"), "Ünïcode 漢字 🚀");
}

TEST(Text, Printable) { EXPECT_EQ(Printable("a\xc3\xc3\xa4\n"), "a?ä\n"); }

TEST(Text, TablesAlignWhatIsWide) {
  EXPECT_EQ(Table({{"NAME", "STATE"}, {"漢字", "queued"}, {"a\nb\x1b", "x"}}),
            "NAME  STATE\n漢字  queued\na b?  x\n");
}

}  // namespace
}  // namespace tercio::cli
