// SVG text: escaping, numbers, and the shapes that figures are made of.
//
// Shapes carry classes instead of colours; StyleSheet() says what the classes look like, on white
// and, where the reader prefers it, on black. Coordinates are pixels, y downwards. Pure: the same
// calls give the same text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tercio::plot {

// Escapes text for XML or HTML, also in quoted attributes. Control characters and invalid UTF-8
// become U+FFFD.
std::string Escaped(std::string_view text);

// At most two decimals, no trailing zeros, never "-0".
std::string Coordinate(double value);

// The approximate width of a text in a sans-serif font of this size. SVG cannot measure it; fonts
// differ by some percent.
double TextWidth(std::string_view text, double font_size);

// The text, cut at `most` code points with an ellipsis.
std::string Shortened(std::string_view text, size_t most);

// Classes: `t` text, `u` quieter text, `h` heading, `a` axis, `g` grid, `l` line, `w` a wide one,
// `f` faint line, `m` mark, and for the colours of series `c0` ... `c7` as stroke, `b0` ... `b7` as
// fill. On fills: `o0` ... `o7`, ever paler, and `n`, a number on a full colour (`n t`: on a pale
// one). All are below `svg.p`.
std::string StyleSheet();
inline constexpr int kColours = 8;
inline constexpr int kShades = 8;

enum class Anchor { kStart, kMiddle, kEnd };

// Where a drawing is: in a page, or in a file of its own, with background and style sheet.
enum class SvgPlace { kPage, kOwnFile };

class Svg {
 public:
  void Line(double x1, double y1, double x2, double y2, const std::string& classes);
  // `title` is shown as a tooltip; empty: none.
  void Rectangle(double x, double y, double width, double height, const std::string& classes,
                 std::string_view title = "");
  // A rectangle in a colour without a class, as "#rrggbb".
  void Cell(double x, double y, double width, double height, const std::string& fill,
            std::string_view title);
  // `data` as in SVG's path element.
  void Path(const std::string& data, const std::string& classes, const std::string& dashes = "");
  void Circle(double x, double y, double radius, const std::string& classes);
  // `y` is the base line.
  void Text(double x, double y, std::string_view text, const std::string& classes,
            Anchor anchor = Anchor::kStart);

  // A title followed by a muted unit, which may be empty.
  void Heading(double x, double y, std::string_view title, std::string_view unit);

  // The whole element. `label` is its alternative text.
  std::string Finish(double width, double height, std::string_view label, SvgPlace place) const;

 private:
  std::string body_;
};

}  // namespace tercio::plot
