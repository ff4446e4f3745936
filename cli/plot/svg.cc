#include "cli/plot/svg.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace tercio::plot {
namespace {

// Okabe and Ito, "Color Universal Design" (2008): told apart with every common kind of colour
// blindness. The eighth is ours: grey. On black, blue and black give way to lighter ones.
constexpr const char* kOnWhite[kColours] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                            "#e69f00", "#56b4e9", "#3b3b3b", "#8c8c8c"};
constexpr const char* kOnBlack[kColours] = {"#4aa3df", "#f0803c", "#2cc29a", "#e29fc5",
                                            "#f0b840", "#8fd0f5", "#d8d8d8", "#9a9a9a"};

std::string Colours(const char* const* colours) {
  // Every figure of a page shares one style sheet, so that colours are classes.
  std::string css;
  for (int i = 0; i < kColours; ++i) {
    absl::StrAppend(&css, "svg.p .c", i, "{stroke:", colours[i], "}svg.p .b", i,
                    "{fill:", colours[i], "}");
  }
  return css;
}

std::string Shades() {
  std::string css;
  // The palest is still seen on white and on black.
  for (int i = 0; i < kShades; ++i) {
    absl::StrAppend(&css, "svg.p .o", i, "{fill-opacity:", Coordinate(1 - 0.09 * i), "}");
  }
  return css;
}

std::string Titled(std::string_view title) {
  // A title inside of a shape is what browsers show under the pointer.
  return title.empty() ? "/>\n" : absl::StrCat("><title>", Escaped(title), "</title></rect>\n");
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    // But for line breaks and tabs, XML allows none of these, not even escaped.
    const bool control = point.code < 0x20 || (point.code >= 0x7f && point.code < 0xa0) ||
                         point.code == 0xfffe || point.code == 0xffff;
    if (point.code == '&') {
      out += "&amp;";
    } else if (point.code == '<') {
      out += "&lt;";
    } else if (point.code == '>') {
      out += "&gt;";
    } else if (point.code == '"') {
      out += "&quot;";
    } else if (point.code == '\'') {
      out += "&#39;";
    } else if (!point.valid || (control && point.code != '\n' && point.code != '\t')) {
      AppendUtf8(0xfffd, &out);
    } else {
      out += text.substr(at, point.length);
    }
    at += point.length;
  }
  return out;
}

std::string Coordinate(double value) {
  // Adding zero turns -0 into 0; two digits are a hundredth of a pixel.
  std::string text = absl::StrFormat("%.2f", std::round(value * 100) / 100 + 0.0);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

double TextWidth(std::string_view text, double font_size) {
  // The width is estimated, since no font is at hand; a little too wide is better.
  double widths = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    const bool narrow = std::string_view("ijltfI.,:;|'!() ").find(static_cast<char>(point.code)) !=
                            std::string_view::npos &&
                        point.code < 0x80;
    // Characters of East Asia are as wide as high.
    widths += point.code >= 0x1100 ? 1.0 : narrow ? 0.36 : 0.6;
    at += point.length;
  }
  return widths * font_size;
}

std::string Shortened(std::string_view text, size_t most) {
  size_t count = 0;
  size_t cut = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    // The place of the cut is one before the end, for the ellipsis.
    if (count + 1 == most) cut = at;
    if (count == most) return std::string(text.substr(0, cut)) + "…";
    at += DecodeUtf8(text, at).length;
  }
  return std::string(text);
}

std::string StyleSheet() {
  return absl::StrCat(
      // No font is loaded, so that a figure looks right without a network.
      "svg.p{font-family:system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,'DejaVu "
      "Sans',sans-serif;"
      "font-size:11px}"
      "svg.p .t{fill:#333}svg.p .u{fill:#6b6b6b}svg.p "
      ".h{fill:#1a1a1a;font-size:12.5px;font-weight:600}"
      "svg.p .e{text-anchor:end}svg.p .mid{text-anchor:middle}"
      "svg.p .a{stroke:#8a8a8a;stroke-width:1}svg.p .g{stroke:#e6e6e6;stroke-width:1}"
      "svg.p .l{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
      "svg.p .w{stroke-width:3.2;opacity:.75}svg.p "
      ".f{fill:none;stroke-width:1;stroke-linejoin:round;stroke-linecap:round;opacity:.32}"
      "svg.p .m{stroke-width:1;stroke-dasharray:2 3}svg.p .bg{fill:#fff}"
      "svg.p .n{fill:#fff;font-size:9px}svg.p .n.t{fill:#1a1a1a}",
      Shades(), Colours(kOnWhite),
      // Prints stay black on white, whatever the screen shows.
      "@media screen and (prefers-color-scheme:dark){svg.p .t{fill:#d6d6d6}svg.p "
      ".u{fill:#a0a0a0}svg.p "
      ".h{fill:#f2f2f2}"
      "svg.p .a{stroke:#7d7d7d}svg.p .g{stroke:#333}svg.p .bg{fill:#161616}"
      "svg.p .n{fill:#111}svg.p .n.t{fill:#f2f2f2}",
      Colours(kOnBlack), "}");
}

