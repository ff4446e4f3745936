#include "cli/plot/figure.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tercio::plot {
namespace {

AxisKind KindOf(bool logarithmic) {
  return logarithmic ? AxisKind::kLogarithmic : AxisKind::kLinear;
}

constexpr double kLeft = 62;
// Numbers and lines need a little room at the right border.
constexpr double kRight = 16;
constexpr double kHeading = 26;  // above a panel: its title
constexpr double kBetween = 14;  // below a panel
constexpr double kAxisRow = 40;  // below the last panel: numbers and the title of x
// Two points in one pixel cannot be told apart.
constexpr double kPixelsPerBucket = 1.5;
constexpr char kDashes[] = "5 3.5";
constexpr size_t kLongestName = 60;
constexpr int kFewPoints = 2;  // too few for a visible line

std::string ClassOf(const char* kind, int colour) {
  // Colours repeat, and a caller's number may be negative.
  return absl::StrCat(kind, " c", ((colour % kColours) + kColours) % kColours);
}

// Values that the axis cannot show become gaps before points are left out. Otherwise the least
// value of a part could be one of them, and the visible values of that part be lost.
void KeepVisible(const Axis& y_axis, std::vector<double>* y) {
  for (double& value : *y) {
    if (!y_axis.Shows(value)) value = std::nan("");
  }
}

// The lines of one series, broken at gaps. A point between two gaps is a dot: a line of length zero
// with round ends.
std::string PathOf(const Series& series, const Axis& x_axis, const Axis& y_axis, int buckets) {
  std::string data;
  bool drawing = false;
  for (const size_t i : Decimate(series.x, series.y, x_axis.low(), x_axis.high(), buckets)) {
    // A gap on either axis breaks the line.
    if (!y_axis.Shows(series.y[i]) || !x_axis.Shows(series.x[i])) {
      drawing = false;
      continue;
    }
    const std::string place =
        absl::StrCat(Coordinate(x_axis.At(series.x[i])), " ", Coordinate(y_axis.At(series.y[i])));
    // The line of length zero makes a lone point visible.
    absl::StrAppend(&data, drawing ? "L" : "M", place, drawing ? "" : "h0");
    drawing = true;
  }
  return data;
}

void DrawSeries(Series series, const Axis& x_axis, const Axis& y_axis, int buckets, Svg* svg) {
  // The series is a copy, so that gaps can be made in it.
  KeepVisible(y_axis, &series.y);
  const std::string data = PathOf(series, x_axis, y_axis, buckets);
  if (data.empty()) return;
  svg->Path(data,
            ClassOf(series.faint  ? "f"
                    : series.wide ? "l w"
                                  : "l",
                    series.colour),
            series.dashed ? kDashes : "");
  const auto visible =
      std::count_if(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
  // A curve of many values needs no dots.
  if (!series.points && visible > kFewPoints) return;
  // Two dozen dots can still be counted.
  const std::vector<size_t> shown = Decimate(series.x, series.y, x_axis.low(), x_axis.high(), 24);
  for (const size_t i : shown) {
    if (!y_axis.Shows(series.y[i]) || !x_axis.Shows(series.x[i])) continue;
    svg->Circle(x_axis.At(series.x[i]), y_axis.At(series.y[i]), 2.4,
                absl::StrCat("b", series.colour % kColours));
  }
}

Axis YAxisOf(const Panel& panel, double top, double bottom) {
  Range range;
  for (const Series& series : panel.series) {
    // All series of a panel share its axis.
    for (const double y : series.y) range.Add(y, KindOf(panel.logarithmic));
  }
  Axis::Options options;
  options.logarithmic = panel.logarithmic;
  options.from_zero = panel.from_zero;
  options.most_ticks = 5;
  return Axis(range, bottom, top, options);
}

void DrawPanel(const Panel& panel, const Axis& x_axis, double top, double height, double right,
               Svg* svg) {
  const double bottom = top + height;
  const Axis y_axis = YAxisOf(panel, top, bottom);
  svg->Heading(kLeft - 46, top - 10, panel.title, panel.unit);
  for (const Tick& tick : y_axis.ticks()) {
    const double y = y_axis.At(tick.value);
    // A tick without a number is only a short mark.
    if (tick.text.empty()) {
      svg->Line(kLeft - 3, y, kLeft, y, "g");
      continue;
    }
    svg->Line(kLeft, y, right, y, "g");
    svg->Text(kLeft - 7, y + 3.8, tick.text, "t", Anchor::kEnd);
  }
  for (const Tick& tick : x_axis.ticks()) {
    const double x = x_axis.At(tick.value);
    svg->Line(x, bottom, x, bottom + (tick.text.empty() ? 3 : 5), "a");
  }
  svg->Line(kLeft, bottom, right, bottom, "a");
  // Marks lie behind the curves, as they explain but do not measure.
  for (const Mark& mark : panel.marks) {
    if (x_axis.Shows(mark.x))
      svg->Line(x_axis.At(mark.x), top, x_axis.At(mark.x), bottom, ClassOf("m", mark.colour));
  }
  const int buckets = std::max(1, static_cast<int>((right - kLeft) / kPixelsPerBucket));
  // Faint curves come first, so that the others are drawn over them.
  for (const bool faint : {true, false}) {
    for (const Series& series : panel.series) {
      if (series.faint == faint) DrawSeries(series, x_axis, y_axis, buckets, svg);
    }
  }
  const bool anything =
      std::any_of(panel.series.begin(), panel.series.end(), [](const Series& series) {
        return std::any_of(series.y.begin(), series.y.end(),
                           [](double y) { return std::isfinite(y); });
      });
  // An empty panel with axes would look as if zero had been measured.
  if (!anything)
    svg->Text((kLeft + right) / 2, (top + bottom) / 2, "no values", "u", Anchor::kMiddle);
}

// A name that several panels share appears once in the legend.
std::vector<LegendEntry> LegendOf(const Figure& figure) {
  std::vector<LegendEntry> entries;
  bool marks = false;
  for (const Panel& panel : figure.panels) {
    marks = marks || !panel.marks.empty();
    for (const Series& series : panel.series) {
      const bool there = std::any_of(entries.begin(), entries.end(), [&](const LegendEntry& entry) {
        // Name, colour and dashes together are what a reader tells apart.
        return entry.name == series.name && entry.colour == series.colour &&
               entry.dashed == series.dashed;
      });
      if (there || series.faint || series.name.empty()) continue;
      entries.push_back({series.name, series.colour, series.dashed, false, false});
    }
  }
  // One curve needs no legend: the title names it.
  if (entries.size() == 1 && !marks) entries.clear();
  if (marks && !figure.marks_name.empty())
    entries.push_back({figure.marks_name, 7, false, false, true});
  return entries;
}

}  // namespace

std::vector<size_t> Decimate(const std::vector<double>& x, const std::vector<double>& y,
                             double first, double last, int buckets) {
  const size_t count = std::min(x.size(), y.size());
  std::vector<size_t> kept;
  // Each bucket keeps at most four points, so that fewer need no work.
  if (count <= 4 * static_cast<size_t>(buckets)) {
    for (size_t i = 0; i < count; ++i) kept.push_back(i);
    return kept;
  }
  const double width = (last - first) / buckets;
  const auto bucket_of = [&](size_t i) {
    return width > 0 ? std::clamp(static_cast<int>((x[i] - first) / width), 0, buckets - 1) : 0;
  };
  for (size_t begin = 0; begin < count;) {
    // A run of values, or of gaps, of one bucket.
    const bool gap = !std::isfinite(y[begin]);
    const int bucket = bucket_of(begin);
    size_t end = begin;
    size_t least = begin;
    size_t greatest = begin;
    for (; end < count && std::isfinite(y[end]) != gap && bucket_of(end) == bucket; ++end) {
      if (y[end] < y[least]) least = end;
      if (y[end] > y[greatest]) greatest = end;
    }
    // First, least, greatest and last value keep the shape of any curve.
    for (const size_t i : {begin, std::min(least, greatest), std::max(least, greatest), end - 1}) {
      if (kept.empty() || i > kept.back()) kept.push_back(i);
    }
    begin = end;
  }
  return kept;
}

std::vector<double> Smoothed(const std::vector<double>& y, int window) {
  const auto count = static_cast<int64_t>(y.size());
  std::vector<double> sums(y.size() + 1, 0);
  std::vector<int64_t> finite(y.size() + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    // Running sums make the cost independent of the window.
    sums[i + 1] = sums[i] + (std::isfinite(y[i]) ? y[i] : 0);
    finite[i + 1] = finite[i] + (std::isfinite(y[i]) ? 1 : 0);
  }
  std::vector<double> smooth(y.size(), std::nan(""));
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(y[i])) continue;
    // Uses the same number of values on both sides, so that the ends do not lag.
    const int64_t half = std::min<int64_t>({(window - 1) / 2, i, count - 1 - i});
    const int64_t begin = i - half;
    const int64_t end = i + half + 1;
    smooth[i] = (sums[end] - sums[begin]) / static_cast<double>(finite[end] - finite[begin]);
  }
  return smooth;
}

