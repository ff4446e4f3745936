#include <cmath>
#include <limits>

#include "cli/plot/bars.h"
#include "cli/plot/figure.h"
#include "cli/plot/heat_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::vector<std::string> TextsOf(const Axis& axis) {
  std::vector<std::string> texts;
  for (const Tick& tick : axis.ticks()) {
    if (!tick.text.empty()) texts.push_back(tick.text);
  }
  return texts;
}

Range RangeOf(double low, double high) {
  Range range;
  range.Add(low, AxisKind::kLinear);
  range.Add(high, AxisKind::kLinear);
  return range;
}

TEST(Escaped, NothingGetsOut) {
  EXPECT_EQ(Escaped("<script>\"'&"), "&lt;script&gt;&quot;&#39;&amp;");
  EXPECT_EQ(Escaped(std::string("a\0b\x1b[31m\x7f", 9)),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd[31m\xef\xbf\xbd");
  EXPECT_EQ(Escaped("gr\xc3\xbcn \xff\xc3"), "gr\xc3\xbcn \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(Escaped("two\nlines"), "two\nlines");
}

TEST(Coordinate, ShortAndWithoutMinusZero) {
  EXPECT_EQ(Coordinate(1), "1");
  EXPECT_EQ(Coordinate(1.2499), "1.25");
  EXPECT_EQ(Coordinate(-0.001), "0");
  EXPECT_EQ(Coordinate(-12.5), "-12.5");
}

TEST(Shortened, CutsBetweenCodePoints) {
  EXPECT_EQ(Shortened("abc", 3), "abc");
  EXPECT_EQ(Shortened("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", 3), "\xc3\xbc\xc3\xbc…");
}

TEST(Axis, TicksAreRoundAndEncloseTheValues) {
  EXPECT_THAT(TextsOf(Axis(RangeOf(0.13, 0.87), 0, 100, {})),
              ElementsAre("0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  Axis::Options few;
  few.most_ticks = 4;
  EXPECT_THAT(TextsOf(Axis(RangeOf(0, 35'000), 0, 100, few)),
              ElementsAre("0", "10k", "20k", "30k", "40k"));
  const Axis axis(RangeOf(2, 10), 100, 0, {});
  EXPECT_EQ(axis.At(2), 100);
  EXPECT_EQ(axis.At(10), 0);
}

TEST(Axis, AllTicksHaveOnePrefix) {
  EXPECT_THAT(TextsOf(Axis(RangeOf(0, 1e6), 0, 100, {})),
              ElementsAre("0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M"));
  EXPECT_THAT(TextsOf(Axis(RangeOf(0, 12'500), 0, 100, {})),
              ElementsAre("0", "2.5k", "5.0k", "7.5k", "10.0k", "12.5k"));
}

TEST(Axis, WholeNumbersHaveNoFractions) {
  Axis::Options options;
  options.whole = true;
  options.extend = false;
  EXPECT_THAT(TextsOf(Axis(RangeOf(1, 3), 0, 100, options)), ElementsAre("1", "2", "3"));
}

TEST(Axis, OneValueAndNoneAreAxesToo) {
  const Axis one(RangeOf(5, 5), 0, 100, {});
  EXPECT_TRUE(one.Shows(5));
  EXPECT_GT(one.high(), one.low());
  const Axis none(Range(), 0, 100, {});
  EXPECT_GT(none.high(), none.low());
  const Axis zero(RangeOf(0, 0), 0, 100, {});
  EXPECT_GT(zero.high(), zero.low());
}

TEST(Axis, LogarithmicDecades) {
  Axis::Options options;
  options.logarithmic = true;
  const Axis axis(RangeOf(0.003, 40), 0, 100, options);
  EXPECT_THAT(TextsOf(axis), ElementsAre("0.001", "0.01", "0.1", "1", "10", "100"));
  EXPECT_NEAR(axis.At(0.01) - axis.At(0.001), axis.At(1) - axis.At(0.1), 1e-9);
  EXPECT_FALSE(axis.Shows(0));
  EXPECT_FALSE(axis.Shows(-1));
}

TEST(Axis, LogarithmicWithinADecadeHasNumbers) {
  Axis::Options options;
  options.logarithmic = true;
  EXPECT_GE(TextsOf(Axis(RangeOf(2.1, 3.3), 0, 100, options)).size(), 3u);
  EXPECT_GE(TextsOf(Axis(RangeOf(3, 3), 0, 100, options)).size(), 1u);
  EXPECT_GE(TextsOf(Axis(RangeOf(1e-300, 1e300), 0, 100, options)).size(), 3u);
}

TEST(Axis, ValuesThatCannotBeShownAreLeftOut) {
  Range range;
  range.Add(kNan, AxisKind::kLinear);
  range.Add(std::numeric_limits<double>::infinity(), AxisKind::kLinear);
  EXPECT_TRUE(range.empty);
  range.Add(-1, AxisKind::kLogarithmic);
  range.Add(0, AxisKind::kLogarithmic);
  EXPECT_TRUE(range.empty);
}

TEST(NumberText, PrefixesAndPowers) {
  EXPECT_EQ(NumberText(0), "0");
  EXPECT_EQ(NumberText(1234), "1234");
  EXPECT_EQ(NumberText(12'500), "12.5k");
  EXPECT_EQ(NumberText(3e-4), "3e-4");
  EXPECT_EQ(ShortText(51.678), "51.7");
  EXPECT_EQ(ShortText(0.123456), "0.123");
  EXPECT_EQ(ShortText(kNan), "-");
  EXPECT_EQ(BytesUnit(3 << 20).name, "MiB");
  EXPECT_EQ(SecondsUnit(0.02).name, "ms");
}

TEST(Decimate, KeepsPeaksAndGaps) {
  std::vector<double> x, y;
  for (int i = 0; i < 1'000'000; ++i) {
    x.push_back(i);
    y.push_back(std::sin(i * 0.001));
  }
  y[123'456] = 50;
  y[654'321] = -50;
  for (int i = 500'000; i < 500'400; ++i) y[i] = kNan;
  const std::vector<size_t> kept = Decimate(x, y, 0, 1e6, 400);
  EXPECT_LT(kept.size(), 1700u);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  EXPECT_NE(std::find(kept.begin(), kept.end(), 123'456), kept.end());
  EXPECT_NE(std::find(kept.begin(), kept.end(), 654'321), kept.end());
  EXPECT_TRUE(std::any_of(kept.begin(), kept.end(), [&](size_t i) { return std::isnan(y[i]); }));
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept.back(), 999'999u);
}

TEST(Decimate, FewPointsAllStay) {
  EXPECT_THAT(Decimate({1, 2, 3}, {4, kNan, 6}, 1, 3, 10), ElementsAre(0, 1, 2));
  EXPECT_TRUE(Decimate({}, {}, 0, 1, 10).empty());
}

TEST(Smoothed, CentredMeansAndGaps) {
  EXPECT_THAT(Smoothed({1, 2, 3, 4, 5}, 3), ElementsAre(1, 2, 3, 4, 5));
  const std::vector<double> smooth = Smoothed({0, 3, kNan, 3, 0}, 3);
  EXPECT_EQ(smooth[1], 1.5);  // mean of 0 and 3
  EXPECT_TRUE(std::isnan(smooth[2]));
}

Figure TwoJobs() {
  Figure figure;
  figure.label = "losses";
  figure.x_title = "step";
  Panel panel{"Loss", "nats", {}, {}, false, false};
  Series one;
  one.name = "<b>one</b>";
  Series two;
  two.name = "two";
  two.colour = 1;
  for (int i = 1; i <= 10; ++i) {
    one.x.push_back(i);
    two.x.push_back(i);
    one.y.push_back(i == 5 ? kNan : 10.0 / i);
    two.y.push_back(8.0 / i);
  }
  panel.series = {one, two};
  panel.marks = {{4, 1}};
  figure.panels = {panel};
  figure.marks_name = "restart";
  return figure;
}

TEST(Figure, HasWhatItShould) {
  const std::string svg = Draw(TwoJobs(), SvgPlace::kOwnFile);
  EXPECT_THAT(svg, HasSubstr("xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;one&lt;/b&gt;"));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
  EXPECT_THAT(svg, HasSubstr(">restart</text>"));
  EXPECT_THAT(svg, HasSubstr(">Loss</tspan>"));
  EXPECT_EQ(Count(svg, "class=\"l c0\""), 2u);  // the curve, and its line in the legend
  EXPECT_EQ(Count(svg, "class=\"m c1\""), 1u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(svg, Draw(TwoJobs(), SvgPlace::kOwnFile));
  EXPECT_THAT(Draw(TwoJobs(), SvgPlace::kPage), Not(HasSubstr("<style>")));
}

TEST(Figure, AGapBreaksTheLine) {
  const std::string svg = Draw(TwoJobs(), SvgPlace::kPage);
  const size_t begin = svg.find("<path d=\"M62");
  ASSERT_NE(begin, std::string::npos);
  const std::string path = svg.substr(begin, svg.find('>', begin) - begin);
  EXPECT_EQ(Count(path, "M"), 2u);
}

TEST(Figure, NothingIsAFigureToo) {
  Figure figure;
  figure.panels = {{"Loss", "", {}, {}, true, false}};
  EXPECT_THAT(Draw(figure, SvgPlace::kOwnFile), HasSubstr("no values"));
}

TEST(Figure, AMillionPointsStaySmall) {
  Figure figure;
  Series series;
  for (int64_t i = 0; i < 1'000'000; ++i) {
    series.x.push_back(static_cast<double>(i));
    series.y.push_back(static_cast<double>(i * 7919 % 1000));
  }
  figure.panels = {{"Noise", "", {series}, {}, false, false}};
  EXPECT_LT(Draw(figure, SvgPlace::kOwnFile).size(), 60'000u);
}

TEST(BarChart, StacksToTheWhole) {
  BarChart chart;
  chart.shares = true;
  chart.categories = {"a", "b & c"};
  chart.series = {{"x", {0.25, 1}, 0}, {"y", {0.75, kNan}, 1}};
  const std::string svg = Draw(chart, SvgPlace::kPage);
  EXPECT_THAT(svg, HasSubstr("b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("<title>a: x 25.0 %</title>"));
  EXPECT_THAT(svg, HasSubstr("100 %"));
  EXPECT_EQ(Count(svg, "<title>"), 3u);  // what is not known has no bar
}

TEST(BarChart, GroupsStandBelowEachOther) {
  BarChart chart;
  chart.stacked = false;
  chart.totals = true;
  chart.unit = "MiB";
  chart.categories = {"rank 0"};
  chart.series = {{"planned", {12.5}, 0}, {"peak", {12}, 1}};
  EXPECT_THAT(Draw(chart, SvgPlace::kPage), HasSubstr(">12.5 MiB</text>"));
  EXPECT_THAT(Draw(BarChart(), SvgPlace::kPage), HasSubstr("<svg"));
}

// The least value of each part is 0 there, which a logarithmic axis cannot show.
TEST(Figure, TheLeastThatALogarithmicAxisShowsIsNotLost) {
  Figure figure;
  Panel panel;
  panel.logarithmic = true;
  Series series;
  for (int i = 0; i < 100'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i % 2 == 0 ? 0 : i == 50'001 ? 1e-3 : 1);
  }
  panel.series = {series};
  figure.panels = {panel};
  const std::string svg = Draw(figure, SvgPlace::kPage);
  const double bottom = 18 - 16 + 26 + figure.panel_height;  // where 1e-3 is, the axis' low end
  EXPECT_THAT(svg, HasSubstr(" " + Coordinate(bottom) + "h0"));
}

TEST(Figure, ASingleValueCanBeSeen) {
  Figure figure;
  Series series;
  series.x = {1, 2, 3};
  series.y = {kNan, 5, kNan};
  figure.panels = {{"Loss", "", {series}, {}, false, false}};
  EXPECT_EQ(Count(Draw(figure, SvgPlace::kPage), "<circle"), 1u);
  figure.panels[0].series[0].y = {4, 5, 6};
  EXPECT_EQ(Count(Draw(figure, SvgPlace::kPage), "<circle"), 0u);
}

TEST(HeatMap, ManyColumnsArePutTogetherByTheGreatest) {
  HeatMap map;
  map.rows = {"stage 0", "stage 1"};
  map.values = {std::vector<double>(10'000, 1), std::vector<double>(10'000, 2)};
  map.values[0][4321] = 100;
  const std::string svg = Draw(map, SvgPlace::kPage);
  EXPECT_LT(Count(svg, "<rect"), 2 * kMostColumns + 50);
  EXPECT_EQ(Count(svg, HeatColour(1)), 1u);
  EXPECT_THAT(svg, HasSubstr("the maximum of each 40"));
  EXPECT_THAT(Draw(HeatMap(), SvgPlace::kPage), HasSubstr("<svg"));
}

TEST(HeatMap, ColoursGetLighter) {
  EXPECT_EQ(HeatColour(0), "#440154");
  EXPECT_EQ(HeatColour(1), "#fde725");
  EXPECT_EQ(HeatColour(7), HeatColour(1));
}

}  // namespace
}  // namespace tercio::plot
