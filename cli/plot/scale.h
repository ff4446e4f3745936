// Maps values to pixels: nice ticks on linear and logarithmic axes, texts of numbers.
//
// Pure. Values that are not finite never reach an axis' range; on a logarithmic one those at or
// below 0 do not, either.
#pragma once

#include <string>
#include <vector>

namespace tercio::plot {

enum class AxisKind { kLinear, kLogarithmic };

struct Range {
  double low = 0;
  double high = 0;
  bool empty = true;

  // Takes in a value that an axis of this kind can show.
  void Add(double value, AxisKind kind);
};

struct Tick {
  double value = 0;
  std::string text;  // empty: a line without a number
};

// An axis over `range`, from `first` (pixels, where the low end is) to `last`.
class Axis {
 public:
  struct Options {
    bool logarithmic = false;
    bool from_zero = false;  // linear: starts at 0 if all values are positive
    bool whole = false;      // only whole numbers make ticks
    bool extend = true;      // to the next ticks outwards; else exactly the range
    int most_ticks = 6;
  };
  Axis(Range range, double first, double last, const Options& options);

  bool Shows(double value) const;
  double At(double value) const;  // requires Shows(value)
  const std::vector<Tick>& ticks() const { return ticks_; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  void MakeLinear(const Options& options);
  void MakeLogarithmic(const Options& options);
  double Place(double value) const;

  double low_;
  double high_;
  double first_;
  double last_;
  bool logarithmic_;
  std::vector<Tick> ticks_;
};

// The text of a tick: 0.25, 12, 1.5k, 3M, 2e-5. `step` is the distance between ticks, which
// determines how many digits tell them apart; 0: as many as needed, at most four. `most` is the
// greatest number of the axis, whose prefix all ticks use: 0.5M, 1.0M.
std::string NumberText(double value, double step = 0, double most = 0);
// Three significant digits: 4.39, 51.7, 1.23k.
std::string ShortText(double value);

// A divisor and its unit, in which `most` is a readable number.
struct Unit {
  double divisor = 1;
  std::string name;
};
Unit BytesUnit(double most);    // B, KiB ... TiB
Unit SecondsUnit(double most);  // µs, ms, s, min, h

}  // namespace tercio::plot
