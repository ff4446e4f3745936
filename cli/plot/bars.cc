#include "cli/plot/bars.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/plot/figure.h"
#include "cli/plot/scale.h"
#include "cli/plot/svg.h"

namespace tercio::plot {
namespace {

constexpr double kMargin = 16;
// Longer names would leave no room for bars.
constexpr size_t kLongestCategory = 34;

double ValueOf(const BarSeries& series, size_t category) {
  const double value = category < series.values.size() ? series.values[category] : 0;
  // A bar has no negative length.
  return std::isfinite(value) && value > 0 ? value : 0;
}

std::string ValueText(const BarChart& chart, double value) {
  // Shares are read as percents, whatever the unit of the axis says.
  if (chart.shares) return absl::StrFormat("%.1f %%", 100 * value);
  return absl::StrCat(ShortText(value), chart.unit.empty() ? "" : " ", chart.unit);
}

double TotalOf(const BarChart& chart, size_t category) {
  return std::accumulate(
      chart.series.begin(), chart.series.end(), 0.0,
      [&](double sum, const BarSeries& series) { return sum + ValueOf(series, category); });
}

double GreatestOf(const BarChart& chart) {
  double greatest = 0;
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    // Stacked bars end at their total.
    if (chart.stacked) greatest = std::max(greatest, TotalOf(chart, i));
    for (const BarSeries& series : chart.series) greatest = std::max(greatest, ValueOf(series, i));
  }
  return greatest;
}

// The widest text behind a bar.
double WidestTotal(const BarChart& chart) {
  double width = 0;
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    const auto add = [&](double value) {
      width = std::max(width, TextWidth(ValueText(chart, value), 11));
    };
    if (chart.stacked) add(TotalOf(chart, i));
    for (const BarSeries& series : chart.series) {
      if (!chart.stacked) add(ValueOf(series, i));
    }
  }
  return width;
}

class Drawing {
 public:
  explicit Drawing(const BarChart& chart) : chart_(chart) {
    for (const std::string& category : chart.categories) {
      left_ = std::max(left_, TextWidth(Shortened(category, kLongestCategory), 11) + kMargin + 10);
    }
    // Names never take more than two fifths of the figure.
    left_ = std::min(left_, chart.width * 0.4);
    // Totals are written behind the bars, whatever the length of their unit.
    right_ = chart.width - (chart.totals ? std::max(84.0, WidestTotal(chart) + 14) : 22);
    // Many thin bars fit where a few would look lost.
    thickness_ = chart.stacked ? (chart.categories.size() > 16 ? 9 : 15) : 11;
    group_ = chart.stacked ? thickness_ : thickness_ * static_cast<double>(chart.series.size());
    gap_ = chart.categories.size() > 16 && chart.stacked ? 4 : 9;
  }

  std::string Make(SvgPlace place) {
    double y = 18;
    svg_.Heading(kMargin, y, chart_.title, chart_.unit);
    std::vector<LegendEntry> entries;
    for (const BarSeries& series : chart_.series) {
      // One series needs no legend, as the title names it.
      if (chart_.series.size() > 1)
        entries.push_back({series.name, series.colour, false, true, false});
    }
    y += 20;
    y += DrawLegend(entries, kMargin, y, chart_.width - 2 * kMargin, &svg_);
    const double top = y - 6;
    const double bottom =
        top + static_cast<double>(chart_.categories.size()) * (group_ + gap_) + gap_ / 2;
    Range range;
    range.Add(0, AxisKind::kLinear);
    // Shares always end at 100 %, so that charts can be compared.
    range.Add(chart_.shares ? 1 : GreatestOf(chart_), AxisKind::kLinear);
    Axis::Options options;
    options.from_zero = true;
    // The longest bar ends at the border.
    options.extend = false;
    const Axis axis(range, left_, right_, options);
    for (const Tick& tick : axis.ticks()) {
      svg_.Line(axis.At(tick.value), top, axis.At(tick.value), bottom, "g");
      svg_.Text(axis.At(tick.value), bottom + 15,
                chart_.shares ? absl::StrFormat("%.0f %%", 100 * tick.value) : tick.text, "t",
                Anchor::kMiddle);
    }
    for (size_t i = 0; i < chart_.categories.size(); ++i) {
      DrawCategory(i, axis, top + gap_ / 2 + static_cast<double>(i) * (group_ + gap_) + gap_ / 4);
    }
    svg_.Line(left_, top, left_, bottom, "a");
    return svg_.Finish(chart_.width, bottom + 26, chart_.label, place);
  }

 private:
  void DrawCategory(size_t category, const Axis& axis, double y) {
    const std::string& name = chart_.categories[category];
    svg_.Text(left_ - 7, y + group_ / 2 + 3.8, Shortened(name, kLongestCategory), "t",
              Anchor::kEnd);
    double from = 0;
    for (size_t i = 0; i < chart_.series.size(); ++i) {
      const BarSeries& series = chart_.series[i];
      const double value = ValueOf(series, category);
      const double begin = axis.At(chart_.stacked ? from : 0);
      const double end = axis.At((chart_.stacked ? from : 0) + value);
      // Bars that are not stacked stand below each other in their group.
      const double row = chart_.stacked ? y : y + static_cast<double>(i) * thickness_;
      if (value > 0) {
        // A value that is not zero stays visible, however small it is.
        svg_.Rectangle(begin, row, std::max(0.4, end - begin),
                       chart_.stacked ? thickness_ : thickness_ - 1,
                       absl::StrCat("b", series.colour % kColours),
                       absl::StrCat(name, ": ", series.name, series.name.empty() ? "" : " ",
                                    ValueText(chart_, value)));
      }
      if (chart_.totals && !chart_.stacked && value > 0) {
        svg_.Text(end + 5, row + thickness_ - 1.6, ValueText(chart_, value), "u");
      }
      from += value;
    }
    // The total of a stack stands once behind it.
    if (chart_.totals && chart_.stacked) {
      svg_.Text(axis.At(from) + 5, y + group_ / 2 + 3.8, ValueText(chart_, from), "u");
    }
  }

  const BarChart& chart_;
  Svg svg_;
  double left_ = 40;
  double right_ = 0;
  double thickness_ = 0;
  double group_ = 0;
  double gap_ = 0;
};

}  // namespace

std::string Draw(const BarChart& chart, SvgPlace place) { return Drawing(chart).Make(place); }

}  // namespace tercio::plot
