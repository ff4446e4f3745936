// Horizontal bars, stacked or grouped, one row (or group) for each category.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tercio::plot {

struct BarSeries {
  std::string name;
  std::vector<double> values;  // one for each category; not finite or negative: none
  int colour = 0;
};

struct BarChart {
  std::string label;  // for those who cannot see it
  std::string title;
  std::string unit;  // behind the title, and behind the values that the pointer shows
  std::vector<std::string> categories;
  std::vector<BarSeries> series;
  bool stacked = true;
  bool shares = false;  // values are shares of a whole and printed in percent
  bool totals = false;  // the sum (stacked) or value (grouped) is written at the end of the bar
  double width = 720;
};

std::string Draw(const BarChart& chart, bool standalone);

}  // namespace tercio::plot
