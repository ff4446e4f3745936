// A self-contained HTML page: it runs no scripts, loads nothing, and can be printed.
//
// Pure. All text is escaped here; Raw and figures are the caller's word.
#pragma once

#include <string>
#include <vector>

namespace tercio::report {

struct Cell {
  std::string text;
  bool number = false;  // right-aligned
  std::string note;     // muted, after the text
};

class Page {
 public:
  explicit Page(const std::string& title);

  void Section(const std::string& heading);
  void Paragraph(const std::string& text, const std::string& classes = "");
  // The first row is the head. `classes`: "keys" gives the first column the look of a head.
  void Table(const std::vector<std::vector<Cell>>& rows, const std::string& classes = "");
  // Figures (SVG), side by side if the page is wide enough.
  void Figures(const std::vector<std::string>& svgs);
  // Collapsed unless `open`.
  void Details(const std::string& summary, const std::string& preformatted, bool open = false);
  // Embeds `json` for programs: <script type="application/json" id="ID">.
  void Data(const std::string& id, const std::string& json);

  std::string Finish() const;

 private:
  std::string title_;
  std::string body_;
};

}  // namespace tercio::report
