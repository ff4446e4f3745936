#include "cli/plot/timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/plot/figure.h"
#include "cli/plot/scale.h"

namespace tercio::plot {
namespace {

constexpr double kBorder = 16;
constexpr double kNumberSize = 9;  // font size inside boxes
constexpr double kRoomOfNumber = 3;
constexpr double kNarrowest = 900;
constexpr double kWidestWithNumbers = 2600;
constexpr double kWidest = 6000;
// Boxes stay visible where they are as wide.
constexpr double kLeastBox = 3;
constexpr size_t kMostTooltips = 6000;
constexpr double kPixelsOfTick = 110;

double HeightOfRow(size_t rows) {
  if (rows <= 16) return 22;
  if (rows <= 64) return 14;
  return rows <= 128 ? 9 : 6;
}

class TimelineDrawing {
 public:
  explicit TimelineDrawing(const Timeline& timeline)
      : timeline_(timeline), height_(HeightOfRow(timeline.rows.size())) {
    for (const TimelineRow& row : timeline.rows) {
      left_ = std::max(left_, TextWidth(row.name, 11) + kBorder + 10);
      boxes_ += row.boxes.size();
    }
    right_ = left_ + WidthOfAxis();
  }

  std::string Make(SvgPlace place) {
    const double width = right_ + kBorder;
    double y = 18;
    svg_.Heading(kBorder, y, timeline_.title, timeline_.unit);
    y += 20;
    y += DrawLegend(Legend(), kBorder, y, std::min(width, kNarrowest) - 2 * kBorder, &svg_);
    top_ = y - 4;
    const double bottom = top_ + height_ * static_cast<double>(timeline_.rows.size());
    DrawAxis(bottom);
    for (size_t i = 0; i < timeline_.rows.size(); ++i) DrawRow(i);
    double end = bottom + 34;
    if (!timeline_.note.empty()) {
      svg_.Text(kBorder, end + 14, timeline_.note, "u");
      end += 20;
    }
    return svg_.Finish(width, end + 6, timeline_.label, place);
  }

 private:
  // Wide enough for numbers, or at least for boxes, within limits.
  double WidthOfAxis() {
    double least = timeline_.seconds;
    double with_numbers = 0;
    for (const TimelineRow& row : timeline_.rows) {
      for (const TimelineBox& box : row.boxes) {
        if (box.text.empty() || box.seconds <= 0) continue;
        least = std::min(least, box.seconds);
        with_numbers = std::max(with_numbers,
                                (TextWidth(box.text, kNumberSize) + kRoomOfNumber) / box.seconds);
      }
    }
    with_numbers *= timeline_.seconds;
    // Numbers in some boxes only would look as if the others had none.
    has_numbers_ = height_ >= 12 && with_numbers <= kWidestWithNumbers;
    if (has_numbers_) return std::max(kNarrowest, with_numbers);
    return std::clamp(kLeastBox * timeline_.seconds / least, kNarrowest, kWidest);
  }

  std::vector<LegendEntry> Legend() const {
    std::vector<bool> seen(timeline_.kinds.size(), false);
    for (const TimelineRow& row : timeline_.rows) {
      for (const TimelineBox& box : row.boxes) seen[box.kind] = true;
    }
    std::vector<LegendEntry> entries;
    for (size_t kind = 0; kind < seen.size(); ++kind) {
      const TimelineKind& of_kind = timeline_.kinds[kind];
      if (seen[kind]) entries.push_back({of_kind.name, of_kind.colour, false, true, false});
    }
    return entries;
  }

  void DrawAxis(double bottom) {
    const Unit unit = SecondsUnit(timeline_.seconds);
    Range range;
    range.Add(0, AxisKind::kLinear);
    range.Add(timeline_.seconds / unit.divisor, AxisKind::kLinear);
    Axis::Options options;
    options.from_zero = true;
    options.extend = false;
    options.most_ticks = std::max(4, static_cast<int>((right_ - left_) / kPixelsOfTick));
    const Axis axis(range, left_, right_, options);
    for (const Tick& tick : axis.ticks()) {
      svg_.Line(axis.At(tick.value), top_, axis.At(tick.value), bottom, "g");
      svg_.Text(axis.At(tick.value), bottom + 15, tick.text, "t", Anchor::kMiddle);
    }
    svg_.Line(left_, bottom, right_, bottom, "a");
    svg_.Text(left_, bottom + 30, absl::StrCat("time in ", unit.name), "u");
  }

  double At(double seconds) const { return left_ + (right_ - left_) * seconds / timeline_.seconds; }

  // A little less, so that boxes in a row can be told apart.
  static double Seen(double width) { return width - std::min(0.6, 0.15 * width); }

  void DrawRow(size_t index) {
    const TimelineRow& row = timeline_.rows[index];
    const double y = top_ + height_ * static_cast<double>(index);
    // Names of rows that are lower than a line of text would cover each other.
    const auto every = static_cast<size_t>(std::ceil(11 / height_));
    if (index % every == 0) {
      svg_.Text(left_ - 7, y + height_ / 2 + 3.8, row.name, "t", Anchor::kEnd);
    }
    if (boxes_ > kMostTooltips) return DrawAlike(row, y);
    for (const TimelineBox& box : row.boxes) {
      const double x = At(box.begin);
      const double width = At(box.begin + box.seconds) - x;
      svg_.Rectangle(x, y + 1, Seen(width), height_ - 2, ClassesOf(box), box.title);
      if (has_numbers_ && !box.text.empty()) {
        svg_.Text(x + width / 2, y + height_ / 2 + 3.2, box.text, IsDark(box.shade) ? "n" : "n t",
                  Anchor::kMiddle);
      }
    }
  }

  // One element for all boxes of the row that look alike.
  void DrawAlike(const TimelineRow& row, double y) {
    std::map<std::string, std::string> paths;
    for (const TimelineBox& box : row.boxes) {
      const double x = At(box.begin);
      const std::string width = Coordinate(Seen(At(box.begin + box.seconds) - x));
      absl::StrAppend(&paths[ClassesOf(box)], "M", Coordinate(x), " ", Coordinate(y + 1), "h",
                      width, "v", Coordinate(height_ - 2), "h-", width, "z");
    }
    for (const auto& [classes, path] : paths) svg_.Path(path, classes);
  }

  int StepOf(int shade) const {
    if (timeline_.shades <= 1) return 0;
    return shade * (kShades - 1) / (timeline_.shades - 1);
  }
  // Whether a light number can be read on it.
  bool IsDark(int shade) const { return StepOf(shade) < kShades / 2; }

  std::string ClassesOf(const TimelineBox& box) const {
    return absl::StrCat("b", timeline_.kinds[box.kind].colour % kColours, " o", StepOf(box.shade));
  }

  const Timeline& timeline_;
  const double height_;
  Svg svg_;
  double left_ = 40;
  double right_ = 0;
  double top_ = 0;
  bool has_numbers_ = false;
  size_t boxes_ = 0;
};

}  // namespace

std::string Draw(const Timeline& timeline, SvgPlace place) {
  return TimelineDrawing(timeline).Make(place);
}

}  // namespace tercio::plot
