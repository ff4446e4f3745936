// What rows did when: boxes along one axis of time, as of the stages of a pipeline.
//
// Pure. Made for a hundred rows with thousands of boxes each: where boxes become narrow the drawing
// gets wider up to a limit, numbers are left out, and boxes of a row that look alike become one
// element without tooltips.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/svg.h"

namespace tercio::plot {

struct TimelineKind {
  std::string name;  // in the legend, if there is such a box
  int colour = 0;    // taken modulo kColours
};

struct TimelineBox {
  size_t kind = 0;  // index into Timeline::kinds
  int shade = 0;    // 0: the full colour; of Timeline::shades
  double begin = 0;
  double seconds = 0;
  std::string text;   // written into the box where there is room; may be empty
  std::string title;  // the tooltip
};

struct TimelineRow {
  std::string name;
  std::vector<TimelineBox> boxes;
};

struct Timeline {
  std::string label;  // alternative text (accessibility)
  std::string title;
  std::string unit;  // after the title; may be empty
  std::string note;  // a line of muted text below; may be empty
  std::vector<TimelineKind> kinds;
  int shades = 1;
  std::vector<TimelineRow> rows;
  double seconds = 0;  // the length of the axis
};

// REQUIRES: seconds > 0.
std::string Draw(const Timeline& timeline, SvgPlace place);

}  // namespace tercio::plot
