#include "cli/report/html.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/plot/svg.h"

namespace tercio::report {
namespace {

using plot::Escaped;

// One page holds everything: it is mailed, archived and opened without a network.
constexpr char kStyle[] =
    ":root{--ink:#1a1a1a;--soft:#6b6b6b;--rule:#dedede;--stripe:#f7f7f7;--back:#fff;--good:#00704f;"
    "--bad:#b03a00}"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--ink:#ececec;--soft:#a0a0a0;--rule:#3a3a3a;--stripe:#"
    "1f1f1f;--back:#161616;"
    "--good:#2cc29a;--bad:#f0803c}}"
    "*{box-sizing:border-box}"
    "html{background:var(--back);color:var(--ink)}"
    "body{max-width:76rem;margin:0 auto;padding:2rem 1.5rem 4rem;font:15px/1.5 "
    "system-ui,-apple-system,'Segoe UI',"
    "'Helvetica Neue',Arial,'DejaVu Sans',sans-serif}"
    "h1{font-size:1.6rem;line-height:1.25;margin:0 0 .4rem;overflow-wrap:anywhere}"
    "h2{font-size:1.12rem;margin:2.4rem 0 .7rem;padding-bottom:.3rem;border-bottom:1px solid "
    "var(--rule)}"
    "p{margin:.4rem "
    "0;max-width:60rem;overflow-wrap:anywhere}p.lead{font-size:1.05rem}p.soft,.note{color:var(--"
    "soft)}"
    ".note{margin-left:.45rem;font-size:.88em;white-space:nowrap}"
    ".scroll{overflow-x:auto;max-width:100%}"
    "table{border-collapse:collapse;font-size:.92rem;margin:.6rem 0}"
    "th,td{padding:.26rem .9rem .26rem .55rem;text-align:left;vertical-align:top;border-bottom:1px "
    "solid var(--rule);"
    "overflow-wrap:break-word;max-width:24rem;font-weight:400}"
    "thead th{font-weight:600;border-bottom:2px solid var(--rule)}tbody "
    "tr:nth-child(even){background:var(--stripe)}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "tbody th{min-width:8rem}table.keys tbody th{color:var(--soft)}"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:"
    "1.2rem;"
    "align-items:start;margin:.6rem 0}"
    ".figures>svg{width:100%;height:auto;max-width:60rem}"
    "pre{font:12.5px/1.45 ui-monospace,'DejaVu Sans "
    "Mono',Menlo,Consolas,monospace;background:var(--stripe);"
    "padding:.8rem 1rem;white-space:pre-wrap;overflow-wrap:anywhere;border-radius:4px}"
    "summary{cursor:pointer;color:var(--soft);margin:.5rem 0}"
    "@media "
    "print{body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}svg,tr{break-inside:"
    "avoid}"
    "details:not([open]){display:none}.figures{grid-template-columns:1fr 1fr}}";

}  // namespace

Page::Page(const std::string& title) : title_(title) {
  // Titles contain names of jobs, which anybody may choose.
  body_ = absl::StrCat("<h1>", Escaped(title), "</h1>\n");
}

void Page::Section(const std::string& heading) {
  absl::StrAppend(&body_, "<h2>", Escaped(heading), "</h2>\n");
}

void Page::Paragraph(const std::string& text, const std::string& classes) {
  absl::StrAppend(&body_, "<p", classes.empty() ? "" : absl::StrCat(" class=\"", classes, "\""),
                  ">", Escaped(text), "</p>\n");
}

void Page::Table(const std::vector<std::vector<Cell>>& rows, const std::string& classes) {
  // Wide tables scroll by themselves, also by the keyboard.
  absl::StrAppend(&body_, "<div class=\"scroll\" tabindex=\"0\"><table",
                  classes.empty() ? "" : absl::StrCat(" class=\"", classes, "\""), ">\n");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0) body_ += "<thead>";
    if (i == 1) body_ += "<tbody>\n";
    body_ += "<tr>";
    for (const Cell& cell : rows[i]) {
      // The first cell of a row names it, unless it is a number.
      const bool names_row = &cell == &rows[i].front() && !cell.number;
      const char* tag = i == 0 || names_row ? "th" : "td";
      absl::StrAppend(&body_, "<", tag,
                      i == 0      ? " scope=\"col\""
                      : names_row ? " scope=\"row\""
                                  : "",
                      cell.number ? " class=\"n\">" : ">", Escaped(cell.text),
                      cell.note.empty()
                          ? ""
                          : absl::StrCat("<span class=\"note\">", Escaped(cell.note), "</span>"));
      absl::StrAppend(&body_, "</", tag, ">");
    }
    body_ += "</tr>\n";
    if (i == 0) body_ += "</thead>\n";
  }
  // A table without rows has no body to close.
  body_ += rows.size() > 1 ? "</tbody></table></div>\n" : "</table></div>\n";
}

void Page::Figures(const std::vector<std::string>& svgs) {
  body_ += "<div class=\"figures\">\n";
  // Figures are made by our own code and escaped there.
  for (const std::string& svg : svgs) body_ += svg;
  body_ += "</div>\n";
}

void Page::Details(const std::string& summary, const std::string& preformatted, bool open) {
  // Details need no script to open.
  absl::StrAppend(&body_, open ? "<details open><summary>" : "<details><summary>", Escaped(summary),
                  "</summary><pre>", Escaped(preformatted), "</pre></details>\n");
}

void Page::Data(const std::string& id, const std::string& json) {
  // Characters that could end the element, or begin another, are written as JSON's \u00XX.
  absl::StrAppend(&body_, "<script type=\"application/json\" id=\"", id, "\">",
                  absl::StrReplaceAll(json, {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}}),
                  "</script>\n");
}

std::string Page::Finish() const {
  // The policy forbids everything that the page does not contain
  // itself, so that a report from elsewhere can do nothing.
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" "
      "href=\"data:,\">\n<title>",
      // Figures share the style of the page.
      Escaped(title_), "</title>\n<style>", kStyle, plot::StyleSheet(),
      "</style>\n</head>\n<body>\n", body_, "</body>\n</html>\n");
}

}  // namespace tercio::report
