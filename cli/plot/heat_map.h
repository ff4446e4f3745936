// A table of values as colours, with the scale beside it, to make outliers among a thousand ranks
// visible.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/svg.h"

namespace tercio::plot {

struct HeatMap {
  std::string label;  // alternative text (accessibility)
  std::string title;
  std::string unit;
  std::vector<std::string> rows;
  std::string x_title;
  // values[row][column]; rows may differ in length. Not finite: no cell. Beyond kMostColumns
  // neighbouring columns are merged, and the maximum of each group is shown.
  std::vector<std::vector<double>> values;
  double width = 720;
};
inline constexpr size_t kMostColumns = 256;
inline constexpr size_t kMostCells = 4096;  // in all rows; beyond that columns are merged, too

std::string Draw(const HeatMap& map, SvgPlace where);

// "#rrggbb" of a place in [0, 1]: from dark blue over green to yellow, lighter all the way.
std::string HeatColour(double place);

}  // namespace tercio::plot
