#include "cli/plot/heat_map.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/plot/scale.h"
#include "cli/plot/svg.h"

namespace tercio::plot {
namespace {

constexpr double kHeatMapMargin = 16;

// The greatest value among columns [begin, end) of a row; NaN: none.
double GreatestBetween(const std::vector<double>& row, size_t begin, size_t end) {
  double greatest = std::nan("");
  for (size_t i = begin; i < std::min(end, row.size()); ++i) {
    // The negation lets the first value replace NaN.
    if (std::isfinite(row[i]) && !(greatest >= row[i])) greatest = row[i];
  }
  return greatest;
}

void DrawScale(const Range& range, const std::string& unit, double x, double y, Svg* svg) {
  constexpr int kSteps = 40;
  constexpr double kWidth = 3;
  for (int i = 0; i < kSteps; ++i) {
    // Cells overlap by half a pixel, so that no seams are visible between them.
    svg->Cell(x + kWidth * i, y, kWidth + 0.5, 9, HeatColour((i + 0.5) / kSteps), "");
  }
  const std::string low = absl::StrCat(ShortText(range.low), " ", unit);
  svg->Text(x - 6, y + 8.5, low, "t", Anchor::kEnd);
  svg->Text(x + kWidth * kSteps + 6, y + 8.5, absl::StrCat(ShortText(range.high), " ", unit), "t");
}

}  // namespace

std::string HeatColour(double place) {
  // Points of a path on which lightness grows evenly (after the idea of matplotlib's viridis).
  static constexpr double kPath[][3] = {
      {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
  const double at = std::clamp(place, 0.0, 1.0) * 4;
  // The last segment also holds the end of the path.
  const int i = std::min(3, static_cast<int>(at));
  const auto mix = [&](int k) {
    return static_cast<int>(std::lround(kPath[i][k] + (at - i) * (kPath[i + 1][k] - kPath[i][k])));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(0), mix(1), mix(2));
}

std::string Draw(const HeatMap& map, SvgPlace where) {
  Svg svg;
  Range range;
  size_t columns = 0;
  for (const std::vector<double>& row : map.values) {
    columns = std::max(columns, row.size());
    for (const double value : row) range.Add(value, AxisKind::kLinear);
  }
  // A browser becomes slow with more cells than these.
  const size_t most =
      std::clamp<size_t>(kMostCells / std::max<size_t>(1, map.values.size()), 1, kMostColumns);
  // Columns are joined evenly, so that a cell stands for equally many ranks.
  const size_t together = std::max<size_t>(1, (columns + most - 1) / most);
  const size_t shown = (columns + together - 1) / together;
  double left = 40;
  for (const std::string& row : map.rows)
    left = std::max(left, TextWidth(row, 11) + kHeatMapMargin + 10);
  svg.Text(kHeatMapMargin, 18, map.title, "h");
  if (!range.empty) DrawScale(range, map.unit, map.width - kHeatMapMargin - 200, 10, &svg);
  const double area = map.width - kHeatMapMargin - left;
  const double cell = std::min(28.0, area / static_cast<double>(std::max<size_t>(1, shown)));
  const double height = map.values.size() > 24 ? 8 : 18;
  const double top = 36;
  for (size_t r = 0; r < map.values.size(); ++r) {
    const double y = top + static_cast<double>(r) * height;
    // With low rows only every fourth name fits.
    if (height > 10 || r % 4 == 0) {
      svg.Text(left - 7, y + height / 2 + 3.8, r < map.rows.size() ? map.rows[r] : "", "t",
               Anchor::kEnd);
    }
    for (size_t c = 0; c < shown; ++c) {
      const double value = GreatestBetween(map.values[r], c * together, (c + 1) * together);
      if (!std::isfinite(value)) continue;
      const double place =
          // Equal values have no place in a range: the middle is neutral.
          range.high > range.low ? (value - range.low) / (range.high - range.low) : 0.5;
      // Titles under the pointer are only added while the file stays small.
      const bool few = shown * map.values.size() <= 512;
      svg.Cell(
          left + static_cast<double>(c) * cell, y, cell - (cell > 4 ? 1 : 0), height - 1,
          HeatColour(place),
          few ? absl::StrCat(map.rows[r], ", ", c * together, ": ", ShortText(value), " ", map.unit)
              : "");
    }
  }
  const double bottom = top + static_cast<double>(map.values.size()) * height;
  svg.Text(left, bottom + 16,
           absl::StrCat(map.x_title,
                        together > 1 ? absl::StrCat(" (the maximum of each ", together, ")") : ""),
           "u");
  return svg.Finish(map.width, bottom + 26, map.label, where);
}

}  // namespace tercio::plot