double DrawLegend(const std::vector<LegendEntry>& entries, double x, double y, double width,
                  Svg* svg) {
  constexpr double kRow = 17;
  double at = x;
  double row = y;
  for (const LegendEntry& entry : entries) {
    const std::string name = Shortened(entry.name, kLongestName);
    const double stroke = entry.box ? 10 : 20;
    const double needed = stroke + 6 + TextWidth(name, 11) + 16;
    // The first entry of a row is never moved, however long it is.
    if (at > x && at + needed > x + width) {
      at = x;
      row += kRow;
    }
    if (entry.box) {
      svg->Rectangle(at, row - 8.5, 10, 10, absl::StrCat("b", entry.colour % kColours));
    } else {
      svg->Path(absl::StrCat("M", Coordinate(at), " ", Coordinate(row - 3.8), "h20"),
                ClassOf(entry.mark ? "m" : "l", entry.colour), entry.dashed ? kDashes : "");
    }
    svg->Text(at + stroke + 6, row, name, "t");
    at += needed;
  }
  return entries.empty() ? 0 : row - y + kRow;
}

std::string Draw(const Figure& figure, SvgPlace place) {
  Svg svg;
  const double right = figure.width - kRight;
  Range x_range;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const double x : series.x) x_range.Add(x, KindOf(figure.logarithmic_x));
    }
  }
  Axis::Options options;
  options.logarithmic = figure.logarithmic_x;
  options.whole = figure.whole_x;
  // The x axis ends with the data: more would be empty paper.
  options.extend = false;
  // A number with its distance to the next takes about 85 pixels.
  options.most_ticks = static_cast<int>((right - kLeft) / 85);
  const Axis x_axis(x_range, kLeft, right, options);
  double y = 18;
  const double legend = DrawLegend(LegendOf(figure), kLeft - 46, y, right - kLeft + 46, &svg);
  y += legend > 0 ? legend - 12 : -16;
  for (const Panel& panel : figure.panels) {
    y += kHeading;
    DrawPanel(panel, x_axis, y, figure.panel_height, right, &svg);
    y += figure.panel_height + kBetween;
  }
  y -= kBetween;
  for (const Tick& tick : x_axis.ticks()) {
    if (!tick.text.empty())
      svg.Text(x_axis.At(tick.value), y + 17, tick.text, "t", Anchor::kMiddle);
  }
  svg.Text((kLeft + right) / 2, y + 33, figure.x_title, "u", Anchor::kMiddle);
  y += kAxisRow;
  if (!figure.note.empty()) {
    svg.Text(kLeft - 46, y + 12, figure.note, "u");
    y += 18;
  }
  return svg.Finish(figure.width, y, figure.label, place);
}

}  // namespace tercio::plot
