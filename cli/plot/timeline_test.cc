#include "cli/plot/timeline.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plot {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Tags are closed in the reverse order of their opening, attributes quoted: what breaks browsers.
bool IsWellFormed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (CountOf(tag, "\"") % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find_first_of(" >")));
    }
  }
  return open.empty();
}

// Rows of boxes of one second each, one after the other.
Timeline Rows(size_t rows, int boxes) {
  Timeline timeline;
  timeline.label = "a & b";
  timeline.title = "One <step>";
  timeline.unit = "3 s";
  timeline.note = "rows & boxes";
  timeline.kinds = {{"forward", 0}, {"backward", 2}, {"never", 4}};
  timeline.shades = 3;
  timeline.seconds = boxes;
  for (size_t row = 0; row < rows; ++row) {
    TimelineRow& of_row = timeline.rows.emplace_back();
    of_row.name = "stage " + std::to_string(row);
    for (int box = 0; box < boxes; ++box) {
      of_row.boxes.push_back({.kind = static_cast<size_t>(box % 2),
                              .shade = box % 3,
                              .begin = static_cast<double>(box),
                              .seconds = 1,
                              .text = std::to_string(box),
                              .title = "box <" + std::to_string(box) + ">"});
    }
  }
  return timeline;
}

double WidthOf(const std::string& svg) {
  const std::string mark = "width=\"";
  return std::stod(svg.substr(svg.find(mark) + mark.size()));
}

TEST(Timeline, HasItsBoxesNumbersAndTexts) {
  const std::string svg = Draw(Rows(4, 6), SvgPlace::kOwnFile);
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  // The background, two entries of the legend and the boxes.
  EXPECT_EQ(CountOf(svg, "<rect"), 1u + 2 + 4 * 6);
  EXPECT_EQ(CountOf(svg, "<title>box &lt;"), 4u * 6);
  EXPECT_EQ(CountOf(svg, ">5</text>"), 4u + 1);  // numbers, and a tick of the axis
  for (const char* text : {"One &lt;step&gt;", "a &amp; b", "rows &amp; boxes", ">stage 3</text>",
                           ">forward</text>", "prefers-color-scheme:dark", "time in s"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(svg, Not(HasSubstr(">never</text>")));
  EXPECT_EQ(svg, Draw(Rows(4, 6), SvgPlace::kOwnFile));
}

TEST(Timeline, GetsWiderForNumbersAndLeavesThemOutWhereTheyWouldNotFit) {
  EXPECT_LT(WidthOf(Draw(Rows(8, 16), SvgPlace::kOwnFile)), 1100);
  const std::string wider = Draw(Rows(8, 120), SvgPlace::kOwnFile);
  EXPECT_GT(WidthOf(wider), 1500);
  EXPECT_THAT(wider, HasSubstr(">119</text>"));
  const std::string narrow = Draw(Rows(8, 700), SvgPlace::kOwnFile);
  EXPECT_LT(WidthOf(narrow), 2700);
  EXPECT_THAT(narrow, Not(HasSubstr(">699</text>")));
  EXPECT_LT(WidthOf(Draw(Rows(2, 100000), SvgPlace::kOwnFile)), 6200);
}

TEST(Timeline, ManyBoxesBecomeOnePathForEachLook) {
  const std::string svg = Draw(Rows(100, 400), SvgPlace::kOwnFile);
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_EQ(CountOf(svg, "<path"), 100u * 6);  // two kinds in three shades
  EXPECT_EQ(CountOf(svg, "h-"), 100u * 400);   // all boxes are in them
  EXPECT_EQ(CountOf(svg, "<title>"), 0u);
  // Rows are too low for a name each.
  EXPECT_THAT(svg, HasSubstr(">stage 98</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">stage 99</text>")));
}

}  // namespace
}  // namespace tercio::plot
