// Figures of series: panels of lines below each other, with one legend.
//
// Pure: the same figure gives the same text. Made for a million points a series: what is drawn
// keeps the least and greatest value of every pixel column, so that no peak is lost and the text
// stays small.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/scale.h"
#include "cli/plot/svg.h"

namespace tercio::plot {

struct Series {
  std::string name;
  // Ascending x. A y that is not finite, or not above 0 on a logarithmic axis, is a gap.
  std::vector<double> x;
  std::vector<double> y;
  int colour = 0;  // taken modulo kColours
  bool dashed = false;
  bool points = false;  // a dot at each value: for series with few
  bool wide = false;    // stays visible where a later one covers it
  bool faint = false;   // drawn behind the others and not in the legend
};

// A vertical line at x, e.g. a restart.
struct Mark {
  double x = 0;
  int colour = 0;
};

struct Panel {
  std::string title;
  std::string unit;  // after the title; may be empty
  std::vector<Series> series;
  std::vector<Mark> marks;
  bool logarithmic = false;
  bool from_zero = false;
};

struct Figure {
  std::string label;  // alternative text (accessibility)
  std::string x_title;
  bool whole_x = false;  // x are whole numbers
  bool logarithmic_x = false;
  std::vector<Panel> panels;
  std::string marks_name;  // in the legend if there are marks
  std::string note;        // a line of muted text below; may be empty
  double width = 720;
  double panel_height = 190;  // height of the plot area
};

std::string Draw(const Figure& figure, SvgPlace place);

// Indices of points that represent all: of each of `buckets` equal parts of [first, last] the
// first, the least, the greatest and the last, and the ends of gaps. Ascending, at most 4 x buckets
// + 2 x gaps.
std::vector<size_t> Decimate(const std::vector<double>& x, const std::vector<double>& y,
                             double first, double last, int buckets);

// Means over `window` neighbours, centred; values that are not finite are left out, and stay gaps.
std::vector<double> Smoothed(const std::vector<double>& y, int window);

// Draws the entries of a legend in rows, each with a stroke or a box. Returns the height used.
struct LegendEntry {
  std::string name;
  int colour = 0;
  bool dashed = false;
  bool box = false;
  bool mark = false;
};
double DrawLegend(const std::vector<LegendEntry>& entries, double x, double y, double width,
                  Svg* svg);

}  // namespace tercio::plot
