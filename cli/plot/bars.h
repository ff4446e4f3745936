// Horizontal bars, stacked or grouped, one row (or group) for each category.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/svg.h"

namespace tercio::plot {

struct BarSeries {
  std::string name;
  std::vector<double> values;  // one per category; no bar if not finite or negative
  int colour = 0;
};

struct BarChart {
  std::string label;  // alternative text (accessibility)
  std::string title;
  std::string unit;  // after the title, and after the values in tooltips
  std::vector<std::string> categories;
  std::vector<BarSeries> series;
  bool stacked = true;
  bool shares = false;  // values are shares of a whole and printed in percent
  bool totals = false;  // the sum (stacked) or value (grouped) is written at the end of the bar
  double width = 720;
};

std::string Draw(const BarChart& chart, SvgPlace place);

}  // namespace tercio::plot