void Svg::Line(double x1, double y1, double x2, double y2, const std::string& classes) {
  absl::StrAppend(&body_, "<line x1=\"", Coordinate(x1), "\" y1=\"", Coordinate(y1), "\" x2=\"",
                  Coordinate(x2), "\" y2=\"", Coordinate(y2), "\" class=\"", classes, "\"/>\n");
}

void Svg::Rectangle(double x, double y, double width, double height, const std::string& classes,
                    std::string_view title) {
  absl::StrAppend(&body_, "<rect x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" width=\"",
                  Coordinate(width), "\" height=\"", Coordinate(height), "\" class=\"", classes,
                  "\"", Titled(title));
}

void Svg::Cell(double x, double y, double width, double height, const std::string& fill,
               std::string_view title) {
  absl::StrAppend(&body_, "<rect x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" width=\"",
                  Coordinate(width), "\" height=\"", Coordinate(height), "\" fill=\"", fill, "\"",
                  Titled(title));
}

void Svg::Path(const std::string& data, const std::string& classes, const std::string& dashes) {
  // A curve of thousands of points is one element, which browsers draw fast.
  absl::StrAppend(&body_, "<path d=\"", data, "\" class=\"", classes, "\"");
  // Dashes are an attribute, as they do not depend on the colour.
  if (!dashes.empty()) absl::StrAppend(&body_, " stroke-dasharray=\"", dashes, "\"");
  body_ += "/>\n";
}

void Svg::Circle(double x, double y, double radius, const std::string& classes) {
  absl::StrAppend(&body_, "<circle cx=\"", Coordinate(x), "\" cy=\"", Coordinate(y), "\" r=\"",
                  Coordinate(radius), "\" class=\"", classes, "\"/>\n");
}

void Svg::Text(double x, double y, std::string_view text, const std::string& classes,
               Anchor anchor) {
  absl::StrAppend(&body_, "<text x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" class=\"",
                  classes,
                  anchor == Anchor::kEnd      ? " e"
                  : anchor == Anchor::kMiddle ? " mid"
                                              : "",
                  "\">", Escaped(text), "</text>\n");
}

void Svg::Heading(double x, double y, std::string_view title, std::string_view unit) {
  absl::StrAppend(&body_, "<text x=\"", Coordinate(x), "\" y=\"", Coordinate(y),
                  // One text with two spans keeps the unit at the
                  // end of the title, however wide that is.
                  "\"><tspan class=\"h\">", Escaped(title), "</tspan>");
  if (!unit.empty()) {
    absl::StrAppend(&body_, "<tspan class=\"u\" dx=\"8\">", Escaped(unit), "</tspan>");
  }
  body_ += "</text>\n";
}

std::string Svg::Finish(double width, double height, std::string_view label, SvgPlace place) const {
  const bool standalone = place == SvgPlace::kOwnFile;
  const std::string w = Coordinate(width);
  const std::string h = Coordinate(height);
  return absl::StrCat(
      "<svg class=\"p\" viewBox=\"0 0 ", w, " ", h, "\" width=\"", w, "\" height=\"", h,
      "\" role=\"img\" aria-label=\"", Escaped(label), "\"",
      // A figure within a page has its name space and style from the page.
      standalone ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", ">\n",
      standalone ? absl::StrCat("<style>", StyleSheet(), "</style>\n<rect class=\"bg\" width=\"", w,
                                "\" height=\"", h, "\"/>\n")
                 : "",
      body_, "</svg>\n");
}

}  // namespace tercio::plot
